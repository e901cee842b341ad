"""Reader of MuSiQue's rows: paragraphs are marked as supporting, not sentences."""

from collections.abc import Iterator
from typing import Any

from bisrqa.config import DataConfig
from bisrqa.data import json_rows
from bisrqa.data.passages import Passage, chunks_of, sentences
from bisrqa.data.records import Question
from bisrqa.data.tally import BadRow, Tally

fingerprint = json_rows.fingerprint


def read(config: DataConfig, split: str, tally: Tally) -> Iterator[Question]:
    """Stream one split's questions; raises as :func:`bisrqa.data.json_rows.read` does.

    Only answerable questions have answers; the others are left out and counted.
    """
    for question in json_rows.read(config, split, tally, _question):
        if question.answers:
            yield question
        else:
            tally.add("questions that are marked as not answerable (left out)", question.id)


def _question(row: dict[str, Any], where: str, config: DataConfig, tally: Tally) -> Question:
    paragraphs = row.get("paragraphs")
    if not isinstance(paragraphs, list):
        raise BadRow(f"{where}: field paragraphs: expected a list, got {str(paragraphs)[:80]}")
    passages, support = [], []
    for number, item in enumerate(paragraphs):
        if not isinstance(item, dict) or not all(
            isinstance(item.get(key), str) for key in ("title", "paragraph_text")
        ):
            raise BadRow(
                f"{where}: field paragraphs: {number}: expected title and paragraph_text, "
                f"got {str(item)[:80]}"
            )
        title = item["title"].strip()
        passages.append(Passage(title, tuple(sentences(item["paragraph_text"]))))
        if item.get("is_supporting"):
            support.append((title, number))
    if not support:
        tally.add("questions without a supporting paragraph", where)
    steps = row.get("question_decomposition")
    aliases = row.get("answer_aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(a, str) for a in aliases):
        raise BadRow(f"{where}: field answer_aliases: expected a list of text, got {aliases!r}")
    answer = () if row.get("answerable") is False else (json_rows.text(row, "answer", where),)
    return Question(
        id=json_rows.text(row, "id", where),
        question=json_rows.text(row, "question", where),
        answers=answer,
        topics=(),
        graph=(),
        chunks=tuple(chunks_of(passages, config.chunks, config.window, config.overlap)),
        support=tuple(support),
        support_unit="paragraph",
        aliases=tuple(aliases),
        group=f"{len(steps)} hops" if isinstance(steps, list) and steps else "",
    )
