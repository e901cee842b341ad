"""What arrives in one step, against a loop over the edges."""

import pytest
import torch
from walk_cases import random_edges, random_graph, random_inputs

from bisrqa.walk import WalkGraph, arrivals


def plain(edges, scores, weight, inverse, worth, inverse_worth):
    """Mass and worth that arrive at each node from others, of one question."""
    edge_index, edge_type, nodes = edges
    triples = set(zip(*edge_index.tolist(), edge_type.tolist(), strict=True))
    arcs = [(h, t, weight[r], worth[r]) for h, t, r in triples]
    arcs += [(t, h, inverse[r], inverse_worth[r]) for h, t, r in triples if h != t]
    leaving = [sum(float(w) for u, _, w, _ in arcs if u == node) for node in range(nodes)]
    mass, counted = [0.0] * nodes, [0.0] * nodes
    for u, v, w, value in arcs:
        if u != v and leaving[u]:
            flow = float(scores[u] * w) / leaving[u]
            mass[v] += flow
            counted[v] += flow * float(value)
    return leaving, mass, counted


@pytest.mark.parametrize("seed", range(4))
def test_arrivals_agree_with_a_loop(seed):
    graph = random_graph(seed)
    scores, weight, inverse = random_inputs(graph, 3, seed, dtype=torch.float64)
    rng = torch.Generator().manual_seed(seed)
    worth = torch.rand(2, 3, graph.num_relations, generator=rng, dtype=torch.float64)
    found = arrivals(graph, scores, weight, inverse, *worth)
    for q in range(3):
        parts = (weight[q], inverse[q], worth[0, q], worth[1, q])
        leaving, mass, counted = plain(random_edges(seed), scores[q], *parts)
        assert found.mass[q].tolist() == pytest.approx(mass)
        assert found.worth[q].tolist() == pytest.approx(counted)
        assert found.leaving[q].tolist() == pytest.approx([value or 1.0 for value in leaving])


def test_gradients_reach_everything():
    edge_index, edge_type = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 1, 1])
    graph = WalkGraph.from_edges(edge_index, edge_type, 3)
    rng = torch.Generator().manual_seed(0)
    shapes = [(2, 3)] + [(2, 2)] * 4
    values = [torch.rand(s, generator=rng, dtype=torch.float64) + 0.1 for s in shapes]
    assert torch.autograd.gradcheck(
        lambda *v: tuple(arrivals(graph, *v)), [v.requires_grad_() for v in values]
    )
