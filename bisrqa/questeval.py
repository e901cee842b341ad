"""CRUD-RAG's scores of long answers: RAGQuestEval, BLEU, ROUGE-L and sentence similarity.

RAGQuestEval asks a language model questions about the gold answer (stored, or made by the model
from it) and has them answered from the generated text alone. ``QA_recall`` is the share of the
questions with a gold answer that the text answers, ``QA_avg_F1`` (the paper's F1QE) the mean F1 of
words over those that both answer. A text without any such question counts (0, 0); texts without
questions do not count.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa import chinese, overlap_metrics
from bisrqa.chat import Chat, Messages
from bisrqa.data import crud
from bisrqa.overlap_metrics import mean, word_f1

UNKNOWN = crud.UNKNOWN
BATCH = 16


class Asked(NamedTuple):
    """Questions about one gold answer, and what it says to them."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]


def stored(path: Path) -> dict[tuple[str, str], Asked]:
    """Stored questions by task and id; of lists of unequal length what both have."""
    return {
        (row["task"], row["ID"]): Asked(*(tuple(part) for part in zip(*pairs, strict=True)))
        for _, row in crud.rows(path)
        if (pairs := list(zip(row["question"], row["answers"], strict=False)))
    }


def score(asked: Asked, replies: Sequence[str]) -> tuple[float, float] | None:
    """Recall and F1 of one text.

    Args:
        asked: Questions and gold answers.
        replies: What the text answers to them.

    Returns:
        None where there are no questions.
    """
    if not asked.questions:
        return None
    known = [
        (gold, reply)
        for gold, reply in zip(asked.answers, replies, strict=True)
        if UNKNOWN not in gold
    ]
    if not known:
        return 0.0, 0.0
    both = [(gold, reply) for gold, reply in known if UNKNOWN not in reply]
    return len(both) / len(known), mean(word_f1(reply, gold) for gold, reply in both)


def evaluate(
    records: Sequence[Mapping[str, Any]],
    questions: Mapping[tuple[str, str], Asked] | None = None,
    chat: Chat | None = None,
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]] | None = None,
) -> dict[str, float | int]:
    """Mean scores of generated answers.

    Args:
        records: ``prediction`` and ``ground_truth`` (texts, or lists whose lines are joined), and
            ``id`` and ``task`` where questions are stored.
        questions: By task and id; without them the model makes them from the gold answers.
        chat: Makes and answers questions; without it RAGQuestEval is left out.
        embed: Gives unit-norm rows, for ``sentence_similarity``; without it that is left out.

    Raises:
        ValueError: A record without texts, or no questions for any record.
    """
    pairs = [
        (_text(r, "prediction", n), _text(r, "ground_truth", n)) for n, r in enumerate(records)
    ]
    each = [
        overlap_metrics.bleu(said, gold) | {"rouge-l": overlap_metrics.rouge_l(said, gold)}
        for said, gold in pairs
    ]
    names = list(each[0]) if each else []
    result: dict[str, float | int] = {"n": len(pairs)}
    result |= {name: mean(row[name] for row in each) for name in names}
    if embed is not None and pairs:
        said, gold = (embed([pair[side] for pair in pairs]) for side in (0, 1))
        result["sentence_similarity"] = round(float(torch.linalg.vecdot(said, gold).mean()), 6)
    if chat is not None:
        found = [_key(record) for record in records]
        asked = [questions.get(key) for key in found] if questions is not None else None
        if asked is not None and not any(asked):
            raise ValueError("no record's task and id are among the stored questions")
        if asked is None:
            asked = made(chat, [gold for _, gold in pairs])
        rows = quest_eval(chat, [said for said, _ in pairs], [a or Asked((), ()) for a in asked])
        result |= {
            "QA_recall": mean(recall for recall, _ in rows),
            "QA_avg_F1": mean(f1 for _, f1 in rows),
            "QA_n": len(rows),
        }
    return result


def quest_eval(
    chat: Chat, texts: Sequence[str], asked: Sequence[Asked]
) -> list[tuple[float, float]]:
    """Recall and F1 of each text that has questions."""
    waiting = [
        (number, _answer_from(text, question))
        for number, (text, some) in enumerate(zip(texts, asked, strict=True))
        for question in some.questions
    ]
    replies: list[list[str]] = [[] for _ in texts]
    for start in range(0, len(waiting), BATCH):
        batch = waiting[start : start + BATCH]
        for (number, _), reply in zip(batch, chat([m for _, m in batch]), strict=True):
            replies[number].append(reply.text.strip() or UNKNOWN)
    rows = [score(some, said) for some, said in zip(asked, replies, strict=True)]
    return [row for row in rows if row is not None]


def made(chat: Chat, golds: Sequence[str]) -> list[Asked]:
    """Questions about gold answers, with the answers that these give.

    A reply that cannot be understood makes no questions.
    """
    replies = chat([_questions_about(gold) for gold in golds], SCHEMA)
    return [_listed(reply.text) for reply in replies]


def _listed(reply: str) -> Asked:
    try:
        rows = json.loads(reply)["questions"]
        pairs = [(row["question"].strip(), row["answer"].strip()) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError):
        return Asked((), ())
    kept = [pair for pair in dict.fromkeys(pairs) if all(pair)]
    return Asked(tuple(q for q, _ in kept), tuple(a for _, a in kept))


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "questions": {
            "type": "array",
            "maxItems": 6,
            "items": {
                "type": "object",
                "properties": {
                    "question": {"type": "string", "minLength": 1, "maxLength": 120},
                    "answer": {"type": "string", "minLength": 1, "maxLength": 120},
                },
                "required": ["question", "answer"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["questions"],
    "additionalProperties": False,
}


def _questions_about(gold: str) -> Messages:
    asked = (
        "找出下文的关键信息，就每一条提一个问题，并用下文的原词作答。以JSON输出。"
        if chinese.is_chinese(gold)
        else "Find the key facts of the text, ask a question about each, and answer it in the "
        "words of the text. Reply as JSON."
    )
    return [{"role": "system", "content": asked}, {"role": "user", "content": gold}]


def _answer_from(text: str, question: str) -> Messages:
    asked = (
        f"只根据下文用尽量短的原词回答问题；下文没有说明的，回答“{UNKNOWN}”。"
        if chinese.is_chinese(question)
        else "Answer from the text alone, in as few of its own words as can be; if it does not "
        f"say, reply {UNKNOWN}."
    )
    return [
        {"role": "system", "content": asked},
        {"role": "user", "content": f"{text}\n\n{question}"},
    ]


def _key(record: Mapping[str, Any]) -> tuple[str, str]:
    return str(record.get("task", "")), str(record.get("id", record.get("ID", "")))


def _text(record: Mapping[str, Any], field: str, number: int) -> str:
    value = record.get(field)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    if not isinstance(value, str):
        raise ValueError(f"record {number}: field {field}: expected text, got {str(value)[:80]!r}")
    return value
