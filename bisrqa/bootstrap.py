"""Bootstrap intervals: of scores over a stream of questions, and of differences between systems.

Intervals are at 95 % and take the percentiles of the resampled scores. Draws are seeded, so the
same scores give the same intervals. Where all questions have the same score, the interval is a
point: no resampling can show what was never seen.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

LEVELS = (0.025, 0.975)
REPLICATES, RESAMPLES = 1_000, 10_000
SEED = 0
CHUNK_QUESTIONS = 512
CHUNK_DRAWS = 2**22

# The inverse of the Poisson(1) distribution at 65536 even steps: a random 16-bit number picks a
# weight, ten times faster than drawing it. The mean is 1 to within 1e-5.
_STEPS = 2**16
_CUMULATIVE = np.cumsum([math.exp(-1) / math.factorial(count) for count in range(16)])
_WEIGHT = np.searchsorted(_CUMULATIVE, (np.arange(_STEPS) + 0.5) / _STEPS).astype(np.float32)


class Share(NamedTuple):
    """What one question adds to a score that divides two sums over all questions."""

    part: float
    whole: float


class Tally:
    """Scores over questions that come one by one, in memory that does not grow with them.

    A score is the mean of numbers, or the ratio of the sums where questions give a ``Share``.
    Intervals come from the Poisson bootstrap: in each replicate every question has a weight drawn
    from Poisson(1), so only sums are kept, and how many questions will come need not be known.

    Args:
        replicates: 0 for scores without intervals.
    """

    def __init__(self, replicates: int = 0):
        self.num_questions = 0
        self._replicates = replicates
        self._rng = np.random.default_rng(SEED)
        self._names: list[str] = []
        self._shares: list[str] = []
        self._rows: list[list[float]] = []
        # A row is: 1, the parts of all scores, the wholes of those that are shares.
        self._sums = np.zeros(0)
        self._resampled = np.zeros((replicates, 0))

    def add(self, scores: Mapping[str, float | Share]) -> None:
        """Take in one question; all have scores of the same names and kinds."""
        if not self._names:
            self._names = list(scores)
            self._shares = [name for name in scores if isinstance(scores[name], Share)]
            width = 1 + len(self._names) + len(self._shares)
            self._sums = np.zeros(width)
            self._resampled = np.zeros((self._replicates, width))
        parts = [v[0] if isinstance(v, Share) else v for v in scores.values()]
        wholes = [scores[name][1] for name in self._shares]  # pyright: ignore[reportIndexIssue]
        self._rows.append([1.0, *parts, *wholes])
        self.num_questions += 1
        if len(self._rows) == CHUNK_QUESTIONS:
            self._flush()

    def scores(self) -> dict[str, float]:
        """Percentages, rounded to 2 digits."""
        self._flush()
        values = self._divided(self._sums[None])[0].tolist()
        return {name: round(value, 2) for name, value in zip(self._names, values, strict=True)}

    def intervals(self) -> dict[str, list[float]]:
        """Low and high end for each score, percentages rounded to 2 digits."""
        self._flush()
        # With very few questions a replicate may have drawn none of them.
        drawn = self._resampled[self._resampled[:, 0] > 0]
        ends = np.quantile(self._divided(drawn), LEVELS, axis=0).round(2).T.tolist()
        return dict(zip(self._names, ends, strict=True))

    def _divided(self, sums: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows scores"]:
        parts, wholes = np.split(sums[:, 1:], [len(self._names)], axis=1)
        below = np.repeat(sums[:, :1], len(self._names), axis=1)
        below[:, [self._names.index(name) for name in self._shares]] = wholes
        return np.divide(100 * parts, below, out=np.zeros_like(parts), where=below > 0)

    def _flush(self) -> None:
        if not self._rows:
            return
        rows = np.array(self._rows)
        self._rows = []
        self._sums += rows.sum(axis=0)
        if self._replicates:
            shape = (self._replicates, len(rows))
            draws = self._rng.integers(_STEPS, size=shape, dtype=np.uint16)
            self._resampled += _WEIGHT[draws] @ rows.astype(np.float32)


class Paired(NamedTuple):
    """What resampling questions says about mean differences; one entry for each column."""

    low: Float[np.ndarray, " columns"]
    high: Float[np.ndarray, " columns"]
    p: Float[np.ndarray, " columns"]
    """Two-sided: twice the share of resamples on the other side of 0, 0 itself included."""


def paired(
    differences: Float[np.ndarray, "questions columns"], resamples: int = RESAMPLES
) -> Paired:
    """Interval and p of each column's mean, questions drawn with replacement.

    All columns see the same draws. p is at least ``2 / (resamples + 1)``.
    """
    num_questions = len(differences)
    rng = np.random.default_rng(SEED)
    size = max(1, CHUNK_DRAWS // num_questions)
    means = []
    for start in range(0, resamples, size):
        rows = min(size, resamples - start)
        drawn = rng.integers(num_questions, size=(rows, num_questions))
        drawn += num_questions * np.arange(rows)[:, None]
        count = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        means.append(count.astype(float) @ differences / num_questions)
    mean = np.concatenate(means)
    low, high = np.quantile(mean, LEVELS, axis=0)
    beyond = np.minimum((mean <= 0).sum(axis=0), (mean >= 0).sum(axis=0))
    return Paired(low, high, np.minimum(1.0, 2 * (beyond + 1) / (resamples + 1)))
