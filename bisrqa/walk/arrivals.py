"""Over which arcs the mass of a walk arrives."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.walk.graph import WalkGraph
from bisrqa.walk.plain import arc_weights, leaving


class Arrivals(NamedTuple):
    """What comes in at each node in one more step of the walk, and what it is worth."""

    leaving: Float[Tensor, "questions nodes"]
    """Weight of the arcs that lead away from each node; 1 where they weigh nothing."""
    mass: Float[Tensor, "questions nodes"]
    """Arriving over arcs from other nodes."""
    worth: Float[Tensor, "questions nodes"]
    """The same, what comes over each arc times the arc's worth."""


def arrivals(
    graph: WalkGraph,
    scores: Float[Tensor, "questions nodes"],
    weight: Float[Tensor, "questions relations"],
    inverse: Float[Tensor, "questions relations"],
    worth: Float[Tensor, "questions relations"],
    inverse_worth: Float[Tensor, "questions relations"],
) -> Arrivals:
    """Take one step from a mass, and weigh what arrives by the relation that it came over.

    Plain torch, on any device, with gradients; holds some numbers for every arc and question.

    Args:
        graph: One graph or a batch, walked both ways.
        scores: Where the mass is.
        weight: Of an arc along an edge of each relation.
        inverse: The same, against the edge.
        worth: By what mass counts that arrives along an edge of each relation.
        inverse_worth: The same, against the edge.
    """
    w, value, src, kind = (
        arc_weights(weight, inverse),
        arc_weights(worth, inverse_worth),
        graph.src.long(),
        graph.rel.long(),
    )
    total = leaving(graph, w)
    total = torch.where(total == 0, 1.0, total)
    flow = w[kind] / total[src] * scores.T[src]
    mass, counted = (
        torch.segment_reduce(some, "sum", offsets=graph.ptr, initial=0)
        for some in (flow, flow * value[kind])
    )
    return Arrivals(total.T, mass.T, counted.T)
