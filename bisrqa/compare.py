"""Two or more predictions files, question by question: is one better, and on which questions?

Every file is compared with the first. All scores are of the same questions, so the tests are
paired: they look at differences within a question, which vary much less than the scores do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bisrqa import bootstrap, metrics, report, waterfall
from bisrqa.predictions import read_predictions, split_golds

METRICS = ("strict.hit", "strict.f1", "rog.hit", "rog.f1")

Id = str | int


@dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """What is kept of a predictions file."""

    name: str
    """Its path, as it was given."""
    rows: dict[Id, int]
    """Row of each question."""
    scores: Float[np.ndarray, "questions metrics"]
    """Fractions."""
    golds: list[int]
    """Hash of the set of golds."""
    classes: list[str]
    """Of the waterfall; empty unless asked for."""


def compare(
    files: Sequence[str],
    names: Sequence[str] = METRICS,
    *,
    intersect: bool = False,
    num_listed: int = 0,
    resamples: int = bootstrap.RESAMPLES,
) -> dict[str, Any]:
    """Compare each further file with the first.

    Args:
        files: Two or more predictions files, with ids.
        names: Scores that a single question has, ``metrics.names()``.
        intersect: Compare the questions that all files have; otherwise they must be the same.
        num_listed: How many questions won and lost to show in full, by the first score.
        resamples: Of the bootstrap.

    Returns:
        ``n``; ``left_out``, the number of questions left out of each file; ``scores``, by file and
        score; ``against``, the first file; ``comparisons``, by further file and score:
        ``difference`` and its ``interval`` in points, ``p``, for scores of 0 and 1 ``mcnemar_p``,
        with several further files ``p_holm`` and ``mcnemar_p_holm``, and ``won``, ``lost`` and
        ``tied`` with their ids, seen from the further file. ``listed``, by further file, where it
        was asked for.

    Raises:
        ValueError: An unknown score, a record without an id, other ids or other golds than in the
            first file.
    """
    if len(files) < 2:
        raise ValueError("compare needs two files or more")
    if repeated := [file for file in files if files.count(file) > 1]:
        raise ValueError(f"{repeated[0]} is given twice")
    if num_listed < 0:
        raise ValueError(f"--list must not be negative, got {num_listed}")
    if unknown := [name for name in names if name not in metrics.names()]:
        raise ValueError(f"no score {unknown[0]!r}; there are {', '.join(metrics.names())}")
    first, *others = systems = [_read(file, names) for file in files]
    ids = _common(systems, intersect=intersect)
    scores = [system.scores[[system.rows[id] for id in ids]] for system in systems]
    # All pairs and scores at once: they share the draws, which are what takes time.
    differences = np.concatenate([other - scores[0] for other in scores[1:]], axis=1)
    drawn = bootstrap.paired(differences, resamples)
    comparisons: dict[str, dict[str, Any]] = {}
    for at, other in enumerate(others):
        comparisons[other.name] = {}
        for column, name in enumerate(names):
            pair = at * len(names) + column
            comparisons[other.name][name] = {
                "difference": _points(differences[:, pair].mean()),
                "interval": [_points(drawn.low[pair]), _points(drawn.high[pair])],
                "p": float(drawn.p[pair]),
                **_mcnemar(scores[0][:, column], scores[at + 1][:, column]),
                **_outcomes(ids, differences[:, pair] * _sign(name)),
            }
    if len(others) > 1:
        for name in names:
            _correct([comparisons[other.name][name] for other in others])
    result = {
        "n": len(ids),
        "left_out": {system.name: len(system.rows) - len(ids) for system in systems},
        "scores": {
            system.name: dict(zip(names, map(_points, part.mean(axis=0)), strict=True))
            for system, part in zip(systems, scores, strict=True)
        },
        "against": first.name,
        "comparisons": comparisons,
    }
    if num_listed:
        result["listed"] = {
            other.name: _listed(
                first.name, other.name, comparisons[other.name][names[0]], num_listed
            )
            for other in others
        }
    return result


def draw(files: Sequence[str], path: Path, *, intersect: bool = False) -> None:
    """Draw the waterfalls of several files side by side.

    Raises:
        ValueError: Without matplotlib, or a record without ``golds``.
    """
    systems = [_read(file, (), classes=True) for file in files]
    ids = _common(systems, intersect=intersect)
    called = report.short_names(files)
    bars = {
        called[system.name]: waterfall.tally(system.classes[system.rows[id]] for id in ids)
        for system in systems
    }
    try:
        figure = waterfall.figure(bars)
    except ImportError as error:
        raise ValueError(waterfall.EXTRA) from error
    waterfall.save(figure, path)


def _read(file: str, names: Sequence[str], *, classes: bool = False) -> System:
    presets = dict.fromkeys(name.split(".")[0] for name in names)
    rows: dict[Id, int] = {}
    scores, golds, kinds = [], [], []
    for row, record in enumerate(read_predictions(file)):
        if "id" not in record:
            raise ValueError(f"{file}: record {row + 1} has no id, by which questions are paired")
        rows[record["id"]] = row
        found = metrics.scores_of(record, presets)
        scores.append([found[name] for name in names])
        golds.append(hash(frozenset(split_golds(record["ground_truth"]))))
        if classes:
            if "golds" not in record:
                raise ValueError(
                    f"{file}: id {record['id']!r} has no golds, which `bisrqa evaluate` writes: "
                    "without them there is no picture"
                )
            kinds.append(waterfall.class_of(record))
    made = np.array(scores, dtype=float).reshape(len(golds), len(names))
    return System(name=file, rows=rows, scores=made, golds=golds, classes=kinds)


def _common(systems: Sequence[System], *, intersect: bool) -> list[Id]:
    """The questions to compare, in the order of the first file."""
    first, *others = systems
    for other in others:
        lacking = [id for id in first.rows if id not in other.rows]
        extra = [id for id in other.rows if id not in first.rows]
        if (lacking or extra) and not intersect:
            sides = ((other, first, lacking), (first, other, extra))
            problems = [
                f"{len(missing)} of {of.name} are not in {where.name} (the first: {missing[0]!r})"
                for where, of, missing in sides
                if missing
            ]
            raise ValueError(
                f"other questions: {', '.join(problems)}; --intersect compares those in all files"
            )
    common = [id for id in first.rows if all(id in other.rows for other in others)]
    if not common:
        raise ValueError(f"no id of {first.name} is in all other files")
    for other in others:
        for id in common:
            if first.golds[first.rows[id]] != other.golds[other.rows[id]]:
                found = [_fetch(s.name, [id])[id]["ground_truth"] for s in (first, other)]
                raise ValueError(
                    f"id {id!r} has other golds: {found[0]} in {first.name}, "
                    f"{found[1]} in {other.name}"
                )
    return common


def _mcnemar(
    one: Float[np.ndarray, " questions"], other: Float[np.ndarray, " questions"]
) -> dict[str, float]:
    """The exact test on the questions that only one side has right; nothing for other scores."""
    if not np.isin(np.concatenate([one, other]), (0, 1)).all():
        return {}
    from scipy.stats import binomtest  # slow to import

    won, lost = int((other > one).sum()), int((other < one).sum())
    return {"mcnemar_p": float(binomtest(won, won + lost).pvalue) if won + lost else 1.0}


def _outcomes(ids: list[Id], difference: Float[np.ndarray, " questions"]) -> dict[str, Any]:
    won, lost = np.flatnonzero(difference > 0), np.flatnonzero(difference < 0)
    return {
        "won": len(won),
        "lost": len(lost),
        "tied": len(ids) - len(won) - len(lost),
        "won_ids": [ids[row] for row in won],
        "lost_ids": [ids[row] for row in lost],
    }


def _correct(tests: list[dict[str, Any]]) -> None:
    """Add the p of each test after Holm's correction for all of them."""
    for key in ("p", "mcnemar_p"):
        having = [test for test in tests if key in test]
        for test, corrected in zip(having, holm([test[key] for test in having]), strict=True):
            test[f"{key}_holm"] = corrected


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: the chance of any false find among the tests is held, not of each."""
    corrected, least = [0.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, (len(p) - rank) * p[at]))
        corrected[at] = least
    return corrected


def _listed(first: str, other: str, test: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The first questions won and lost, in full."""
    ids = {side: test[f"{side}_ids"][:count] for side in ("won", "lost")}
    wanted = [id for side in ids.values() for id in side]
    before, after = _fetch(first, wanted), _fetch(other, wanted)
    return {
        side: [
            {
                "id": id,
                "question": before[id].get("question") or after[id].get("question"),
                "ground_truth": split_golds(before[id]["ground_truth"]),
                "predictions": {
                    first: before[id]["prediction"],
                    other: after[id]["prediction"],
                },
            }
            for id in chosen
        ]
        for side, chosen in ids.items()
    }


def _fetch(file: str, ids: Iterable[Id]) -> dict[Id, dict[str, Any]]:
    """Read some records again: a file may be too large to keep."""
    wanted = set(ids)
    return {record["id"]: record for record in read_predictions(file) if record["id"] in wanted}


def _sign(name: str) -> int:
    return -1 if name in metrics.LESS_IS_BETTER else 1


def _points(fraction: float) -> float:
    return round(100 * float(fraction), 2)
