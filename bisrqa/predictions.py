"""Predictions files: their records, one JSON object a line, and how answers are split."""

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MAX_SUSPECTS = 1_000
"""So many repeated hashes are enough to find a repeated id by."""


def split_answers(prediction: str | list[str]) -> list[str]:
    """The lines of a prediction, blank and repeated ones included.

    Only a newline separates answers. A list is taken as lines already split: RoG's code reorders
    a list by frequency and drops repeats, but its precision on a string is over all the lines, and
    only that reproduces the published outputs.
    """
    parts = [prediction] if isinstance(prediction, str) else prediction
    return [line for part in parts for line in part.split("\n")]


def split_golds(ground_truth: str | list[str]) -> list[str]:
    """The gold answers: a list as it is (repeats kept), a string by its non-blank lines."""
    if isinstance(ground_truth, str):
        return [line for line in ground_truth.split("\n") if line.strip()]
    return list(ground_truth)


def distinct(lines: list[str]) -> list[str]:
    """Lines stripped, without blank ones and repeats, in order of first appearance."""
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def read_predictions(path: str | Path) -> Iterator[dict]:
    """Yield the records of a ``.jsonl`` or ``.jsonl.gz`` file one by one, checked.

    Blank lines are skipped. ``id`` (str or int) may be absent; that ids differ is checked behind
    the last record, so that eight bytes a line are all that is kept.

    Raises:
        ValueError: With ``file:line`` and the field, at the first line that is no usable record;
            at the end, if an id came twice.
    """
    path = Path(path)
    hashes = array("q")
    for _, record in _numbered_records(path):
        if "id" in record:
            hashes.append(hash(record["id"]))
        yield record
    _refuse_repeated(path, hashes)


def _refuse_repeated(path: Path, hashes: array) -> None:
    """Raise if an id came twice; sorts its argument.

    Eight bytes an id are kept while reading. Only where two hashes agree is the file read again,
    which finds the line, and tells ids that only share a hash from the same id.
    """
    if not hashes:
        return
    ordered = np.frombuffer(hashes, dtype=np.int64)
    ordered.sort()
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]][:MAX_SUSPECTS].tolist())
    if not suspects:
        return
    seen: dict[str | int, int] = {}
    for number, record in _numbered_records(path):
        id = record.get("id")
        if id is None or hash(id) not in suspects:
            continue
        if id in seen:
            raise ValueError(f"{path}:{number}: duplicate id {id!r}, first in line {seen[id]}")
        seen[id] = number


def _numbered_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The usable records of a file, each with its line number."""
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"{path}: expected a .jsonl or .jsonl.gz file")
    empty = True
    for number, raw in _numbered_lines(path):
        where = f"{path}:{number}"
        try:
            line = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8: {error}") from error
        if not line.strip():
            continue
        empty = False
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: broken JSON: {error}") from error
        if problem := problem_of(record):
            raise ValueError(f"{where}: {problem}")
        yield number, record
    if empty:
        raise ValueError(f"{path}: no predictions")


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            for number, raw in enumerate(file, start=1):
                yield number, raw
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path}:{number + 1}: broken gzip: {error}") from error


def problem_of(record: object) -> str | None:
    """What makes a record unusable, or None."""
    if not isinstance(record, Mapping):
        return f"expected an object with prediction and ground_truth, got {type(record).__name__}"
    if "id" in record and (
        isinstance(record["id"], bool) or not isinstance(record["id"], str | int)
    ):
        return f"id: expected str or int, got {record['id']!r}"
    who = f" (id {record['id']!r})" if "id" in record else ""
    for field in ("prediction", "ground_truth"):
        if field not in record:
            return f"missing field {field}{who}"
        value = record[field]
        if isinstance(value, list):
            wrong = [item for item in value if not isinstance(item, str)]
            if wrong:
                return f"{field}: expected a list of str, found {wrong[0]!r} in it{who}"
        elif not isinstance(value, str):
            return f"{field}: expected str or list of str, got {type(value).__name__}{who}"
    if not split_golds(record["ground_truth"]):
        return f"ground_truth is empty{who}"
    if not isinstance(record.get("question", ""), str | None):
        return f"question: expected str, got {record['question']!r}{who}"
    if not isinstance(record.get("group", ""), str | None):
        return f"group: expected str, got {record['group']!r}{who}"
    hops = record.get("hops")
    if isinstance(hops, bool) or not isinstance(hops, int | None) or (hops or 0) < 0:
        return f"hops: expected a count or null, got {hops!r}{who}"
    return None
