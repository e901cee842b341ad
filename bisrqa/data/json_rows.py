"""Rows of JSON files: one object a line, or one list of objects, gzipped or not."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bisrqa.config import DataConfig
from bisrqa.data.records import Question
from bisrqa.data.tally import BadRow, Tally

ENDINGS = (".jsonl.gz", ".jsonl", ".json.gz", ".json")


def read(
    config: DataConfig,
    split: str,
    tally: Tally,
    question_of: Callable[[dict[str, Any], str, DataConfig, Tally], Question],
) -> Iterator[Question]:
    """Stream one split's questions in file order.

    Args:
        config: Where, and what becomes of bad rows.
        split: Name of the file, before its ending.
        tally: Counts what is odd.
        question_of: Makes a question of a row; raises :class:`BadRow`.

    Raises:
        ValueError: An unusable row (:class:`BadRow`) or file, or an unknown split; names file, row
        and field.
    """
    seen: dict[str, str] = {}
    for where, row in rows(_file(config, split)):
        try:
            if not isinstance(row, dict):
                raise BadRow(f"{where}: expected an object, got {type(row).__name__}")
            question = question_of(row, where, config, tally)
            if question.id in seen:
                raise BadRow(f"{where}: id {question.id!r} was already used by {seen[question.id]}")
        except BadRow as error:
            if config.on_bad_row == "error":
                raise BadRow(
                    f"{error} (leave such rows out with --data.on_bad_row skip)"
                ) from error
            tally.add("rows left out", str(error))
            continue
        seen[question.id] = where
        if not question.chunks and config.graph == "question":
            if config.on_empty_graph == "error":
                raise BadRow(f"{where}: no texts (choose with --data.on_empty_graph skip or keep)")
            tally.add("rows without texts", where)
            if config.on_empty_graph == "skip":
                continue
        yield question


def fingerprint(config: DataConfig) -> str:
    """Hash of all files of the data set."""
    path, digest = Path(config.path), hashlib.sha256()
    for file in [path] if path.is_file() else _files(path):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def text(row: dict[str, Any], field: str, where: str) -> str:
    """A field that must hold text.

    Raises:
        BadRow: It does not.
    """
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"{where}: field {field}: expected text, got {value!r}")
    return value


def _files(path: Path) -> list[Path]:
    return [f for f in sorted(path.iterdir()) if f.name.endswith(ENDINGS)] if path.is_dir() else []


def _file(config: DataConfig, split: str) -> Path:
    if not config.path:
        raise ValueError("data.path is empty: give a folder of JSON files, or one of them")
    path = Path(config.path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(
            f"data.path: {config.path} does not exist (give another with --data.path FOLDER)"
        )
    for ending in ENDINGS:
        if (file := path / (split + ending)).is_file():
            return file
    names = ", ".join(f.name for f in _files(path)) or "no JSON files"
    raise ValueError(f"data.path: {path} has no split {split!r} (it holds {names})")


def rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Every row and where it stands.

    Raises:
        ValueError: The file is broken; names file and line.
    """
    opened = gzip.open if file.name.endswith(".gz") else open
    number = 0
    try:
        with opened(file, "rt", encoding="utf-8-sig") as stream:
            if file.name.removesuffix(".gz").endswith(".json"):
                rows = json.load(stream)
                if not isinstance(rows, list):
                    raise ValueError(f"{file}: expected a list of rows")
                for number, row in enumerate(rows):
                    yield f"{file} row {number}", row
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield f"{file}:{number}", _loads(line, f"{file}:{number}")
    except json.JSONDecodeError as error:  # of the whole
        raise ValueError(f"{file}:{error.lineno}: broken JSON: {error}") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{file}:{number + 1}: not readable: {error}") from error


def _loads(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise BadRow(f"{where}: broken JSON: {error}") from error
