"""Reductions over the graphs of a block-diagonal batch, along the last axis."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from bisrqa.graph.tensors import batch_of


def segment_sum(
    value: Float[Tensor, "questions rows"], ptr: Int[Tensor, " graphs_and_one"]
) -> Float[Tensor, "questions graphs"]:
    """Sum of each graph's rows, one after another and in double precision.

    So it is the same to the last bit in every company, and a long sum is as good as a short one.
    """
    return _reduce(value.double(), "sum", ptr).to(value)


def segment_max(
    value: Float[Tensor, "questions rows"], ptr: Int[Tensor, " graphs_and_one"]
) -> Float[Tensor, "questions graphs"]:
    """The largest of each graph's rows."""
    return _reduce(value, "max", ptr)


def spread(
    value: Shaped[Tensor, "questions graphs"], ptr: Int[Tensor, " graphs_and_one"], rows: int
) -> Shaped[Tensor, "questions _"]:
    """The value of each row's graph; of a single graph as one column."""
    return value if len(ptr) == 2 else value[:, batch_of(ptr, rows)]


def segment_softmax(
    logits: Float[Tensor, "questions rows"],
    ptr: Int[Tensor, " graphs_and_one"],
    keep: Bool[Tensor, "*questions rows"],
) -> Float[Tensor, "questions rows"]:
    """Softmax within each graph over the rows of ``keep``; zero on all others."""
    rows = logits.shape[1]
    logits = logits.masked_fill(~keep, -torch.inf)
    largest = _reduce(logits.detach(), "max", ptr)
    largest = torch.where(torch.isfinite(largest), largest, 0.0)
    value = torch.exp(logits - spread(largest, ptr, rows))
    total = segment_sum(value, ptr)
    return value / spread(torch.where(total > 0, total, 1.0), ptr, rows)


def _reduce(value: Tensor, how: str, ptr: Tensor) -> Tensor:
    if not value.numel():  # which torch refuses
        return value.new_zeros(len(value), len(ptr) - 1)
    offsets = ptr.expand(len(value), -1).contiguous()
    return torch.segment_reduce(value, how, offsets=offsets, axis=1)


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


def group_rank(score: Float[Tensor, " rows"], group: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """As :func:`segment_rank`, of rows in any order that say which group they are of."""
    order = torch.sort(score, descending=True, stable=True).indices
    order = order[torch.sort(group[order], stable=True).indices]
    ordered = group[order]
    rank = torch.empty_like(order)
    first = torch.searchsorted(ordered, ordered)
    rank[order] = torch.arange(len(order), device=order.device) - first
    return rank


def top_k(
    value: Float[Tensor, "questions columns"], k: int
) -> tuple[Float[Tensor, "questions found"], Int[Tensor, "questions found"]]:
    """The ``k`` largest of each row (all, where there are fewer), best first, and their columns.

    Unlike with ``torch.topk``, equal values are settled by column, both in order and in choice.
    """
    k = min(k, value.shape[1])
    ids = torch.zeros(len(value), k, dtype=torch.long, device=value.device)
    if ids.numel():
        # All at least as good as the k-th; of those equal to it, the first.
        question, column = (value >= value.topk(k).values[:, -1:]).nonzero().unbind(1)
        ptr = torch.searchsorted(question, torch.arange(len(value) + 1, device=value.device))
        rank = segment_rank(value[question, column], ptr)
        keep = rank < k
        ids[question[keep], rank[keep]] = column[keep]
    return value.gather(1, ids), ids


def standardise(
    value: Float[Tensor, " rows"], group: Int[Tensor, " rows"], groups: int
) -> Float[Tensor, " rows"]:
    """Less the group's mean and over its standard deviation; 0 where all are equal."""
    count = torch.bincount(group, minlength=groups).clamp_min(1).to(value)
    mean = value.new_zeros(groups).index_add(0, group, value) / count
    off = value - mean[group]
    variance = value.new_zeros(groups).index_add(0, group, off.square()) / count
    return off / variance.sqrt().clamp_min(1e-6)[group]
