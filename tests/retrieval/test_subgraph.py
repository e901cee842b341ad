"""What is kept of a graph and how it is cut out, by hand and against a plain version."""

import dataclasses
import random
from itertools import chain

import pytest
import torch

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.subgraph import (
    Links,
    Reason,
    Selection,
    induced,
    rank,
    select,
    select_shared,
)

KINDS = {"E": NodeKind.ENTITY, "M": NodeKind.MEDIATOR, "P": NodeKind.PASSAGE}


def graph(kinds: str, edges: list[tuple[int, int, int]], relations: int = 3, passages=None):
    """Edges are (head, relation, tail); kinds one letter a node."""
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 3)
    return GraphTensors(
        x=torch.arange(len(kinds)).float()[:, None],
        node_text=tuple(f"{letter}{i}" for i, letter in enumerate(kinds)),
        node_kind=torch.tensor([KINDS[letter] for letter in kinds], dtype=torch.int8),
        edge_index=table[:, [0, 2]].T.contiguous(),
        edge_type=table[:, 1].clone(),
        edge_passage=torch.tensor(passages or [-1] * len(edges), dtype=torch.long),
        relation_x=torch.arange(relations).float()[:, None],
        relation_text=tuple(f"r{i}" for i in range(relations)),
        node_ptr=torch.tensor([0, len(kinds)]),
        edge_ptr=torch.tensor([0, len(edges)]),
        relation_ptr=torch.tensor([0, relations]),
    ).check()


def reasons(whole: GraphTensors, selection: Selection) -> list[int]:
    """The reason of every node, as numbers; of a single question's selection."""
    full = torch.zeros(whole.num_nodes, dtype=torch.int8)
    full[selection.node] = selection.reason
    return full.tolist()


def both(whole: GraphTensors, scores, topics, top_k: int) -> Selection:
    """What ``select`` and ``select_shared`` keep of one graph, which has to be the same."""
    scores, topics = torch.tensor([scores]), torch.tensor([topics], dtype=torch.bool)
    one = select(whole, rank(whole, scores, topics, top_k), topics, top_k)
    links = Links.of(whole.edge_index, whole.num_nodes)
    ranked = rank(whole, scores, topics, top_k + 3)
    other = select_shared(whole, links, ranked, topics, top_k)
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()
    return one


def kept(whole: GraphTensors, scores: list[float], topics: set[int], top_k: int) -> list[int]:
    """Reasons of the nodes, as numbers."""
    mask = [i in topics for i in range(whole.num_nodes)]
    return reasons(whole, both(whole, scores, mask, top_k))


T, K, M = int(Reason.TOPIC), int(Reason.TOP_K), int(Reason.MEDIATOR)


def test_by_hand():
    """E0 is the topic; E1 and E2 score best; m4 joins E0 and E1, m5 only touches E1.

    E0 == r0, r1 == E1 -- r0 -- m5 -- E3
    |               |
    +---- m4 -------+      E2 (alone)
    """
    edges = [(0, 0, 1), (0, 1, 1), (1, 0, 5), (5, 0, 3), (0, 2, 4), (4, 2, 1), (1, 1, 1), (3, 1, 0)]
    whole = graph("EEEEMM", edges)
    topics = [True] + [False] * 5
    selection = both(whole, [0.05, 0.2, 0.1, 0.01, 0.3, 0.34], topics, 2)
    assert reasons(whole, selection) == [T, K, K, 0, M, 0]
    assert selection.reason.dtype == torch.int8
    assert selection.edge.tolist() == [0, 1, 4, 5, 6]
    assert selection.question.tolist() == [0] * 4
    assert selection.edge_question.tolist() == [0] * 5


def test_topics_are_kept_and_do_not_count():
    whole = graph("EEEE", [])
    assert kept(whole, [0.9, 0.1, 0.2, 0.0], {0, 3}, 1) == [T, 0, K, T]
    assert kept(whole, [0.9, 0.1, 0.2, 0.0], set(), 1) == [K, 0, 0, 0]
    assert kept(whole, [0.9, 0.1, 0.2, 0.0], {0, 1, 2, 3}, 1) == [T, T, T, T]
    assert kept(graph("ME", []), [0.5, 0.5], {0}, 5) == [T, K]  # a mediator that is asked for


def test_ties_go_to_the_smaller_id():
    whole = graph("EEEEE", [])
    assert kept(whole, [0.2] * 5, set(), 2) == [K, K, 0, 0, 0]
    assert kept(whole, [0.1, 0.2, 0.2, 0.2, 0.1], {1}, 2) == [0, T, K, K, 0]
    assert kept(whole, [0.1] * 5, set(), 9) == [K] * 5


def test_what_no_mass_reached_is_not_kept():
    whole = graph("EEMEE", [(0, 0, 2), (2, 0, 1)])
    assert kept(whole, [0.5, 0.0, 0.5, 0.0, 0.0], set(), 4) == [K, 0, 0, 0, 0]
    assert kept(whole, [0.0] * 5, {1}, 4) == [0, T, 0, 0, 0]


@pytest.mark.parametrize(
    ("edges", "joins"),
    [
        ([(0, 0, 2), (2, 0, 1)], True),
        ([(2, 0, 0), (2, 0, 1)], True),
        ([(0, 0, 2), (1, 0, 2)], True),
        ([(0, 0, 2)], False),
        ([(0, 0, 2), (0, 1, 2), (2, 0, 0)], False),  # one node, three edges
        ([(0, 0, 2), (2, 0, 2)], False),  # itself does not count
        ([(0, 0, 2), (2, 0, 3)], False),  # the other end is dropped
        ([(0, 0, 2), (2, 0, 4), (4, 0, 1)], False),  # the other end is a mediator
        ([], False),
    ],
)
def test_a_mediator_is_kept_where_it_joins_two_kept_nodes(edges, joins):
    found = kept(graph("EEMEM", edges), [0.3, 0.2, 0.4, 0.1, 0.0], set(), 2)
    assert found == [K, K, M if joins else 0, 0, 0]


def test_other_kinds_count_as_named():
    assert kept(graph("PEM", []), [0.1, 0.2, 0.9], set(), 2) == [K, K, 0]


def test_induced_by_hand():
    """Edges 1 and 2 are parallel, 4 is a self-loop; node 3 is a passage, 5 one that is dropped."""
    edges = [(0, 0, 1), (1, 1, 2), (1, 3, 2), (2, 1, 1), (2, 3, 2), (4, 2, 2)]
    whole = graph("EEEPEP", edges, relations=4, passages=[3, 3, 5, -1, -1, 3])
    small = induced(whole, chosen([0, 0, 0], [1, 2, 3], [0] * 4, [1, 2, 3, 4]), 1)
    small.check()
    assert small.node_text == ("E1", "E2", "P3")
    assert small.relation_text == ("r1", "r3")
    assert small.edge_index.tolist() == [[0, 0, 1, 1], [1, 1, 0, 1]]
    assert small.edge_type.tolist() == [0, 1, 0, 1]
    assert small.edge_passage.tolist() == [2, -1, -1, -1]
    assert small.node_kind.tolist() == [0, 0, 2]
    assert small.x[:, 0].tolist() == [1, 2, 3]
    assert small.relation_x[:, 0].tolist() == [1, 3]


def chosen(question, node, edge_question, edge) -> Selection:
    reason = torch.ones(len(node), dtype=torch.int8)
    question, node, edge_question, edge = (
        torch.tensor(part, dtype=torch.long) for part in (question, node, edge_question, edge)
    )
    return Selection(question, node, reason, edge_question, edge)


def test_nothing_or_all_is_kept():
    whole = graph("EME", [(0, 0, 1), (1, 1, 2), (0, 2, 0)], passages=[2, -1, 0])
    small = induced(whole, chosen([], [], [], []), 2).check()
    assert small.num_nodes == small.num_edges == small.num_relations == 0
    assert small.num_graphs == 2
    for one in (whole, graph("", [], relations=0), graph("E", [], relations=0)):
        nodes, edges = range(one.num_nodes), range(one.num_edges)
        everything = chosen([0] * len(nodes), [*nodes], [0] * len(edges), [*edges])
        assert_same(induced(one, everything, 1), one)


def test_two_questions_share_a_node():
    """Question 1 keeps what question 0 keeps of it, and n0 besides; question 2 keeps nothing."""
    whole = graph("EEE", [(0, 2, 1), (1, 0, 2), (1, 2, 2)], relations=3, passages=[2, 0, -1])
    small = induced(whole, chosen([0, 0, 1, 1, 1], [1, 2, 0, 1, 2], [0, 0, 1, 1], [1, 2, 0, 2]), 3)
    first, second, third = small.check().unbatch()
    assert first.node_text == ("E1", "E2")
    assert first.relation_text == ("r0", "r2")
    assert first.edge_index.tolist() == [[0, 0], [1, 1]]
    assert first.edge_type.tolist() == [0, 1]
    assert first.edge_passage.tolist() == [-1, -1]
    assert second.node_text == ("E0", "E1", "E2")
    assert second.relation_text == ("r2",)
    assert second.edge_index.tolist() == [[0, 1], [1, 2]]
    assert second.edge_passage.tolist() == [2, -1]
    assert third.num_nodes == 0


def assert_same(one: GraphTensors, other: GraphTensors) -> None:
    for field in dataclasses.fields(GraphTensors):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, torch.Tensor):
            assert torch.equal(left, right), field.name
        else:
            assert left == right, field.name


def random_graph(rng: random.Random) -> GraphTensors:
    nodes = rng.choice([0, 1, 5, 12])
    pick = range(nodes)
    edges = [(rng.choice(pick), rng.randrange(3), rng.choice(pick)) for _ in range(3 * nodes)]
    passages = [rng.choice([-1, *pick]) for _ in edges]
    return graph("".join(rng.choices("EEMP", k=nodes)), edges, passages=passages)


def plain_select(whole: GraphTensors, scores: list[float], topics: set[int], top_k: int):
    """The rules of ``select``, one node after another."""
    kinds, edges = whole.node_kind.tolist(), list(zip(*whole.edge_index.tolist(), strict=True))
    named = [i for i, kind in enumerate(kinds) if kind != NodeKind.MEDIATOR and scores[i] > 0]
    named = [i for i in named if i not in topics]
    reasons = dict.fromkeys(sorted(named, key=lambda i: (-scores[i], i))[:top_k], K)
    reasons |= dict.fromkeys(topics, T)
    for i, kind in enumerate(kinds):
        touched = {h for h, t in edges if t == i} | {t for h, t in edges if h == i}
        others = {j for j in touched - {i} if reasons.get(j) in (T, K)}
        if kind == NodeKind.MEDIATOR and i not in topics and len(others) > 1:
            reasons[i] = M
    return [reasons.get(i, 0) for i in range(whole.num_nodes)]


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_is_its_graphs_and_each_as_by_plain_rules(seed):
    rng = random.Random(seed)
    graphs = [random_graph(rng) for _ in range(4)]
    batch = GraphTensors.collate(graphs)
    scores = [[rng.choice([0.0, 0.2, 0.3, 0.4]) for _ in range(g.num_nodes)] for g in graphs]
    topics = [{i for i in range(g.num_nodes) if rng.random() < 0.15} for g in graphs]
    masks = [[i in t for i in range(g.num_nodes)] for g, t in zip(graphs, topics, strict=True)]
    flat = torch.tensor([[*chain.from_iterable(scores)]])
    mask = torch.tensor([[*chain.from_iterable(masks)]], dtype=torch.bool)
    selection = select(batch, rank(batch, flat, mask, 5), mask, 3)
    parts = induced(batch, selection, 4).check().unbatch()
    for number, whole in enumerate(graphs):
        single = both(whole, scores[number], masks[number], 3)
        assert reasons(whole, single) == plain_select(whole, scores[number], topics[number], 3)
        mine, edges = selection.question == number, selection.edge_question == number
        first_node, first_edge = batch.node_ptr[number], batch.edge_ptr[number]
        assert torch.equal(single.node, selection.node[mine] - first_node)
        assert torch.equal(single.reason, selection.reason[mine])
        assert torch.equal(single.edge, selection.edge[edges] - first_edge)
        alone = induced(whole, single, 1)
        assert_same(alone, parts[number])
        # Ids lead back to the same triples, and none between kept nodes is missing.
        for edge, original in enumerate(single.edge.tolist()):
            head, tail = alone.edge_index[:, edge].tolist()
            assert whole.edge_index[:, original].tolist() == single.node[[head, tail]].tolist()
            relation = whole.relation_text[whole.edge_type[original]]
            assert alone.relation_text[alone.edge_type[edge]] == relation
        inside = torch.isin(whole.edge_index, single.node).all(0)
        assert single.edge.tolist() == inside.nonzero().squeeze(1).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_many_questions_on_one_graph_are_each_as_alone(seed):
    rng = random.Random(seed)
    whole = random_graph(rng)
    links = Links.of(whole.edge_index, whole.num_nodes)
    shape = 6, whole.num_nodes
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, shape, generator=generator) / 10
    topics = torch.rand(shape, generator=generator) < 0.1
    for top_k in (1, 3, 50):
        ranked = rank(whole, scores, topics, top_k)
        together = select_shared(whole, links, ranked, topics, top_k)
        parts = induced(whole, together, 6).check().unbatch()
        for question in range(6):
            alone = both(whole, scores[question].tolist(), topics[question].tolist(), top_k)
            mine = together.question == question
            assert torch.equal(together.node[mine], alone.node)
            assert torch.equal(together.reason[mine], alone.reason)
            assert torch.equal(together.edge[together.edge_question == question], alone.edge)
            assert_same(parts[question], induced(whole, alone, 1))


@pytest.mark.parametrize("seed", range(10))
def test_the_ranking_is_by_score_then_id_without_topics_mediators_and_what_was_not_reached(seed):
    rng = random.Random(seed)
    graphs = [random_graph(rng) for _ in range(4)]
    batch = GraphTensors.collate(graphs)
    scores = [[rng.choice([0.0, 0.2, 0.3, 0.4]) for _ in range(g.num_nodes)] for g in graphs]
    masks = [[rng.random() < 0.15 for _ in range(g.num_nodes)] for g in graphs]
    flat = torch.tensor([[*chain.from_iterable(scores)]])
    mask = torch.tensor([[*chain.from_iterable(masks)]], dtype=torch.bool)
    for depth in (1, 4, 99):
        together = rank(batch, flat, mask, depth)
        for number, whole in enumerate(graphs):
            value, topic = scores[number], masks[number]
            may = [
                node
                for node in range(whole.num_nodes)
                if value[node] > 0 and not topic[node] and whole.node_text[node][0] != "M"
            ]
            plain = sorted(may, key=lambda node: (-value[node], node))[:depth]
            alone = torch.tensor([value]), torch.tensor([topic], dtype=torch.bool)
            one = rank(whole, *alone, depth)
            assert one.node.tolist() == plain
            assert one.place.tolist() == list(range(len(plain)))
            mine = together.question == number
            assert (together.node[mine] - batch.node_ptr[number]).tolist() == plain
            assert together.place[mine].tolist() == list(range(len(plain)))
