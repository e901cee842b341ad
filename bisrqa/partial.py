"""Answers of an evaluation that is not finished yet: a file for each process that answers.

Each begins with a line that says of which evaluation it is. A process that dies leaves whole lines,
and at most one that was cut off. Whoever goes on, in as many processes as it likes, finds all of
them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bisrqa.files import append_text, write_text


def file_of(out: Path, process: int = 0) -> Path:
    """Where a process writes its answers."""
    return out / f"predictions.partial-{process}.jsonl"


def collect(out: Path, identity: str) -> dict[str, dict[str, Any]]:
    """All answers that are there, by question; they are in the first process's file afterwards.

    Raises:
        ValueError: A file belongs to another evaluation.
    """
    files = list(files_in(out))
    records = {r["id"]: r for file in files for r in read(file, identity)}
    lines = [{"identity": identity}, *records.values()]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_text(file_of(out), text)
    for file in files:
        if file != file_of(out):
            file.unlink()
    return records


def read(file: Path, identity: str) -> Iterator[dict[str, Any]]:
    """Answers in one file; a line that was cut off is left out.

    Raises:
        ValueError: It belongs to another evaluation.
    """
    # Bytes: the cut may be inside a character, and str.splitlines knows more line ends than \n.
    whole = file.read_bytes().split(b"\n")[:-1]
    if not whole:  # its process died before the first line was on disk
        return
    header, *lines = whole
    if header != json.dumps({"identity": identity}).encode():
        raise ValueError(f"{file} belongs to another evaluation; choose another --out or delete it")
    for line in lines:
        yield json.loads(line.decode("utf8"))


def append(file: Path, identity: str, records: list[dict[str, Any]]) -> None:
    """Add answers; they are on disk when it returns."""
    lines = [*([] if file.exists() else [{"identity": identity}]), *records]
    append_text(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def files_in(out: Path) -> Iterator[Path]:
    """The files of all processes."""
    yield from sorted(out.glob("predictions.partial-*.jsonl"))
