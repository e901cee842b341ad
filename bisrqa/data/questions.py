"""Reader of your own questions: one object a line, or one list of objects.

``question``; and, if you like, ``id``, ``answers`` (or ``answer``), ``topics`` and
``supporting_facts`` ([[title, sentence]]). They are asked over one graph or corpus: ``data.graph``.
"""

import re
from collections.abc import Iterator
from typing import Any

from bisrqa.config import DataConfig
from bisrqa.data import json_rows
from bisrqa.data.hotpotqa import supporting_facts
from bisrqa.data.records import Question
from bisrqa.data.tally import BadRow, Tally

fingerprint = json_rows.fingerprint
_NUMBER = re.compile(r"\d+$")


def read(config: DataConfig, split: str, tally: Tally) -> Iterator[Question]:
    """Stream one split's questions; raises as :func:`bisrqa.data.json_rows.read` does."""
    return json_rows.read(config, split, tally, _question)


def _question(row: dict[str, Any], where: str, config: DataConfig, tally: Tally) -> Question:
    number = _NUMBER.search(where)
    answers = row.get("answers", row.get("answer", []))
    answers = _texts([answers] if isinstance(answers, str) else answers, "answers", where)
    if not answers:
        tally.add("questions without answers", where)
    return Question(
        id=str(row["id"]) if "id" in row else f"q{number.group() if number else ''}",
        question=json_rows.text(row, "question", where),
        answers=answers,
        topics=_texts(row.get("topics", []), "topics", where),
        graph=(),
        support=supporting_facts(row, where) if "supporting_facts" in row else (),
    )


def _texts(value: Any, field: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise BadRow(f"{where}: field {field}: expected texts, got {str(value)[:80]}")
    return tuple(dict.fromkeys(value))
