"""Reductions over the graphs of a batch, against plain loops."""

import math

import pytest
import torch

from bisrqa.graph.tensors import ragged_range
from bisrqa.retrieval.segments import (
    segment_rank,
    segment_softmax,
    segment_sum,
    segment_top_k,
    top_k,
)

PTR = torch.tensor([0, 3, 3, 7, 8])  # graph 1 has no rows


def rows(graph: int) -> range:
    return range(int(PTR[graph]), int(PTR[graph + 1]))


def test_sum():
    value = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    expected = [[sum(line[i] for i in rows(g)) for g in range(4)] for line in value.tolist()]
    assert segment_sum(value, PTR).tolist() == [pytest.approx(line) for line in expected]


def test_softmax_over_kept_rows():
    logits = torch.randn(2, 8, generator=torch.Generator().manual_seed(1)) * 5
    keep = torch.tensor([True, False, True, True, True, False, True, False])
    found = segment_softmax(logits, PTR, keep)
    for question in range(2):
        for graph in range(4):
            weight = {i: math.exp(logits[question, i]) for i in rows(graph) if keep[i]}
            for i in rows(graph):
                expected = weight.get(i, 0.0) / (sum(weight.values()) or 1.0)
                assert found[question, i].item() == pytest.approx(expected, rel=1e-5)
    assert found[:, 7].tolist() == [0, 0]  # a graph of which nothing is kept


def test_softmax_of_large_and_of_few_values():
    logits = torch.tensor([[-1e4, 1e4, 1e4 - 1, -1e4, -1e4, -1e4, -1e4, 3e38]])
    found = segment_softmax(logits, PTR, torch.ones(8, dtype=torch.bool))
    e = 1 / (1 + math.exp(-1))
    assert found[0].tolist() == pytest.approx([0, e, 1 - e, 0.25, 0.25, 0.25, 0.25, 1])
    empty = segment_softmax(
        torch.zeros(2, 0), torch.zeros(4, dtype=torch.long), torch.zeros(0, dtype=torch.bool)
    )
    assert empty.shape == (2, 0)


def test_softmax_gradient():
    logits = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([True, False, True, True, True, False, True, False])
    assert torch.autograd.gradcheck(lambda z: segment_softmax(z, PTR, keep), logits)


def test_rank_and_top_k_by_hand():
    #                     graph 0        graph 2             graph 3
    score = torch.tensor([0.2, 0.5, 0.5, 0.1, 0.9, 0.1, 0.9, -1])
    assert segment_rank(score, PTR).tolist() == [2, 0, 1, 2, 0, 3, 1, 0]
    keep = torch.ones(8, dtype=torch.bool)

    def best(k: int) -> list[int]:
        return segment_top_k(score, PTR, keep, k).nonzero().squeeze(1).tolist()

    assert best(1) == [1, 4, 7]
    assert best(2) == [1, 2, 4, 6, 7]
    assert best(3) == [0, 1, 2, 3, 4, 6, 7]
    keep[[1, 4, 7]] = False
    assert best(1) == [2, 6]
    assert best(9) == [0, 2, 3, 5, 6]


def test_many_ties_go_to_the_smaller_row():
    score = torch.zeros(2000)
    ptr = torch.tensor([0, 500, 2000])
    assert segment_rank(score, ptr).tolist() == [*range(500), *range(1500)]
    kept = segment_top_k(score, ptr, torch.arange(2000) % 2 == 1, 3)
    assert kept.nonzero().squeeze(1).tolist() == [1, 3, 5, 501, 503, 505]


def test_rows_that_are_kept_come_before_others_of_any_score():
    # Dropped rows must not use up places, even where kept ones score minus infinity.
    score = torch.tensor([-torch.inf, 5.0, -torch.inf])
    keep = torch.tensor([False, False, True])
    assert segment_top_k(score, torch.tensor([0, 3]), keep, 3).tolist() == [False, False, True]


def test_ragged_range_by_hand():
    row, number = ragged_range(torch.tensor([5, 2, 9, 0]), torch.tensor([7, 2, 12, 1]))
    assert row.tolist() == [0, 0, 2, 2, 2, 3]
    assert number.tolist() == [5, 6, 9, 10, 11, 0]
    row, number = ragged_range(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert row.tolist() == number.tolist() == []


def test_a_long_sum_loses_nothing():
    value = torch.full((1, 1_000_000), 1e-6)
    assert segment_sum(value, torch.tensor([0, 1_000_000])).item() == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("k", [1, 3, 7, 40, 99])
def test_top_k_settles_ties_by_column(k):
    value = torch.randint(0, 4, (5, 40), generator=torch.Generator().manual_seed(k)).float()
    best, ids = top_k(value, k)
    expected = torch.sort(value, descending=True, stable=True)
    assert ids.tolist() == expected.indices[:, :k].tolist()
    assert best.tolist() == expected.values[:, :k].tolist()
    assert top_k(torch.zeros(2, 0), k)[1].shape == (2, 0)
