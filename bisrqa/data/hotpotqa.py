"""Reader of HotpotQA's rows (distractor and full wiki) and 2WikiMultihopQA's, which are alike.

One row a question: ``_id``, ``question``, ``answer``, ``type``, ``supporting_facts`` ([[title,
sentence]]) and ``context`` ([[title, [sentence, ...]]]); 2Wiki adds ``evidences``, gold triples.
"""

from collections.abc import Iterator
from typing import Any

from bisrqa.config import DataConfig
from bisrqa.data import json_rows
from bisrqa.data.passages import Passage, chunks_of
from bisrqa.data.records import Chunk, Question, Triple
from bisrqa.data.tally import BadRow, Tally

fingerprint = json_rows.fingerprint


def read(config: DataConfig, split: str, tally: Tally) -> Iterator[Question]:
    """Stream one split's questions; raises as :func:`bisrqa.data.json_rows.read` does."""
    return json_rows.read(config, split, tally, _question)


def _question(row: dict[str, Any], where: str, config: DataConfig, tally: Tally) -> Question:
    passages = []
    for number, item in enumerate(_list(row, "context", where)):
        right = (
            isinstance(item, list)
            and len(item) == 2
            and isinstance(item[0], str)
            and isinstance(item[1], list)
            and all(isinstance(sentence, str) for sentence in item[1])
        )
        if not right:
            raise BadRow(
                f"{where}: field context: paragraph {number}: expected [title, [sentence, ...]], "
                f"got {str(item)[:80]}"
            )
        passages.append(Passage(item[0].strip(), tuple(item[1])))
    chunks = tuple(chunks_of(passages, config.chunks, config.window, config.overlap))
    support = supporting_facts(row, where)
    titles = [passage.title for passage in passages]
    if len(set(titles)) < len(titles):
        tally.add("questions with a title that repeats", where)
    if not {title for title, _ in support} <= set(titles):
        tally.add("questions without all of their supporting paragraphs", where)
    evidences, triples, sources = None, (), ()
    if "evidences" in row or config.evidences:
        evidences = _evidences(row, where)
    if evidences is not None and config.evidences:
        triples, sources = _placed(evidences, chunks, support)
    return Question(
        id=json_rows.text(row, "_id" if "_id" in row else "id", where),
        question=json_rows.text(row, "question", where),
        answers=(json_rows.text(row, "answer", where),),
        topics=(),
        graph=triples,
        chunks=chunks,
        sources=sources,
        support=support,
        evidences=evidences,
        group=str(row.get("type") or ""),
    )


def supporting_facts(row: dict[str, Any], where: str) -> tuple[tuple[str, int], ...]:
    """The field of this name: titles and numbers of sentences.

    Raises:
        BadRow: It is something else.
    """
    found = []
    for item in _list(row, "supporting_facts", where):
        right = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
        if not right or type(item[1]) is not int:
            raise BadRow(
                f"{where}: field supporting_facts: expected [title, sentence], got {item!r}"
            )
        found.append((item[0].strip(), item[1]))
    return tuple(found)


def _evidences(row: dict[str, Any], where: str) -> tuple[Triple, ...]:
    found = []
    for item in _list(row, "evidences", where):
        if not (
            isinstance(item, list) and len(item) == 3 and all(isinstance(p, str) for p in item)
        ):
            raise BadRow(f"{where}: field evidences: expected three texts, got {item!r}")
        if all(part.strip() for part in item):
            found.append(Triple(*item))
    return tuple(dict.fromkeys(found))


def _placed(
    evidences: tuple[Triple, ...],
    chunks: tuple[Chunk, ...],
    support: tuple[tuple[str, int], ...],
) -> tuple[tuple[Triple, ...], tuple[int, ...]]:
    """Gold triples, each read from the first supporting sentence about its head."""
    triples: dict[Triple, int] = {}
    facts = [
        number
        for number, chunk in enumerate(chunks)
        if any(t == chunk.title and chunk.start <= s < chunk.stop for t, s in support)
    ]
    for triple in evidences:
        about = [number for number in facts if chunks[number].title == triple.head] or facts
        if about:
            triples[triple] = about[0]
    return tuple(triples), tuple(triples.values())


def _list(row: dict[str, Any], field: str, where: str) -> list[Any]:
    value = row.get(field)
    if not isinstance(value, list):
        raise BadRow(f"{where}: field {field}: expected a list, got {str(value)[:80]}")
    return value
