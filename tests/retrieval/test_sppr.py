"""The walk: by hand, against a dense closed form, and what must not change it."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse
import torch

from bisrqa.config import RetrieverConfig
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.sppr import (
    edge_scores,
    personalization,
    relation_weights,
    sppr,
)

FINE = {"tolerance": 1e-12, "max_steps": 5000}


def graph(nodes: int, edges: list[tuple[int, int, int]], relations: int, mediators=()):
    """Edges are (head, relation, tail)."""
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 3)
    kind = [NodeKind.MEDIATOR if i in mediators else NodeKind.ENTITY for i in range(nodes)]
    return GraphTensors(
        x=torch.zeros(nodes, 2),
        node_text=tuple(f"n{i}" for i in range(nodes)),
        node_kind=torch.tensor(kind, dtype=torch.int8),
        edge_index=table[:, [0, 2]].T.contiguous(),
        edge_type=table[:, 1].clone(),
        edge_passage=torch.full((len(table),), -1),
        relation_x=torch.zeros(relations, 2),
        relation_text=tuple(f"r{i}" for i in range(relations)),
        node_ptr=torch.tensor([0, nodes]),
        edge_ptr=torch.tensor([0, len(table)]),
        relation_ptr=torch.tensor([0, relations]),
    ).check()


def random_graph(seed: int, nodes: int | None = None) -> GraphTensors:
    """A multigraph with self-loops, parallel edges, one edge twice, and isolated nodes."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 40)) if nodes is None else nodes
    linked = max(nodes - 2, 1)
    ends = rng.integers(0, linked, (3 * linked, 2)).tolist()
    edges = [(h, int(rng.integers(5)), t) for h, t in ends]
    edges += [(0, 3, 0), (0, 0, linked - 1), (0, 1, linked - 1), (linked - 1, 1, 0), edges[0]]
    return graph(nodes, edges, 6)


def random_inputs(whole: GraphTensors, questions: int, seed: int, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    p = torch.rand(questions, whole.num_nodes, generator=rng, dtype=dtype)
    p[p < 0.5] = 0
    p[:, 0] += 0.1
    weight = torch.rand(questions, whole.num_relations, generator=rng, dtype=dtype)
    weight[weight < 0.4] = 0  # whole nodes lose their edges
    return p / p.sum(1, keepdim=True), weight


def closed_form(whole: GraphTensors, p, weight, restart: float) -> np.ndarray:
    """The rest state p (I - (1-c) P)^-1 c of one question, with dense matrices."""
    p, weight = np.asarray(p, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    walk = np.zeros((whole.num_nodes, whole.num_nodes))
    for (head, tail), kind in zip(whole.edge_index.T.tolist(), whole.edge_type, strict=True):
        walk[head, tail] += weight[kind]
        if head != tail:
            walk[tail, head] += weight[kind]
    total = walk.sum(1, keepdims=True)
    walk = np.where(total > 0, walk / np.where(total > 0, total, 1), p[None])
    return restart * p @ np.linalg.inv(np.eye(len(p)) - (1 - restart) * walk)


def power_iteration(whole: GraphTensors, p, weight, restart: float, steps: int) -> np.ndarray:
    """The walk as it is defined, in float64 over a scipy CSR matrix, ``steps`` steps from p."""
    p, weight = np.asarray(p, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    (head, tail), value = whole.edge_index.numpy(), weight[whole.edge_type.numpy()]
    both = scipy.sparse.coo_array((value, (head, tail)), shape=(len(p), len(p)))
    loops = scipy.sparse.diags_array(both.tocsr().diagonal())
    both = (both + both.T - loops).tocsr()  # a self-loop is one edge
    total = both.sum(1)
    share = scipy.sparse.diags_array(np.divide(1, total, where=total > 0, out=np.zeros(len(p))))
    transition, dangling, scores = (share @ both).T.tocsr(), total == 0, p
    for _ in range(steps):
        back = scores[dangling].sum()
        scores = (1 - restart) * (transition @ scores + back * p) + restart * p
    return scores


@pytest.mark.parametrize("seed", range(6))
def test_every_step_against_scipy(seed):
    whole = random_graph(seed)
    p, weight = random_inputs(whole, 1, seed)
    for steps in (1, 2, 7, 60):
        result = sppr(whole, p, weight, restart=0.15, tolerance=1e-30, max_steps=steps)
        expected = power_iteration(whole, p[0], weight[0], 0.15, steps)
        assert result.scores[0].numpy() == pytest.approx(expected, abs=2e-6)


FIVE = graph(5, [(0, 0, 1), (1, 1, 0), (2, 2, 1), (3, 0, 3)], 3)


def test_five_nodes_by_hand():
    """Half of the mass starts at n0, a quarter each at n3 and n4; c = 1/2.

        n0 --r0--> n1 <--r2-- n2      n3 --r0--> n3      n4
           <--r1--                    (a self-loop)      (alone)

    r0 and r1 weigh 1, r2 weighs 2, so n1 sends half of its mass each way. Let m = 1/2 + s4/2 be
    what restarts, with what n4 gives back. s4 = m/4, so m = 4/7 and s4 = 1/7.
    s3 = s3/2 + m/4, so s3 = 2/7. s0 = s1/4 + m/2, s1 = (s0 + s2)/2 and s2 = s1/4, so
    s1 = 4/21, s0 = 7/21, s2 = 1/21.
    """
    result = sppr(
        FIVE,
        torch.tensor([[0.5, 0, 0, 0.25, 0.25]]),
        torch.tensor([[1.0, 1, 2]]),
        restart=0.5,
        tolerance=1e-7,
    )
    expected = [7 / 21, 4 / 21, 1 / 21, 6 / 21, 3 / 21]
    assert result.scores[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_first_steps_by_hand():
    """From n0 alone, r0 and r1 weighing 1 and 3, r2 nothing: n0 <-> n1 is all there is."""
    p, weight = torch.tensor([[1.0, 0, 0, 0, 0]]), torch.tensor([[1.0, 3, 0]])
    for steps, scores, residual in (
        (1, [0.25, 0.75, 0], 1.5),
        (2, [0.8125, 0.1875, 0], 1.125),
        (3, [0.390625, 0.609375, 0], 0.84375),
    ):
        result = sppr(FIVE, p, weight, restart=0.25, max_steps=steps)
        assert result.scores[0].tolist() == pytest.approx([*scores, 0, 0])
        assert result.steps.tolist() == [[steps]]
        assert result.residual.tolist() == [[pytest.approx(residual)]]
    # A node whose edges weigh nothing gives all of its mass back.
    result = sppr(FIVE, p.roll(2, 1), weight, restart=0.25)
    assert result.scores.tolist() == [[0, 0, 1, 0, 0]]
    assert (result.steps.item(), result.residual.item()) == (1, 0)


@pytest.mark.parametrize("seed", range(12))
def test_against_the_closed_form(seed):
    whole = random_graph(seed)
    restart = [0.05, 0.15, 0.5, 0.9][seed % 4]
    p, weight = random_inputs(whole, 4, seed, torch.float64)
    weight[3] = 0
    scores = sppr(whole, p, weight, restart=restart, **FINE).scores
    for question in range(4):
        expected = closed_form(whole, p[question], weight[question], restart)
        np.testing.assert_allclose(scores[question], expected, atol=1e-10)
    assert torch.allclose(scores[3], p[3])
    # As in use: single precision and the default tolerance, which bounds the error by 1e-6 / c.
    result = sppr(whole, p.float(), weight.float(), restart=restart, max_steps=1000)
    assert (result.residual < 1e-6).all()
    assert (result.scores - scores).abs().sum(1).max() < 1e-5 / restart
    assert torch.allclose(result.scores.sum(1), torch.ones(4), atol=1e-6)


def test_mass_does_not_drift_in_many_steps():
    for nodes in (3, 400):
        whole = random_graph(5, nodes)
        p, weight = random_inputs(whole, 2, 0)
        result = sppr(whole, p, weight, restart=0.01, tolerance=1e-12, max_steps=100)
        assert result.steps.min() == 100  # single precision cannot get there
        assert (result.scores.double().sum(1) - 1).abs().max() < 6e-7


def test_steps_and_residual():
    whole = random_graph(3)
    p, weight = random_inputs(whole, 3, 3)
    free = sppr(whole, p, weight, tolerance=1e-4)
    assert (free.residual < 1e-4).all()
    assert free.steps.max() < 200
    for question in range(3):
        steps = int(free.steps[question])
        at, before = (
            sppr(whole, p[[question]], weight[[question]], tolerance=1e-4, max_steps=most)
            for most in (steps, steps - 1)
        )
        assert torch.equal(at.scores[0], free.scores[question])
        assert before.residual.item() >= 1e-4
        assert before.steps.item() == steps - 1
        change = (at.scores - before.scores).abs().sum().item()
        assert at.residual.item() == pytest.approx(change, rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_is_exactly_its_graphs(seed):
    graphs = [random_graph(seed * 5 + i) for i in range(5)]
    graphs[seed % 5] = graph(0, [], 0)
    graphs[(seed + 1) % 5] = graph(3, [], 1)
    inputs = [random_inputs(g, 1, i) if g.num_nodes else EMPTY for i, g in enumerate(graphs)]
    batch = GraphTensors.collate(graphs)
    p, weight = (torch.cat(parts, 1) for parts in zip(*inputs, strict=True))
    together = sppr(batch, p, weight)
    value = edge_scores(batch, together.scores, weight)
    for number, (whole, (one_p, one_weight)) in enumerate(zip(graphs, inputs, strict=True)):
        alone = sppr(whole, one_p, one_weight)
        nodes = slice(*batch.node_ptr[number : number + 2].tolist())
        edges = slice(*batch.edge_ptr[number : number + 2].tolist())
        assert torch.equal(together.scores[:, nodes], alone.scores)
        assert torch.equal(together.steps[:, number], alone.steps[:, 0])
        assert torch.equal(together.residual[:, number], alone.residual[:, 0])
        assert torch.equal(value[:, edges], edge_scores(whole, alone.scores, one_weight))
    assert len(set(together.steps[0].tolist())) > 2  # each stops at its own step


EMPTY = torch.zeros(1, 0), torch.zeros(1, 0)


def test_an_empty_graph():
    result = sppr(graph(0, [], 0), *EMPTY)
    assert result.scores.shape == (1, 0)
    assert result.steps.tolist() == [[0]]
    assert result.residual.tolist() == [[0]]


def test_many_questions_on_one_graph_are_each_as_alone():
    whole = random_graph(8)
    p, weight = random_inputs(whole, 7, 8)
    together = sppr(whole, p, weight)
    for question in range(7):
        alone = sppr(whole, p[[question]], weight[[question]])
        for many, one in zip(together, alone, strict=True):
            assert torch.equal(many[question], one[0])


@pytest.mark.parametrize("seed", range(4))
def test_numbering_order_and_direction_do_not_matter(seed):
    whole = random_graph(seed)
    p, weight = random_inputs(whole, 2, seed, torch.float64)
    scores = sppr(whole, p, weight, **FINE).scores
    rng = torch.Generator().manual_seed(seed)
    new_id = torch.randperm(whole.num_nodes, generator=rng)
    moved = torch.empty_like(p)
    moved[:, new_id] = p
    renumbered = dataclasses.replace(whole, edge_index=new_id[whole.edge_index])
    assert torch.allclose(sppr(renumbered, moved, weight, **FINE).scores[:, new_id], scores)
    order = torch.randperm(whole.num_edges, generator=rng)
    turned = torch.where(order % 2 == 0, whole.edge_index, whole.edge_index.flip(0))
    shuffled = dataclasses.replace(
        whole, edge_index=turned[:, order], edge_type=whole.edge_type[order]
    )
    assert torch.allclose(sppr(shuffled, p, weight, **FINE).scores, scores)
    # Only the ratio of weights counts.
    assert torch.allclose(sppr(whole, p, weight * 1e-3, **FINE).scores, scores)


@pytest.mark.parametrize("tiny", [1e-30, 1e-38, 1e-40, 1e-44])
def test_weights_too_small_for_a_normal_number(tiny):
    p = torch.tensor([[1.0, 0, 0, 0, 0]])
    whole = dataclasses.replace(FIVE, edge_type=torch.zeros_like(FIVE.edge_type))
    usual = sppr(whole, p, torch.ones(1, 3)).scores
    assert torch.allclose(sppr(whole, p, torch.full((1, 3), tiny)).scores, usual, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"p": (1, 2, torch.nan)},
            "personalization must be .* got nan at question 1, graph 1, position 2",
        ),
        ({"p": (0, 4, -0.1)}, "personalization .* got -0.1.* question 0, graph 1, position 4"),
        ({"p": (1, 0, 0.4)}, "personalization of question 1, graph 0 must sum to 1, got 0.9"),
        ({"p": (0, 5, 0.0)}, "personalization of question 0, graph 1 must sum to 1, got 0.5"),
        ({"w": (1, 3, torch.inf)}, "relation_weight .* got inf at question 1, graph 1, position 3"),
        ({"w": (0, 1, -1.0)}, "relation_weight .* got -1.0 at question 0, graph 0, position 1"),
        ({"restart": 0.0}, r"restart must lie in \(0, 1\), got 0.0"),
        ({"restart": 1.0}, r"restart must lie in \(0, 1\), got 1.0"),
    ],
)
def test_bad_input_is_named(changes, message):
    one = graph(2, [(0, 0, 1)], 2)
    batch = GraphTensors.collate([one, graph(4, [(0, 0, 1)], 2)])
    p = torch.tensor([[0.5, 0.5, 0, 0.5, 0, 0.5]] * 2)
    weight = torch.ones(2, 4)
    for values, change in ((p, changes.get("p")), (weight, changes.get("w"))):
        if change:
            values[change[0], change[1]] = change[2]
    with pytest.raises(ValueError, match=message):
        sppr(batch, p, weight, restart=changes.get("restart", 0.15))


def test_gradient_in_weights_and_personalization():
    whole = graph(4, [(0, 0, 1), (1, 1, 2), (0, 1, 1), (2, 2, 2), (2, 0, 0)], 3)  # n3 is alone
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[0.5, 1.0, 0.2]], dtype=torch.float64, requires_grad=True)

    def walk(p, weight):
        result = sppr(whole, p, weight, tolerance=1e-15, max_steps=6)
        return result.scores, edge_scores(whole, result.scores, weight)

    assert torch.autograd.gradcheck(walk, (p, weight))

    # At rest: more weight on r1, which leads from n0 by n1 to n2 and to no other place.
    def at_n2(w1: float) -> float:
        changed = torch.tensor([[0.5, w1, 0.2]], dtype=torch.float64)
        return sppr(whole, p, changed, **FINE).scores[0, 2].item()

    sppr(whole, p, weight, **FINE).scores[0, 2].backward()
    slope = (at_n2(1 + 1e-5) - at_n2(1 - 1e-5)) / 2e-5
    assert weight.grad[0, 1].item() == pytest.approx(slope, rel=1e-5)
    assert slope != 0


def test_gradient_stays_finite_where_weights_are_zero():
    p, weight = random_inputs(random_graph(4), 3, 4)
    weight[1] = 0
    p.requires_grad_()
    weight.requires_grad_()
    sppr(random_graph(4), p, weight).scores.square().sum().backward()
    assert torch.isfinite(p.grad).all()
    assert torch.isfinite(weight.grad).all()


def test_edge_scores_by_hand():
    """The weaker end's mass times the weight of the relation; the best edge of a graph has 1."""
    scores = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.1], [0, 0, 0.5, 0.5, 0]])
    weight = torch.tensor([[1.0, 0.5, 2], [0, 1, 1]])
    found = edge_scores(FIVE, scores, weight)
    assert found[0].tolist() == pytest.approx([1, 0.5, 0.2 / 0.3, 0.1 / 0.3])
    assert found[1].tolist() == [0, 0, 0, 0]


def semantic(similarity, topics=(), mediators=(), **changes):
    whole = graph(len(similarity), [], 0, mediators)
    mask = torch.tensor([[i in topics for i in range(len(similarity))]], dtype=torch.bool)
    config = RetrieverConfig(**changes)
    return personalization(whole, torch.tensor([similarity]), mask, config)[0].tolist()


def test_personalization_by_hand():
    total = math.exp(2) + math.exp(-1)  # n1 is a mediator
    soft = {"mediators": {1}, "node_temperature": 0.25}
    plain = [math.exp(2) / total, 0, math.exp(-1) / total]
    values = [0.5, 0.9, -0.25]
    assert semantic(values, topic_mass=0.0, **soft) == pytest.approx(plain)
    mixed = [0.25 * plain[0] + 0.375, 0, 0.25 * plain[2] + 0.375]
    assert semantic(values, {0, 2}, topic_mass=0.75, **soft) == pytest.approx(mixed)
    # A question without topics, or whose topics the graph lacks, goes by the words alone.
    assert semantic(values, topic_mass=0.75, **soft) == pytest.approx(plain)
    assert semantic(values, topic_mass=1.0, **soft) == pytest.approx(plain)
    assert semantic(values, {1}, topic_mass=1.0, **soft) == pytest.approx([0, 1, 0])

    linear = {"personalization": "linear", "mediators": {1}}
    assert semantic(values, topic_mass=0.0, **linear) == pytest.approx([1, 0, 0])
    assert semantic([0.6, 0.9, 0.2], topic_mass=0.0, **linear) == pytest.approx([0.75, 0, 0.25])
    assert semantic([0.6, 0.9, 0.2], {2}, topic_mass=0.5, **linear) == pytest.approx(
        [0.375, 0, 0.625]
    )


@pytest.mark.parametrize("form", ["softmax", "linear"])
def test_personalization_at_the_edges(form):
    # Nothing similar: evenly over named nodes (softmax still tells them apart).
    even = semantic([-0.5, -0.5, -0.5], mediators={2}, personalization=form)
    assert even == pytest.approx([0.5, 0.5, 0])
    if form == "linear":
        assert semantic([-0.9, -0.1, 0.0], mediators={2}, personalization=form) == [0.5, 0.5, 0]
    # Only mediators: evenly over all.
    assert semantic([0.3, -0.5], mediators={0, 1}, personalization=form) == [0.5, 0.5]
    assert semantic([-1.0, 1.0, 0.3], {1}, topic_mass=1.0, personalization=form) == [0, 1, 0]
    assert semantic([], personalization=form) == []


@pytest.mark.parametrize("form", ["softmax", "linear"])
def test_personalization_of_a_batch_is_that_of_its_graphs(form):
    config = RetrieverConfig(personalization=form, topic_mass=0.3)
    parts = [
        (graph(4, [], 0, {1}), [0.1, 0.9, -0.3, 0.4], [True, False, False, True]),
        (graph(0, [], 0), [], []),
        (graph(3, [], 0), [-0.1, -0.2, -0.3], [False] * 3),
        (graph(2, [], 0, {0, 1}), [0.5, 0.1], [False] * 2),
        (graph(2, [], 0, {0}), [0.5, -0.1], [True, False]),
    ]
    graphs, similarity, topics = zip(*parts, strict=True)
    similarity = [torch.tensor([row]) for row in similarity]
    topics = [torch.tensor([row], dtype=torch.bool) for row in topics]
    alone = [
        personalization(g, s, t, config) for g, s, t in zip(graphs, similarity, topics, strict=True)
    ]
    batch = GraphTensors.collate(graphs)
    together = personalization(batch, torch.cat(similarity, 1), torch.cat(topics, 1), config)
    assert torch.equal(together, torch.cat(alone, 1))
    for part in alone:
        assert part.sum().item() == pytest.approx(1 if part.numel() else 0)
    # What comes out can go in.
    sppr(batch, together, torch.zeros(1, 0))


def test_relation_weights():
    cosine = torch.tensor([[1.0, 0.5, 0.0, -1.0]])
    found = relation_weights(cosine, RetrieverConfig(relation_temperature=0.5))
    assert found[0].tolist() == pytest.approx([1, math.exp(-1), math.exp(-2), math.exp(-4)])
    found = relation_weights(cosine, RetrieverConfig(reweight="linear"))
    assert found.tolist() == [[1, 0.5, 0, 0]]


@pytest.mark.parametrize("form", ["exp", "linear"])
def test_a_walk_where_every_cosine_is_negative(form):
    whole = random_graph(2)
    config = RetrieverConfig(reweight=form, personalization="linear")
    rng = torch.Generator().manual_seed(0)
    nodes, relations = (
        -torch.rand(2, size, generator=rng) for size in (whole.num_nodes, whole.num_relations)
    )
    topics = torch.zeros(2, whole.num_nodes, dtype=torch.bool)
    p = personalization(whole, nodes, topics, config)
    weight = relation_weights(relations, config)
    scores = sppr(whole, p, weight).scores
    assert torch.allclose(scores.sum(1), torch.ones(2))
    if form == "linear":  # no edge is left to walk
        assert torch.allclose(scores, p)
    else:
        expected = closed_form(whole, p[0], weight[0], 0.15)
        np.testing.assert_allclose(scores[0], expected, atol=2e-5)
