"""Scores of question answering over texts: HotpotQA's, and MuSiQue's where a gold has aliases.

Strings and (title, sentence) pairs in, fractions out, as :mod:`bisrqa.metrics` does for lists of
answers. The normaliser is the same one, and so is the mean: over all gold questions.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from bisrqa.text import normalise

PREDICTED, GOLD = "supporting_facts", "gold_supporting_facts"
TRIPLES, GOLD_TRIPLES = "evidences", "gold_evidences"
WHOLE = ("yes", "no", "noanswer")
"""Answers that are right or wrong as a whole: no credit for the word in a longer reply."""


def answer(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Exact match and token F1, precision and recall; each the best over the golds.

    HotpotQA has one gold; MuSiQue takes the best over a gold and its aliases. Precision and
    recall are those of the gold with the best F1.
    """
    best = max((_tokens(prediction, gold) for gold in golds), key=lambda scores: scores[0])
    exact = any(normalise(prediction) == normalise(gold) for gold in golds)
    return dict(zip(("f1", "precision", "recall"), best, strict=True)) | {"em": float(exact)}


def supporting(
    predicted: Iterable[Sequence[Hashable]], golds: Iterable[Sequence[Hashable]]
) -> dict[str, float]:
    """The same over sets of (title, sentence); exact match is no fact too many and none missing."""
    found, wanted = set(map(tuple, predicted)), set(map(tuple, golds))
    right = len(found & wanted)
    precision = right / len(found) if found else 0.0
    recall = right / len(wanted) if wanted else 0.0
    return {
        "em": float(found == wanted),
        "f1": _f1(precision, recall),
        "precision": precision,
        "recall": recall,
    }


def joint(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Answer and facts together: products of precision, recall and EM, and F1 from these."""
    precision, recall = (one[key] * other[key] for key in ("precision", "recall"))
    return {
        "em": one["em"] * other["em"],
        "f1": _f1(precision, recall),
        "precision": precision,
        "recall": recall,
    }


def over_texts(record: Mapping[str, Any]) -> dict[str, float]:
    """HotpotQA's scores of a record that has :data:`GOLD`, and 2Wiki's; nothing of any other.

    Args:
        record: ``prediction`` (its first line is the answer), ``ground_truth``,
            ``gold_supporting_facts`` and, unless none were given, ``supporting_facts``: lists of
            [title, sentence]. With ``gold_evidences``, and ``evidences``, lists of triples, these
            are scored too, as sets of normalised triples.

    Raises:
        ValueError: Facts that are no such lists.
    """
    if GOLD not in record:
        return {}
    said, golds = record["prediction"], record["ground_truth"]
    text = said if isinstance(said, str) else "\n".join(said)
    first = next((line for line in text.split("\n") if line.strip()), "")
    of_answer = answer(first, [golds] if isinstance(golds, str) else golds)
    of_facts = supporting(_facts(record, PREDICTED), _facts(record, GOLD))
    both = joint(of_answer, of_facts)
    parts = {"hotpotqa.": of_answer, "hotpotqa.sp_": of_facts, "hotpotqa.joint_": both}
    if GOLD_TRIPLES in record:
        of_triples = supporting(_triples(record, TRIPLES), _triples(record, GOLD_TRIPLES))
        parts |= {"2wiki.evi_": of_triples, "2wiki.joint_": joint(both, of_triples)}
    return {f"{part}{name}": value for part, some in parts.items() for name, value in some.items()}


def _triples(record: Mapping[str, Any], field: str) -> list[tuple[str, ...]]:
    found = record.get(field) or []
    right = isinstance(found, list) and all(
        isinstance(triple, list | tuple)
        and len(triple) == 3
        and all(isinstance(part, str) for part in triple)
        for triple in found
    )
    if not right:
        who = f" (id {record['id']!r})" if "id" in record else ""
        raise ValueError(f"{field}: expected a list of [head, relation, tail], got {found!r}{who}")
    return [tuple(normalise(part) for part in triple) for triple in found]


def _facts(record: Mapping[str, Any], field: str) -> list[tuple[str, int]]:
    found = record.get(field) or []
    right = isinstance(found, list) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], int)
        for pair in found
    )
    if not right:
        who = f" (id {record['id']!r})" if "id" in record else ""
        raise ValueError(f"{field}: expected a list of [title, sentence], got {found!r}{who}")
    return [(title, sentence) for title, sentence in found]


def _tokens(prediction: str, gold: str) -> tuple[float, float, float]:
    """F1, precision and recall over multisets of words."""
    said, wanted = normalise(prediction), normalise(gold)
    if said != wanted and (said in WHOLE or wanted in WHOLE):
        return 0.0, 0.0, 0.0
    one, other = Counter(said.split()), Counter(wanted.split())
    same = (one & other).total()
    if not same:
        return 0.0, 0.0, 0.0
    precision, recall = same / one.total(), same / other.total()
    return _f1(precision, recall), precision, recall


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
