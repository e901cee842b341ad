"""Answer metrics: strings in, numbers out; every score carries the name of its definition.

A preset is a function of one question, ``(lines, golds) -> {name: score}``, with scores as
fractions: ``lines`` from ``split_answers``, ``golds`` a non-empty list of acceptable answers.
``panel`` averages all presets over questions; ``full_panel`` adds intervals and breakdowns. An
empty prediction scores 0 everywhere; a gold that normalises to the empty string counts in the
denominators but matches nothing.

Where a definition leaves a choice, the comment at that line says which one reproduces the published
outputs used as test data.
"""

import functools
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bisrqa import text, text_metrics
from bisrqa.bootstrap import REPLICATES, Share, Tally
from bisrqa.predictions import distinct, problem_of, read_predictions, split_answers, split_golds
from bisrqa.text import contains_normalised

logger = logging.getLogger(__name__)

MARKER = re.compile(r"\bans:")
"""SubgraphRAG's prompt asks for answers on lines with this word. The published code takes the bare
letters, which "the Olympians: ..." holds too."""
ABSTAINS = re.compile(r"none|\bans: (?:not|no information) available", re.IGNORECASE)
"""A marked line that gives no answer. "none" anywhere, as published: "Nonesuch" has it too."""
REVERSED_FOR = (
    "when", "what year", "which year", "where", "sport", "what countr", "language", "nba finals",
    "world series",
)  # fmt: skip
"""Questions with one of these words also accept an answer that is a part of a gold."""
LESS_IS_BETTER = ("subgraphrag.totally_wrong",)
MAX_CLASSES = 100
"""A breakdown into more classes than this is none: most would be single questions."""

# Every preset normalises the same few strings of a question; a small cache halves the time.
normalise = functools.lru_cache(maxsize=256)(text.normalise)


def rog(lines: list[str], golds: list[str]) -> dict[str, float]:
    """RoG: golds found anywhere in the joined text.

    Precision divides the golds found by the number of lines, so it and F1 can exceed 1: the
    published behaviour. Blank and repeated lines and repeated golds all count.
    """
    joined = normalise(" ".join(lines))
    found = sum(contains_normalised(joined, normalise(gold)) for gold in golds)
    precision, recall = _ratio(found, len(lines)), _ratio(found, len(golds))
    return {
        "recall": recall,
        "hit": float(found > 0),
        "precision": precision,
        "f1": _f1(precision, recall),
    }


def g_retriever(lines: list[str], golds: list[str]) -> dict[str, float]:
    """G-Retriever and GRAG: ``rog`` with answers separated by ``|`` as well as by newlines.

    A gold that holds ``|`` stays one gold, found where its parts follow one another. The published
    code joins the golds with ``|`` and splits them again, so such a gold counts as several there.
    """
    answers = [part for line in lines for part in line.split("|")]
    return rog(answers, [gold.replace("|", " ") for gold in golds])


def gnn_rag(lines: list[str], golds: list[str]) -> dict[str, float]:
    """GNN-RAG's addition to ``rog``: any gold in the first line."""
    # GNN-RAG strips the prediction before splitting it: its first line is the first non-blank one.
    first = normalise(next((line for line in lines if line.strip()), ""))
    return {"hit1": float(any(contains_normalised(first, normalise(gold)) for gold in golds))}


def gcr(lines: list[str], golds: list[str]) -> dict[str, float]:
    """GCR: recall counts golds found in the joined text, precision lines that hold some gold."""
    answers = distinct(lines)
    texts = [normalise(answer) for answer in answers]
    joined = normalise(" ".join(answers))
    # Distinct as written, before normalising; only this reproduces recall and F1.
    keys = [normalise(gold) for gold in dict.fromkeys(golds)]
    right = sum(any(contains_normalised(text, key) for key in keys) for text in texts)
    found = sum(contains_normalised(joined, key) for key in keys)
    precision, recall = _ratio(right, len(texts)), _ratio(found, len(keys))
    return {"recall": recall, "precision": precision, "f1": _f1(precision, recall)}


def one_to_one(lines: list[str], golds: list[str]) -> dict[str, float]:
    """The matching of SubgraphRAG's corrected evaluator: each line may answer one gold only.

    Golds, longest first, each take the first free line that contains them, lines longest first too.
    ``subgraphrag`` has the rest of that evaluator. EM is 1 where F1 is 1.
    """
    # Distinct as written on both sides, as in gcr; the ordering by raw or normalised length made no
    # difference to the published outputs, and ties keep the order given.
    free = [normalise(answer) for answer in sorted(distinct(lines), key=len, reverse=True)]
    keys = [normalise(gold) for gold in sorted(dict.fromkeys(golds), key=len, reverse=True)]
    num_lines, matched = len(free), 0
    for key in keys:
        taken = next((i for i, text in enumerate(free) if contains_normalised(text, key)), None)
        if taken is not None:
            del free[taken]
            matched += 1
    f1 = _f1(_ratio(matched, num_lines), _ratio(matched, len(keys)))
    return {"f1": f1, "em": float(0 < matched == num_lines == len(keys))}


def subgraphrag(lines: list[str], golds: list[str], question: str = "") -> dict[str, float | Share]:
    """SubgraphRAG's corrected evaluator as a whole: ``one_to_one`` with its rules for its prompt.

    If any line has the marker ``ans:``, only such lines are answers, less those that abstain. A
    file without markers is read by its distinct lines, as they read RoG's.

    Args:
        lines: Of the prediction.
        golds: Acceptable answers.
        question: Some of its words allow an answer that is a part of a gold, and cut a gold date
            to its year. Without the question neither happens.
    """
    asked = question.lower()
    reverse = any(word in asked for word in REVERSED_FOR)
    answers = _marked(distinct(lines))
    keys = sorted(dict.fromkeys(golds), key=len, reverse=True)
    if "when" in asked or "what year" in asked:
        keys = [_year(gold) for gold in keys]
    keys = [normalise(gold) for gold in keys]
    # A line as it stands, and without its marker, which no gold contains.
    sides = {answer: (normalise(answer), _unmarked(answer)) for answer in answers}

    def matches(answer: str, key: str) -> bool:
        whole, bare = sides[answer]
        if contains_normalised(whole, key):
            return True
        return reverse and (contains_normalised(key, bare) or contains_normalised(key, whole))

    free, matched = sorted(answers, key=len, reverse=True), 0
    for key in keys:
        taken = next((i for i, answer in enumerate(free) if matches(answer, key)), None)
        if taken is not None:
            del free[taken]
            matched += 1
    precision, recall = _ratio(matched, len(answers)), _ratio(matched, len(keys))
    return {
        "precision": precision,
        "recall": recall,
        "f1": _f1(precision, recall),
        "em": float(0 < matched == len(answers) == len(keys)),
        "hit1": float(bool(answers) and any(matches(answers[0], key) for key in keys)),
        "totally_wrong": float(not matched),
        "micro_precision": Share(matched, len(answers)),
        "micro_recall": Share(matched, len(keys)),
        # 2PR / (P + R) of the two ratios above
        "micro_f1": Share(2 * matched, len(answers) + len(keys)),
    }


def strict(lines: list[str], golds: list[str]) -> dict[str, float]:
    """Exact set match after normalising: the headline definition."""
    # Distinct after normalising, without lines that normalise to nothing ("---"); only this
    # reproduces precision. An empty gold stays in the gold set, where no line can equal it.
    answers = {normalise(line) for line in lines} - {""}
    keys = {normalise(gold) for gold in golds}
    matched = len(answers & keys)
    precision, recall = _ratio(matched, len(answers)), _ratio(matched, len(keys))
    return {
        "precision": precision,
        "recall": recall,
        "f1": _f1(precision, recall),
        "hit": float(matched > 0),
        "em": float(matched > 0 and answers == keys),
    }


Scores = dict[str, float | Share]
PRESETS: dict[str, Callable[..., Mapping[str, float | Share]]] = {
    "rog": rog,
    "g-retriever": g_retriever,
    "gnn-rag": gnn_rag,
    "gcr": gcr,
    "one_to_one": one_to_one,
    "subgraphrag": subgraphrag,
    "strict": strict,
}


def scores_of(record: Mapping[str, Any], presets: Iterable[str] = tuple(PRESETS)) -> Scores:
    """All scores of one question, as fractions, by ``preset.score``."""
    lines = split_answers(record["prediction"])
    golds = split_golds(record["ground_truth"])
    scores: Scores = {}
    for preset in presets:
        score = PRESETS[preset]
        # The only definition that reads the question.
        more = (record.get("question") or "",) if score is subgraphrag else ()
        for name, value in score(lines, golds, *more).items():
            scores[f"{preset}.{name}"] = value
    return scores


def names() -> list[str]:
    """The names of all scores that a single question has: ratios of sums have no such value."""
    scores = scores_of({"prediction": "", "ground_truth": ["x"]})
    return [name for name, value in scores.items() if not isinstance(value, Share)]


def panel(records: Iterable[Mapping[str, Any]]) -> dict[str, float | int]:
    """Mean of every preset over questions, read once and in constant memory.

    Args:
        records: Each with ``prediction`` (str with newlines, or list of str) and ``ground_truth``
            (list of str, or str with newlines); ``question`` is read where there is one, and ``id``
            is used in messages only.

    Returns:
        ``preset.score`` as a percentage rounded to 2 digits, and ``n``, the number of questions.
    """
    tally = Tally()
    for _, scores in _scored(records):
        tally.add(scores)
    return {**tally.scores(), "n": tally.num_questions}


def full_panel(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The panel with 95 % intervals, and the same for classes of questions.

    Args:
        records: As for :func:`panel`. ``hops`` (int or None) and ``group`` (str) make a breakdown
            of the records that have them.

    Returns:
        What :func:`panel` gives, ``intervals`` (``[low, high]`` for each score), ``by_answers``,
        and ``by_hops`` and ``by_group`` where there are such records: by class, a panel with
        intervals. A breakdown into more than ``MAX_CLASSES`` is left out, with a line in the log.
    """
    whole = Tally(REPLICATES)
    parts: dict[str, dict[Hashable, Tally]] = {name: {} for name in BREAKDOWNS}
    for record, scores in _scored(records):
        whole.add(scores)
        for name, tallies in list(parts.items()):
            if (kind := BREAKDOWNS[name](record)) is None:
                continue
            if kind not in tallies:
                if len(tallies) == MAX_CLASSES:
                    logger.warning("no %s: more than %d classes", name, MAX_CLASSES)
                    del parts[name]
                    continue
                tallies[kind] = Tally(REPLICATES)
            tallies[kind].add(scores)
    broken_down = {
        name: {str(kind): _summary(tallies[kind]) for kind in sorted(tallies, key=_place)}
        for name, tallies in parts.items()
        if tallies
    }
    return _summary(whole) | broken_down


def _scored(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Scores]]:
    number, first = 0, ()
    for number, record in enumerate(records, start=1):
        if problem := problem_of(record):
            raise ValueError(f"record {number}: {problem}")
        golds = (text_metrics.GOLD, text_metrics.GOLD_TRIPLES)
        has = tuple(field in record for field in golds)
        first = has if number == 1 else first
        for field, here, before in zip(golds, has, first, strict=True):
            if here != before:  # a mean over some would pass for all
                differs = "lacks" if before else "has"
                raise ValueError(f"record {number} {differs} {field}, other than those before it")
        yield record, scores_of(record) | text_metrics.over_texts(record)
    if not number:
        raise ValueError("no predictions")


def _summary(tally: Tally) -> dict[str, Any]:
    return {**tally.scores(), "n": tally.num_questions, "intervals": tally.intervals()}


def _num_answers(record: Mapping[str, Any]) -> str:
    count = len(set(split_golds(record["ground_truth"])))
    return "1" if count == 1 else "2-4" if count < 5 else "5-9" if count < 10 else "10+"


def _hops(record: Mapping[str, Any]) -> int | str | None:
    hops = record.get("hops", -1)
    return "unknown" if hops is None else hops if hops >= 0 else None


BREAKDOWNS: dict[str, Callable[[Mapping[str, Any]], Hashable]] = {
    "by_answers": _num_answers,
    "by_hops": _hops,
    "by_group": lambda record: record.get("group"),
}
"""The class of a question; None where it is in no class."""


def _place(kind: Hashable) -> tuple[float, str]:
    """Orders classes: numbers first and by size, ranges by where they start, then words."""
    start = str(kind).rstrip("+").split("-")[0]
    return (float(start) if start.isdecimal() else float("inf"), str(kind))


def score_file(path: str | Path) -> dict[str, Any]:
    """The full panel of a predictions file."""
    return full_panel(read_predictions(path))


def _marked(answers: list[str]) -> list[str]:
    """Lines with the marker, where there are any, without those that give no answer."""
    marked = [answer for answer in answers if MARKER.search(answer)]
    return [answer for answer in marked if not ABSTAINS.search(answer)] if marked else answers


def _unmarked(answer: str) -> str:
    return normalise(MARKER.split(answer)[-1])


def _year(gold: str) -> str:
    """The year of a date such as 1990-05-01; anything else as it is."""
    year, dash, _ = gold.partition("-")
    return year if dash and year.isdigit() else gold


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
