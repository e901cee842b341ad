"""What the question makes of a graph: by hand, in batches, and at the edges."""

import math

import pytest
import torch

from bisrqa.config import RetrieverConfig
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.sppr import edge_scores, personalization, relation_weights
from bisrqa.walk import sppr


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


FIVE = graph(5, [(0, 0, 1), (1, 1, 0), (2, 2, 1), (3, 0, 3)], 3)


def test_edge_scores_by_hand():
    """The weaker end's mass times the weight of the relation; the best edge of a question has 1."""
    scores = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.1], [0, 0, 0.5, 0.5, 0]])
    weight = torch.tensor([[1.0, 0.5, 2], [0, 1, 1]])
    question, edge = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 2, 3, 0, 2])
    found = edge_scores(FIVE, scores, weight, question, edge).tolist()
    assert found == pytest.approx([0.15 / 0.2, 1, 0.1 / 0.2, 0, 0])
    # Of a batch there is one row, and each of its graphs has a best edge.
    batch = GraphTensors.collate([FIVE, FIVE])
    row = torch.cat([scores[0], scores[0] / 2])[None]
    question, edge = torch.tensor([0, 1, 1]), torch.tensor([1, 5, 6])
    found = edge_scores(batch, row, weight[:1].repeat(1, 2), question, edge)
    assert found.tolist() == pytest.approx([1, 0.75, 1])


def restart(whole: GraphTensors, similarity, topics, config):
    named = whole.node_kind != NodeKind.MEDIATOR
    return personalization(similarity, topics, named, whole.node_ptr, config)


def semantic(similarity, topics=(), mediators=(), **changes):
    whole = graph(len(similarity), [], 0, mediators)
    mask = torch.tensor([[i in topics for i in range(len(similarity))]], dtype=torch.bool)
    config = RetrieverConfig(**changes)
    p = restart(whole, torch.tensor([similarity]), mask, config)
    return p[0].tolist()


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
    alone = [restart(g, s, t, config) for g, s, t in zip(graphs, similarity, topics, strict=True)]
    batch = GraphTensors.collate(graphs)
    together = restart(batch, torch.cat(similarity, 1), torch.cat(topics, 1), config)
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
    config = RetrieverConfig(reweight=form, personalization="linear")
    rng = torch.Generator().manual_seed(0)
    nodes, relations = (-torch.rand(2, size, generator=rng) for size in (5, 3))
    topics = torch.zeros(2, 5, dtype=torch.bool)
    p = restart(FIVE, nodes, topics, config)
    scores = sppr(FIVE, p, relation_weights(relations, config)).scores
    assert torch.allclose(scores.sum(1), torch.ones(2))
    # With `linear` no edge is left to walk.
    assert torch.allclose(scores, p) == (form == "linear")
