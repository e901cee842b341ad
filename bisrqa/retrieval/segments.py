"""Reductions over the graphs of a block-diagonal batch, along the last axis."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.graph.tensors import batch_of


def segment_sum(
    value: Float[Tensor, "questions rows"], batch: Int[Tensor, " rows"], graphs: int
) -> Float[Tensor, "questions graphs"]:
    """Sum of each graph's rows."""
    return value.new_zeros(len(value), graphs).index_add(1, batch, value)


def segment_softmax(
    logits: Float[Tensor, "questions rows"],
    batch: Int[Tensor, " rows"],
    graphs: int,
    keep: Bool[Tensor, " rows"],
) -> Float[Tensor, "questions rows"]:
    """Softmax within each graph over the rows of ``keep``; zero on all others."""
    logits = logits.masked_fill(~keep, -torch.inf)
    largest = logits.new_full((len(logits), graphs), -torch.inf)
    largest = largest.scatter_reduce(1, batch.expand_as(logits), logits, "amax")
    largest = torch.where(torch.isfinite(largest), largest, 0.0).detach()
    value = torch.exp(logits - largest[:, batch])
    total = segment_sum(value, batch, graphs)
    return value / torch.where(total > 0, total, 1.0)[:, batch]


def segment_top_k(
    score: Float[Tensor, " rows"],
    ptr: Int[Tensor, " graphs_and_one"],
    keep: Bool[Tensor, " rows"],
    k: int,
) -> Bool[Tensor, " rows"]:
    """Mark the ``k`` best rows of ``keep`` in each graph; ties go to the smaller row."""
    rank = segment_rank(score.masked_fill(~keep, -torch.inf), ptr)
    return (rank < k) & keep


def segment_rank(
    score: Float[Tensor, " rows"], ptr: Int[Tensor, " graphs_and_one"]
) -> Int[Tensor, " rows"]:
    """Place of each row within its graph, 0 for the highest score; ties go to the smaller row."""
    batch = batch_of(ptr, len(score))
    order = torch.sort(score, descending=True, stable=True).indices
    order = order[torch.sort(batch[order], stable=True).indices]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - ptr[batch[order]]
    return rank
