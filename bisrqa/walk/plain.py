"""The ``torch`` back end: the walk as it is defined, readable and differentiable."""

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
    restart: float | Float[Tensor, " questions"],
    tol: float,
    max_steps: int,
) -> tuple[
    Float[Tensor, "questions nodes"],
    Int[Tensor, "questions graphs"],
    Float[Tensor, "questions graphs"],
]:
    """Power iteration; arguments and result as in :func:`bisrqa.walk.sppr`.

    Nodes stand in rows and questions in columns in here. Sums over the arcs into a node are
    segment sums, so that they come out alike every time on a CUDA device, too.
    """
    nodes, batch = graph.num_nodes, graph.node_batch
    src, loop = graph.src.long(), graph.loop_node.long()
    p = personalization.T

    def per_node(flow: Tensor) -> Tensor:
        return torch.segment_reduce(flow, "sum", offsets=graph.ptr, initial=0)

    def per_graph(mass: Tensor) -> Tensor:
        return torch.segment_reduce(mass, "sum", offsets=graph.node_ptr, initial=0)

    w = arc_weights(weight, inverse)
    total = leaving(graph, w)
    dangling = total == 0
    # Not by way of 1 / total, which is infinite where weights are below the normal numbers.
    total = torch.where(dangling, 1.0, total)
    share, loop_share = w[graph.rel.long()] / total[src], w[graph.loop_rel.long()] / total[loop]

    # Near 1 is not enough for the bound on the error.
    p = p / per_graph(p).clamp_min(torch.finfo(p.dtype).tiny)[batch] if nodes else p
    scores = p
    shape = graph.num_graphs, p.shape[1]
    steps = torch.zeros(shape, dtype=torch.long, device=p.device)
    residual = torch.where(graph.node_ptr.diff() > 0, torch.inf, 0.0).to(p)[:, None].expand(shape)
    for _ in range(max_steps if nodes else 0):
        active = residual >= tol
        if not active.any():
            break
        spread = per_node(share * scores[src]).index_add(0, loop, loop_share * scores[loop])
        back = per_graph(scores * dangling)[batch]
        new = (1 - restart) * (spread + back * p) + restart * p
        # Rounding would let the mass drift by about 1e-7 a step: hold it at 1.
        new = new / per_graph(new).clamp_min(torch.finfo(new.dtype).tiny)[batch]
        new = torch.where(active[batch], new, scores)
        change = per_graph((new - scores).abs()).detach()
        residual = torch.where(active, change, residual)
        steps = steps + active
        scores = new
    return scores.T, steps.T, residual.T


def arc_weights(
    along: Float[Tensor, "questions relations"], against: Float[Tensor, "questions relations"]
) -> Float[Tensor, "kinds questions"]:
    """A row for each kind of arc: along relation r in row 2 r, against it in row 2 r + 1."""
    return torch.stack([along.T, against.T], 1).flatten(0, 1)


def leaving(
    graph: WalkGraph, weight: Float[Tensor, "kinds questions"]
) -> Float[Tensor, "nodes questions"]:
    """Weight of all arcs that lead away from each node, its self-loops with them."""
    kind = graph.rel.long()
    if graph.both_ways:  # what leads away is what leads in, walked backwards
        total = torch.segment_reduce(weight[kind ^ 1], "sum", offsets=graph.ptr, initial=0)
    else:
        total = weight.new_zeros(graph.num_nodes, weight.shape[1])
        total = total.index_add(0, graph.src.long(), weight[kind])
    return total.index_add(0, graph.loop_node.long(), weight[graph.loop_rel.long()])
