"""What people use in place of the walk, each as its own manual has it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from walk_graphs import Case

RESTART, TOL = 0.15, 1e-6


def shares(case: Case, question: int, kind: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Each edge's share of the mass of its source, and the nodes that lead nowhere."""
    weight = case.weight[question].astype(kind)[case.rel]
    total = np.bincount(case.src, weight, case.nodes)
    dangling = total == 0
    return (weight / total[case.src]).astype(kind), dangling


def power(walk, p: np.ndarray, dangling: np.ndarray, tol: float = TOL) -> np.ndarray:
    """Power iteration with a matrix whose columns are sources; stops as the walk does."""
    now, kind = p, p.dtype.type
    while True:
        new = walk @ now
        new *= kind(1 - RESTART)
        new += (kind(1 - RESTART) * now[dangling].sum() + kind(RESTART)) * p
        moved = np.abs(new - now).sum(dtype=np.float64)
        now = new
        if moved < tol:
            return now


def rebuilt(case: Case, question: int = 0, tol: float = TOL) -> np.ndarray:
    """The matrix of the question made from triples: what a first implementation does."""
    share, dangling = shares(case, question)
    walk = sp.csr_array((share, (case.dst, case.src)), shape=(case.nodes, case.nodes))
    return power(walk, case.p[question], dangling, tol)


class Rescaled:
    """The pattern of the matrix made once, its values anew for each question."""

    def __init__(self, case: Case, kind: type):
        self.case, self.kind = case, kind
        order = np.lexsort((case.src, case.dst))
        self.src, self.rel = case.src[order].astype(np.int32), case.rel[order]
        self.ptr = np.r_[0, np.cumsum(np.bincount(case.dst, minlength=case.nodes))]
        self.ptr = self.ptr.astype(np.int32)

    def __call__(self) -> np.ndarray:
        case, kind = self.case, self.kind
        value = case.weight[0].astype(kind)[self.rel]
        total = np.bincount(self.src, value, case.nodes)
        dangling = total == 0
        value *= np.where(dangling, 0, 1 / np.where(dangling, 1, total)).astype(kind)[self.src]
        walk = sp.csr_array((value, self.src, self.ptr), shape=(case.nodes, case.nodes))
        return power(walk, case.p[0].astype(kind), dangling)


def igraph_walk(case: Case, graph: Any = None) -> Callable[[], np.ndarray]:
    """PRPACK, to its fixed tolerance of 1e-10; turning arrays into lists is not counted."""
    import igraph

    ends = np.stack([case.src, case.dst], 1)
    if graph is None and case.nodes > 10_000:  # one graph for all questions
        graph = igraph.Graph(n=case.nodes, edges=ends, directed=True)
    reset, weights = case.p[0].tolist(), case.weight[0][case.rel].tolist()

    def run() -> np.ndarray:
        whole = graph or igraph.Graph(n=case.nodes, edges=ends, directed=True)
        return np.array(
            whole.personalized_pagerank(damping=1 - RESTART, reset=reset, weights=weights)
        )

    return run


def rustworkx_walk(case: Case, *, given: bool) -> Callable[[], np.ndarray]:
    """PageRank of rustworkx, with its graph made beforehand or each time."""
    import rustworkx

    edges = list(
        zip(*(v.tolist() for v in (case.src, case.dst, case.weight[0][case.rel])), strict=True)
    )
    p = dict(enumerate(case.p[0].tolist()))

    def build() -> Any:
        graph = rustworkx.PyDiGraph()
        graph.add_nodes_from(range(case.nodes))
        graph.add_edges_from(edges)
        return graph

    known = build() if given else None

    def run() -> np.ndarray:
        ranks = rustworkx.pagerank(
            known or build(), alpha=1 - RESTART, weight_fn=float, personalization=p,
            tol=TOL / case.nodes, max_iter=500
        )  # fmt: skip
        return np.array([ranks[node] for node in range(case.nodes)])

    return run


def networkx_walk(case: Case, *, given: bool) -> Callable[[], np.ndarray]:
    """PageRank of networkx, with its graph made beforehand or each time."""
    import networkx

    # Parallel edges are added up first: a DiGraph would keep the last one.
    weights = (case.weight[0][case.rel], (case.src, case.dst))
    merged = sp.coo_array(sp.csr_array(weights, shape=(case.nodes, case.nodes)))
    edges = list(zip(*(v.tolist() for v in (*merged.coords, merged.data)), strict=True))
    p = dict(enumerate(case.p[0].tolist()))

    def build() -> Any:
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(case.nodes))
        graph.add_weighted_edges_from(edges)
        return graph

    known = build() if given else None

    def run() -> np.ndarray:
        ranks = networkx.pagerank(
            known or build(), alpha=1 - RESTART, personalization=p, tol=TOL / case.nodes,
            max_iter=500
        )  # fmt: skip
        return np.array([ranks[node] for node in range(case.nodes)])

    return run


def pcst(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges, prizes and costs as G-Retriever gives them to ``pcst_fast`` (top 3 and top 5)."""
    half = len(case.src) // 2
    src, dst, weight = case.src[:half], case.dst[:half], case.weight[0][case.rel[:half]]
    prizes = np.zeros(case.nodes)
    prizes[np.argsort(-case.p[0])[:3]] = 3, 2, 1
    edge_prize, last = np.zeros(half), 5.0
    for rank, value in enumerate(np.unique(weight)[::-1][:5]):
        tied = weight == value
        edge_prize[tied] = min((5 - rank) / tied.sum(), last)
        last = edge_prize[tied][0] * 0.99
    cost = min(0.5, edge_prize.max() * 0.995)
    low, high = edge_prize <= cost, np.flatnonzero(edge_prize > cost)
    middle = case.nodes + np.arange(len(high))  # an edge with a prize becomes a node
    edges = np.r_[
        np.stack([src[low], dst[low]], 1),
        np.stack([src[high], middle], 1),
        np.stack([middle, dst[high]], 1),
    ]
    costs = np.r_[cost - edge_prize[low], np.zeros(2 * len(high))]
    return edges.astype(np.int64), np.r_[prizes, edge_prize[high] - cost], costs


def hops(cases: list[Case]) -> Callable[[], Any]:
    """The neighbourhood of each case's three best nodes."""
    from torch_geometric.utils import k_hop_subgraph

    given = [
        (
            torch.from_numpy(np.argsort(-case.p[0])[:3].copy()),
            torch.from_numpy(np.stack([case.src, case.dst])),
            case.nodes,
        )
        for case in cases
    ]
    return lambda: [k_hop_subgraph(seeds, 2, e, num_nodes=n) for seeds, e, n in given]
