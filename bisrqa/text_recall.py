"""Retrieval scores over texts: supporting facts and paragraphs among the best chunks."""

from collections.abc import Iterable, Sequence

from bisrqa.data.records import Chunk, Question
from bisrqa.examples import Example
from bisrqa.text import normalise, stated

DEPTHS = (2, 3, 5, 8, 10)
ANSWER_DEPTHS = (1, 4, 8)
SUPPORTING = 3
"""So many of the best chunks are given as a question's supporting facts: HotpotQA's have 2.4 on
average, and the F1 of their support is best there."""


def scores(found: Sequence[Example]) -> dict[str, float | int]:
    """Means over the questions with supporting facts, as fractions; K counts chunks.

    - ``support_precision@K``, ``support_recall@K``, ``support_f1@K``: over sets of (title,
      sentence) of all sentences in the K best chunks, as HotpotQA has it; over sets of paragraphs
      where only those are marked (MuSiQue). F1 is of each question, then the mean
    - ``passage_recall@K``: share of the supporting paragraphs that the K best chunks touch
    - ``support_ceiling``: share of the supporting facts that are among the question's texts
    - ``answer_in_passages@K``: share of the questions whose answer, or an alias, stands in the K
      best chunks; over those (``n_answers``) whose answer is no yes or no
    - ``n``: questions with supporting facts, without which the above are left out;
      ``questions``: all
    """
    known = [e for e in found if e.question.support]
    result: dict[str, float | int] = {"n": len(known), "questions": len(found)}
    for depth in DEPTHS if known else ():
        rows = [support(e.question, e.chunks_found[:depth]) for e in known]
        for place, name in enumerate(("precision", "recall", "f1")):
            result[f"support_{name}@{depth}"] = _mean(row[place] for row in rows)
        result[f"passage_recall@{depth}"] = _mean(
            _passages_touched(e.question, e.chunks_found[:depth]) for e in known
        )
    if known:
        result["support_ceiling"] = _mean(
            support(e.question, range(len(e.question.chunks)))[1] for e in known
        )
    asked = [e for e in found if not _is_verdict(e.question)]
    result["n_answers"] = len(asked)
    for depth in ANSWER_DEPTHS:
        result[f"answer_in_passages@{depth}"] = _mean(
            answer_in(e.question, e.chunks_found[:depth]) for e in asked
        )
    return result


def facts(question: Question, chunks: Iterable[int]) -> set[tuple[str, int]]:
    """What the chunks hold, in the unit of the question's supporting facts."""
    return {f for number in chunks for f in facts_of_chunk(question.chunks[number], question)}


def facts_of_chunk(chunk: Chunk, question: Question) -> set[tuple[str, int]]:
    """The same of one chunk."""
    if question.support_unit == "paragraph":
        return {(chunk.title, chunk.paragraph)}
    if question.support_unit == "passage":
        return {(chunk.source, 0)}
    return {(chunk.title, sentence) for sentence in range(chunk.start, chunk.stop)}


def supports(chunk: Chunk, question: Question) -> bool:
    """Whether a chunk is something to learn from.

    Of a passage that is named as a whole it has to state the answer too.
    """
    if not facts_of_chunk(chunk, question) & set(question.support):
        return False
    if question.support_unit != "passage":
        return True
    text = normalise(chunk.words)
    return any(stated(normalise(answer), text) for answer in question.answers)


def support(question: Question, chunks: Iterable[int]) -> tuple[float, float, float]:
    """Precision, recall and F1 of the facts that some chunks hold."""
    said, golds = facts(question, chunks), set(question.support)
    right = len(said & golds)
    precision, recall = right / max(len(said), 1), right / max(len(golds), 1)
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def answer_in(question: Question, chunks: Iterable[int]) -> bool:
    """Whether an answer or alias stands in some of the chunks."""
    texts = [normalise(question.chunks[number].words) for number in chunks]
    golds = [normalise(gold) for gold in (*question.answers, *question.aliases)]
    return any(stated(gold, text) for gold in golds for text in texts)


def _passages_touched(question: Question, chunks: Iterable[int]) -> float:
    def key(fact: tuple[str, int]) -> object:
        return fact[0] if question.support_unit == "sentence" else fact

    golds = {key(fact) for fact in question.support}
    return len(golds & {key(fact) for fact in facts(question, chunks)}) / len(golds)


def _is_verdict(question: Question) -> bool:
    return all(normalise(answer) in ("yes", "no") for answer in question.answers)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return round(sum(listed) / max(len(listed), 1), 4)
