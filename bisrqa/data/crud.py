"""CRUD-RAG: Chinese news articles, and questions over them.

A folder holds, gzipped or not, what there is of

- ``events.jsonl``: articles (``ID``, ``text``), to whose ids the questions belong,
- ``corpus.jsonl``: other articles (``doc_id``, ``text``),
- ``split_merged.json``, the official file: its questions' articles (``news1`` ...),
- ``documents*``, official: files, or a folder of them, with an article on each line,
- ``questeval.jsonl``: questions of RAGQuestEval (``ID``, ``task``, ``question``, ``answers``), or
  the official ``QuestAnswer*_quest_gt_save.json``.

An article begins with its date and other remarks, which a mark (``正文：``) ends. Of the questions
those are asked whose answer stands in their article, so that a text can hold it; a question's group
is its task, its support its article.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bisrqa.config import DataConfig
from bisrqa.data import json_rows
from bisrqa.data.passages import Passage, sentences
from bisrqa.data.records import Question
from bisrqa.data.tally import BadRow, Tally
from bisrqa.times import written_on

BODY = re.compile(r"^[^\n]{0,120}?正文[:：]\s*", re.DOTALL)
UNKNOWN = "无法推断"
"""An answer that says that there is none."""
TASKS = {"1": "questanswer_1doc", "2": "questanswer_2docs", "3": "questanswer_3docs"}
_OFFICIAL = re.compile(r"QuestAnswer([123])Docs?_quest_gt_save\.json")
SHINGLE, SKETCH, SAME = 6, 60, 0.5
"""Characters of a shingle; so many of each text's are compared; share at which it is a copy."""


class Article(NamedTuple):
    """A text and its id."""

    id: str
    text: str


def is_crud(path: Path) -> bool:
    """Whether a folder has this layout."""
    return path.is_dir() and any(True for _ in _article_files(path))


def articles(path: Path) -> Iterator[Article]:
    """Every article, those with questions first.

    Raises:
        ValueError: A file that is broken, or a row without text; names file and row.
    """
    for file in _article_files(path):
        name = file.name.removesuffix(".gz")
        if name == "split_merged.json":
            yield from _merged(file)
        elif name.endswith(".jsonl"):
            key = "ID" if name.startswith("events") else "doc_id"
            for where, row in _lines(file):
                yield Article(_text(row, key, where), _text(row, "text", where))
        else:
            for number, line in enumerate(_open(file), 1):
                if line.strip():
                    yield Article(f"{file.name}#{number}", line.strip())


def passages(path: Path, tally: Tally) -> Iterator[Passage]:
    """Articles as passages, without near-copies of earlier ones (counted)."""
    copies = Copies()
    for article in articles(path):
        head, body = split(article.text)
        if not body.strip():
            tally.add("articles without text (left out)", article.id)
        elif (earlier := copies.of(article.id, body)) is not None:
            tally.add("near-copies of another article (left out)", f"{article.id} of {earlier}")
        else:
            written = written_on(head)
            yield Passage(
                "", tuple(sentences(body)), article.id, written.isoformat() if written else ""
            )


def split(text: str) -> tuple[str, str]:
    """The remarks before an article, and the article."""
    found = BODY.match(text)
    return (found.group(), text[found.end() :]) if found else ("", text)


class Copies:
    """Finds texts that have much of an earlier one's wording, without comparing all pairs.

    Texts that share one of their ``SKETCH`` least hashed shingles are compared whole.
    """

    def __init__(self) -> None:
        self._shingles: list[tuple[str, frozenset[int]]] = []
        self._having: dict[int, list[int]] = {}

    def of(self, name: str, text: str) -> str | None:
        """The earlier text that this is a near-copy of; if none, it is remembered as a new one."""
        plain = re.sub(r"\W", "", text)
        pieces = {plain[n : n + SHINGLE] for n in range(max(len(plain) - SHINGLE + 1, 1))}
        own = frozenset(zlib.crc32(piece.encode()) for piece in pieces)
        sketch = sorted(own)[:SKETCH]
        near = {other for piece in sketch for other in self._having.get(piece, ())}
        for other in sorted(near):
            earlier, shingles = self._shingles[other]
            if len(own & shingles) > SAME * min(len(own), len(shingles)):
                return earlier
        for piece in sketch:
            self._having.setdefault(piece, []).append(len(self._shingles))
        self._shingles.append((name, own))
        return None


def read(config: DataConfig, split: str, tally: Tally) -> Iterator[Question]:
    """Stream questions.

    Args:
        config: ``path`` is a folder, or a file of questions; the articles are those of
            ``graph_path`` where this is such a folder, else those beside the questions.
        split: ``test`` for all, or a task's number: ``1doc``, ``2docs``, ``3docs``.
        tally: Counts what is odd.

    Raises:
        ValueError: Unusable files or rows, or another split.
    """
    path = Path(config.path)
    tasks = {task.removeprefix("questanswer_"): task for task in TASKS.values()}
    if split != "test" and split not in tasks:
        raise ValueError(f"crud has no split {split!r}: test, {', '.join(tasks)}")
    texts = Path(config.graph_path)
    folder = texts if is_crud(texts) else path if path.is_dir() else path.parent
    known = {article.id: article.text for article in articles(folder)}
    for where, row in rows(path):
        name, task = _text(row, "ID", where), _text(row, "task", where)
        if split not in ("test", task.removeprefix("questanswer_")):
            continue
        if name not in known:
            tally.add("questions whose article is not there (left out)", where)
            continue
        asked, answers = row.get("question"), row.get("answers")
        if not isinstance(asked, list) or not isinstance(answers, list):
            raise BadRow(f"{where}: fields question and answers: expected lists")
        if len(asked) != len(answers):
            tally.add("rows with more questions than answers, or fewer", where)
        for number, (text, answer) in enumerate(zip(asked, answers, strict=False)):
            if not isinstance(text, str) or not isinstance(answer, str):
                raise BadRow(f"{where}: question {number}: expected texts")
            if not text.strip() or not answer.strip() or answer.strip() == UNKNOWN:
                continue
            if answer not in known[name]:
                tally.add("questions whose answer does not stand in their article", where)
                continue
            yield Question(
                id=f"{task.removeprefix('questanswer_')}/{name}/{number}", question=text,
                answers=(answer,), topics=(), graph=(), support=((name, 0),),
                support_unit="passage", group=task,
            )  # fmt: skip


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of RAGQuestEval's stored questions, and where each stands."""
    files = [path] if path.is_file() else sorted(path.glob("questeval.jsonl*"))
    files = files or sorted(file for file in path.glob("*.json") if _OFFICIAL.fullmatch(file.name))
    if not files:
        raise ValueError(f"data.path: {path} has neither questeval.jsonl nor QuestAnswer*.json")
    for file in files:
        official = _OFFICIAL.fullmatch(file.name)
        if official is None:
            yield from _lines(file)
            continue
        for name, row in _json(file).items():
            yield f"{file} {name}", {
                "ID": name, "task": TASKS[official[1]], "question": row.get("question", []),
                "answers": row.get("answers", []),
            }  # fmt: skip


def fingerprint(config: DataConfig) -> str:
    """Hash of questions and articles."""
    path, digest = Path(config.path), hashlib.sha256()
    files = [path] if path.is_file() else sorted(f for f in path.glob("*") if f.is_file())
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _article_files(path: Path) -> Iterator[Path]:
    for name in ("events.jsonl", "split_merged.json", "corpus.jsonl"):
        for file in (path / name, path / f"{name}.gz"):
            if file.is_file():
                yield file
    for found in sorted(path.glob("documents*")):
        if found.is_dir():
            yield from sorted(file for file in found.iterdir() if file.is_file())
        else:
            yield found


def _merged(file: Path) -> Iterator[Article]:
    """Articles of the official questions: one to three each, numbered where there are several."""
    for task, listed in _json(file).items():
        for number, row in enumerate(listed if task in TASKS.values() else ()):
            name = _text(row, "ID", f"{file} {task} row {number}")
            news = [row[key] for key in ("news1", "news2", "news3") if row.get(key)]
            for place, text in enumerate(news, 1):
                yield Article(name if place == 1 else f"{name}/{place}", str(text))


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads("".join(_open(file)))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: broken JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected an object")
    return found


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, row in json_rows.rows(file):
        if not isinstance(row, dict):
            raise BadRow(f"{where}: expected an object")
        yield where, row


def _open(file: Path) -> Iterable[str]:
    opened = gzip.open if file.name.endswith(".gz") else open
    try:
        with opened(file, "rt", encoding="utf-8-sig") as stream:
            yield from stream
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not readable: {error}") from error


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{where}: field {field}: expected text, got {str(value)[:80]!r}")
    return value
