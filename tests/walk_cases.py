"""Graphs and inputs that the tests of the walk share, and the walk in its plainest form."""

import numpy as np
import torch

from bisrqa.walk import WalkGraph


def random_edges(seed: int, nodes: int | None = None) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A multigraph with self-loops, parallel and repeated edges, and isolated nodes."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(4, 40)) if nodes is None else nodes
    linked = max(nodes - 2, 1)
    edges = [(h, int(rng.integers(5)), t) for h, t in rng.integers(0, linked, (3 * linked, 2))]
    edges += [(0, 3, 0), (0, 0, linked - 1), (0, 1, linked - 1), (linked - 1, 1, 0), edges[0]]
    table = torch.tensor(edges)
    return table[:, [0, 2]].T.contiguous(), table[:, 1].contiguous(), nodes


def random_graph(seed: int, nodes: int | None = None, *, both_ways: bool = True) -> WalkGraph:
    """Of six relations, the last of which occurs nowhere."""
    edge_index, edge_type, nodes = random_edges(seed, nodes)
    return WalkGraph.from_edges(edge_index, edge_type, nodes, num_relations=6, both_ways=both_ways)


def random_inputs(graph: WalkGraph, questions: int, seed: int, dtype=torch.float32):
    """Personalization, and weights along and against edges; half of all are zero."""
    rng = torch.Generator().manual_seed(seed)
    p = torch.rand(questions, graph.num_nodes, generator=rng, dtype=dtype)
    p[p < 0.5] = 0
    p[:, 0] += 0.1
    weights = torch.rand(2, questions, graph.num_relations, generator=rng, dtype=dtype)
    weights[weights < 0.4] = 0  # whole nodes lose their arcs
    return p / p.sum(1, keepdim=True), weights[0], weights[1]


def transition(edges, p, weight, inverse, both_ways: bool) -> np.ndarray:
    """Dense P of one question, from the edges as they came; row u says where u's mass goes."""
    edge_index, edge_type, nodes = edges
    triples = set(zip(*edge_index.tolist(), edge_type.tolist(), strict=True))
    p, weight, inverse = (np.asarray(t, dtype=np.float64) for t in (p, weight, inverse))
    walk = np.zeros((nodes, nodes))
    for head, tail, kind in triples:
        walk[head, tail] += weight[kind]
        if both_ways and head != tail:
            walk[tail, head] += inverse[kind]
    total = walk.sum(1, keepdims=True)
    return np.where(total > 0, walk / np.where(total > 0, total, 1), p[None])


def closed_form(edges, p, weight, inverse, restart: float, both_ways: bool = True) -> np.ndarray:
    """The rest state p (I - (1-c) P)^-1 c of one question."""
    walk = transition(edges, p, weight, inverse, both_ways)
    p = np.asarray(p, dtype=np.float64)
    return restart * p @ np.linalg.inv(np.eye(len(p)) - (1 - restart) * walk)
