"""Scores of generated text by the words it shares with a reference: CRUD-RAG's and UHGEval's.

Strings in, fractions out. Words are what jieba cuts, marks and blanks among them, as in the
published code; where nothing is there to compare, a score is 0.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from bisrqa import chinese

ORDER = 4


def bleu(prediction: str, reference: str) -> dict[str, float]:
    """BLEU of one text over one reference.

    Returns:
        ``bleu-1`` to ``bleu-4``: precision of n-grams, each counted at most as often as in the
        reference; ``bleu-avg``: their geometric mean, without brevity penalty (CRUD-RAG);
        ``bleu``: with it (UHGEval's BLEU-4).
    """
    said, wanted = chinese.cut(prediction), chinese.cut(reference)
    scores = []
    for order in range(1, ORDER + 1):
        ours, theirs = _ngrams(said, order), _ngrams(wanted, order)
        scores.append(sum((ours & theirs).values()) / max(sum(ours.values()), 1))
    mean = math.exp(sum(map(math.log, scores)) / ORDER) if all(scores) else 0.0
    short = math.exp(min(0.0, 1 - len(wanted) / len(said))) if said else 0.0
    named = {f"bleu-{order}": score for order, score in enumerate(scores, 1)}
    return {"bleu-avg": mean, "bleu": mean * short, **named}


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[n : n + order]) for n in range(len(words) - order + 1))


def rouge_l(prediction: str, reference: str) -> float:
    """F1 of the longest common subsequence of words."""
    said, wanted = chinese.cut(prediction), chinese.cut(reference)
    common = _longest_common(said, wanted)
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, theirs in enumerate(other, 1):
            best = before + 1 if word == theirs else max(row[place], row[place - 1])
            before, row[place] = row[place], best
    return row[-1]


def word_f1(prediction: str, reference: str) -> float:
    """F1 over the words of two texts, each as often as it stands there (RAGQuestEval)."""
    said, wanted = Counter(chinese.cut(prediction)), Counter(chinese.cut(reference))
    common = sum((said & wanted).values())
    return 2 * common / (said.total() + wanted.total()) if common else 0.0


def keyword_precision(prediction: str, reference: str, keywords: Iterable[str] = ()) -> float:
    """Share of the prediction's words that stand in the reference (UHGEval, kwPrec).

    Args:
        prediction: Generated.
        reference: The real text.
        keywords: What counts; without any, words of two characters and more.
    """
    words = list(keywords) or [word for word in chinese.cut(prediction) if len(word.strip()) > 1]
    return sum(word in reference for word in words) / len(words) if words else 0.0


def mean(values: Iterable[float]) -> float:
    """Of no values 0."""
    listed = list(values)
    return round(sum(listed) / len(listed), 6) if listed else 0.0
