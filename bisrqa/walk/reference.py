"""The ``scipy`` back end: the walk in float64 over sparse matrices, one question at a time."""

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.walk.graph import WalkGraph


def solve(
    graph: WalkGraph,
    personalization: Float[Tensor, "questions nodes"],
    weight: Float[Tensor, "questions relations"],
    inverse: Float[Tensor, "questions relations"],
    *,
    restart: float,
    tol: float,
    max_steps: int,
) -> tuple[
    Float[Tensor, "questions nodes"],
    Int[Tensor, "questions graphs"],
    Float[Tensor, "questions graphs"],
]:
    """Power iteration; arguments and result as in :func:`bisrqa.walk.sppr`."""
    nodes, graphs = graph.num_nodes, graph.num_graphs
    ptr, node_ptr, src, rel, loop, loop_rel = (
        getattr(graph, name).numpy() for name in "ptr node_ptr src rel loop_node loop_rel".split()
    )
    batch = graph.node_batch.numpy()
    every = np.stack([weight.numpy(), inverse.numpy()], 2).reshape(
        len(weight), 2 * graph.num_relations
    )
    scores = np.empty((len(every), nodes))
    steps = np.zeros((len(every), graphs), dtype=np.int64)
    residual = np.where(np.diff(node_ptr) > 0, np.inf, 0.0)[None].repeat(len(every), 0)

    def per_graph(mass: np.ndarray) -> np.ndarray:
        return np.bincount(batch, mass, graphs)

    for question, w in enumerate(every.astype(np.float64)):
        total = np.bincount(loop, w[loop_rel], nodes) + np.bincount(src, w[rel], nodes)
        dangling = total == 0
        total[dangling] = 1
        walk = scipy.sparse.csr_array((w[rel] / total[src], src, ptr), shape=(nodes, nodes))
        loop_share = np.bincount(loop, w[loop_rel] / total[loop], nodes)
        p = personalization[question].numpy().astype(np.float64)
        p /= np.where(per_graph(p) > 0, per_graph(p), 1)[batch]
        now, moved = p, residual[question]
        for _ in range(max_steps if nodes else 0):
            active = moved >= tol
            if not active.any():
                break
            back = per_graph(now * dangling)[batch]
            new = (1 - restart) * (walk @ now + loop_share * now + back * p) + restart * p
            new = np.where(active[batch], new, now)
            moved[active] = per_graph(np.abs(new - now))[active]
            steps[question] += active
            now = new
        scores[question] = now
    return (
        torch.from_numpy(scores).to(personalization),
        torch.from_numpy(steps),
        torch.from_numpy(residual).to(personalization),
    )
