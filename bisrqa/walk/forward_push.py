"""Forward push: scores around a few seeds without walking the whole graph.

Mass is moved from a node only while it is worth moving (Andersen, Chung and Lang, 2006, with the
weights of the question). What is never moved bounds the error, which is reported.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.graph.tensors import ragged_range
from bisrqa.walk import native
from bisrqa.walk.graph import WalkGraph
from bisrqa.walk.solve import check_devices, checked_weights


class PushResult(NamedTuple):
    """Scores of the nodes that the mass reached."""

    scores: Tensor
    """Sparse COO, coalesced, [questions, nodes]; rows sum to 1."""
    error: Float[Tensor, " questions"]
    """Bound on the L1 distance from the walk's rest state, at most 2."""
    arcs: Int[Tensor, " questions"]
    """Arcs walked; a pass over the graph would be ``graph.num_arcs``."""


def push(
    graph: WalkGraph,
    seeds: Float[Tensor, "questions nodes"],
    relation_weight: Float[Tensor, "questions relations"],
    *,
    inverse_weight: Float[Tensor, "questions relations"] | None = None,
    restart: float = 0.15,
    threshold: float = 1e-7,
) -> PushResult:
    """Scores of :func:`bisrqa.walk.sppr` for a personalization of few nodes, approximately.

    The number of arcs walked depends on the threshold and on where the seeds lie, not on the size
    of the graph (in plain torch, which a GPU needs, every round looks at all nodes). It is
    a way to retrieve, not a solver: take the whole walk where errors must be small.

    Args:
        graph: One graph; not a batch.
        seeds: The personalization, sparse (any torch layout); rows sum to 1.
        relation_weight: As for :func:`bisrqa.walk.sppr`.
        inverse_weight: As there.
        restart: As there.
        threshold: Mass for each arc of a node that is worth moving. A tenth of it costs up to ten
            times the work.

    Raises:
        ValueError: Values that are negative or not finite, rows that do not sum to 1, shapes that
            do not fit; names the question.
    """
    if graph.num_graphs != 1:
        raise ValueError(f"push works on one graph, got a batch of {graph.num_graphs}")
    if not 0.0 < restart < 1.0:
        raise ValueError(f"restart must lie in (0, 1), got {restart}")
    if not threshold > 0:
        raise ValueError(f"threshold must be positive, got {threshold}")
    check_devices(
        graph, seeds=seeds, relation_weight=relation_weight, inverse_weight=inverse_weight
    )
    if seeds.ndim != 2:
        raise ValueError(f"seeds has shape {list(seeds.shape)}, expected [questions, nodes]")
    seeds = seeds.detach().double()
    seeds = (seeds if seeds.layout == torch.sparse_coo else seeds.to_sparse_coo()).coalesce()
    weight, inverse = checked_weights(graph, len(seeds), relation_weight, inverse_weight)
    _check_seeds(seeds, graph.num_nodes)
    weight, inverse = weight.detach().double(), inverse.detach().double()
    if graph.num_relations:  # a common factor cancels, and tiny numbers would divide to infinity
        most = torch.maximum(weight.amax(1), inverse.amax(1))[:, None]
        most = torch.where(most > 0, most, 1.0)
        weight, inverse = weight / most, inverse / most
    if native.available() and graph.device.type == "cpu":
        found = native.push(graph, seeds, weight, inverse, restart=restart, threshold=threshold)
    else:
        found = _in_rounds(graph, seeds, weight, inverse, restart, threshold)
    return PushResult(*found)


def _check_seeds(seeds: Tensor, nodes: int) -> None:
    if seeds.shape[1] != nodes:
        raise ValueError(f"seeds has shape {list(seeds.shape)}, but there are {nodes} nodes")
    (row, node), value = seeds.indices(), seeds.values()
    bad = ~(torch.isfinite(value) & (value >= 0))
    if bad.any():
        at = int(bad.nonzero()[0])
        raise ValueError(
            f"seeds must be finite and not negative, got {value[at].item()} "
            f"at question {int(row[at])}, position {int(node[at])}"
        )
    total = value.new_zeros(len(seeds)).index_add(0, row, value)
    off = (total - 1).abs() > 1e-4
    if off.any():
        at = int(off.nonzero()[0])
        raise ValueError(f"seeds of question {at} must sum to 1, got {total[at].item():.6f}")


def _in_rounds(
    graph: WalkGraph,
    seeds: Tensor,
    weight: Tensor,
    inverse: Tensor,
    restart: float,
    threshold: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in plain torch, on any device: all nodes that are worth it move at once.

    Needs a dense [questions, nodes] of scores and one of what is left.
    """
    out, keep = graph.outward, 1 - restart
    flip = int(graph.both_ways)
    questions, nodes = seeds.shape
    w = torch.stack([weight, inverse], 2).flatten(1)  # arc relations 2 r and 2 r + 1
    loops = w.new_zeros(questions, nodes).index_add(
        1, out.loop_node.long(), w[:, out.loop_rel.long()]
    )
    rest = seeds.to_dense().flatten()
    scores = torch.zeros_like(rest)
    arcs = torch.zeros(questions, dtype=torch.long, device=rest.device)
    degree = out.ptr.diff()
    least = threshold * (degree + 1).double().repeat(questions)
    moving = (rest > 0).nonzero().squeeze(1)  # a seed always moves
    while len(moving):
        question, node = moving // nodes, moving % nodes
        count = degree[node]
        origin, arc = ragged_range(out.ptr[node], out.ptr[node + 1])
        value = w[question[origin], out.rel[arc].long() ^ flip]
        own = loops[question, node]
        size = own.index_add(0, origin, value)
        stays = size == 0
        size = torch.where(stays, 1.0, size)
        mass = rest[moving] / (1 - keep * own / size)  # once round each self-loop for ever
        scores[moving] += mass
        rest[moving] = 0
        flow = (keep * mass / size)[origin] * value
        rest = rest.index_add(0, question[origin] * nodes + out.src[arc].long(), flow)
        arcs = arcs.index_add(0, question, torch.where(stays, 0, count))
        moving = (rest > least).nonzero().squeeze(1)
    scores, missing = scores.view(questions, nodes), rest.view(questions, nodes).sum(1) / restart
    total = scores.sum(1)
    error = 2 * missing / (total + missing)
    scores = scores / total[:, None]
    return scores.to_sparse_coo(), error, arcs
