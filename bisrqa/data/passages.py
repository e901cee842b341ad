"""Passages of text: reading files of them, and cutting them into chunks."""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

from bisrqa.data.records import Chunk
from bisrqa.data.tally import BadRow, Tally

ENDINGS = (".txt", ".md", ".jsonl")
# Where a sentence may end: Latin marks before white space, Chinese ones anywhere.
_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n\s*\n)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“‘])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|Rev|Hon|Gen|Col|Capt|Lt|Sgt|Gov|Sen|Rep|St|Mt|Ft|"
    r"Jr|Sr|Inc|Ltd|Co|Corp|Bros|vs|v|etc|al|cf|ca|c|approx|No|Nos|Vol|Vols|pp|ed|eds|fig|Jan|Feb|Mar|"
    r"Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec|[A-Za-z](?:\.[A-Za-z])+)\.$"
)
_WORD = re.compile(r"[\u3400-\u9fff]|[^\s\u3400-\u9fff]+")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")


class Passage(NamedTuple):
    """A text and what it stands under."""

    title: str
    sentences: tuple[str, ...]
    """In order; blank ones keep their number and become no chunk."""
    id: str = ""
    """By which it is replaced or removed in a corpus."""
    written: str = ""
    """Date (ISO 8601) from which *yesterday* is understood; empty where it is not known."""


def sentences(text: str) -> list[str]:
    """Cut a text into sentences.

    A full stop ends one unless it belongs to an initial, a known abbreviation or a number, or a
    small letter follows; an empty line always does. Joined by blanks the sentences are the text.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        upto, rest = text[start : match.end()], text[match.end() :].lstrip()
        mark = match.group()
        if mark.startswith("."):
            plain = upto.rstrip("\"'”’)]")
            if _ABBREVIATION.search(plain) or (rest[:1].islower() and mark[-1] == "."):
                continue
        if upto.strip():
            found.append(upto.strip())
        start = match.end()
    if text[start:].strip():
        found.append(text[start:].strip())
    return found


def count_words(text: str) -> int:
    """Words; of Chinese every character is one."""
    return len(_WORD.findall(text))


def chunks_of(
    passages: Iterable[Passage],
    unit: Literal["sentence", "window"] = "sentence",
    window: int = 100,
    overlap: int = 0,
) -> Iterator[Chunk]:
    """Cut passages, in order.

    Args:
        passages: Blank sentences become nothing.
        unit: Every sentence, or windows of whole sentences.
        window: Words that a window may have; a longer sentence is one alone.
        overlap: Sentences that a window shares with the one before it.
    """
    for number, (title, parts, source, written) in enumerate(passages):
        places = [place for place, part in enumerate(parts) if part.strip()]
        step = 0
        while step < len(places):
            stop = step + 1
            if unit == "window":
                room = window - count_words(parts[places[step]])
                while stop < len(places):
                    room -= count_words(parts[places[stop]])
                    if room < 0:
                        break
                    stop += 1
            some = places[step:stop]
            text = " ".join(" ".join(parts[place] for place in some).split())
            yield Chunk(
                " ".join(title.split()), text, number, some[0], some[-1] + 1, source, written
            )
            if stop == len(places):
                break
            step = max(step + 1, stop - overlap) if unit == "window" else stop


def read_passages(path: Path, tally: Tally | None = None) -> Iterator[Passage]:
    """Passages of a ``.txt``, ``.md`` or ``.jsonl`` file, or of a folder of them, by name.

    A ``.txt`` file is one passage with the file's name as its title, a ``.md`` file one for each
    heading, a ``.jsonl`` file one a line: an object with ``text``, or ``sentences`` that are cut
    already, and, if it likes, ``title``, ``id`` and ``date`` (``2023-07-20``). Without an id of
    its own a passage is called by file and line. Passages without text are left out and counted.

    Raises:
        ValueError: Nothing to read, or a line that is no passage; names file and line.
    """
    tally = Tally() if tally is None else tally
    if path.is_dir():
        files = [f for f in sorted(path.rglob("*")) if f.suffix in ENDINGS and f.is_file()]
    else:
        files = [path]
    if not path.exists() or not files or files[0].suffix not in ENDINGS:
        raise ValueError(f"{path}: expected a file or folder of {', '.join(ENDINGS)}")
    for file in files:
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        for title, text, place, own, written in _READ[file.suffix](file):
            parts = tuple(sentences(text)) if isinstance(text, str) else text
            where = f"{file}{place}"
            if any(part.strip() for part in parts):
                yield Passage(title, parts, own or f"{name}{place}", written)
            else:
                tally.add("passages without text (left out)", where)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        with file.open(encoding="utf-8-sig") as stream:
            yield from enumerate(stream, 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a readable text: {error}") from error


Found = tuple[str, str | tuple[str, ...], str, str, str]
"""Title, text or sentences, where in its file, id and date if it has them."""


def _txt(file: Path) -> Iterator[Found]:
    yield file.stem, "".join(line for _, line in _lines(file)), "", "", ""


def _md(file: Path) -> Iterator[Found]:
    title, body, place = file.stem, [], ":1"
    for number, line in _lines(file):
        if heading := _HEADING.match(line.strip()):
            if "".join(body).strip():
                yield title, "".join(body), place, "", ""
            title, body, place = heading.group(1), [], f":{number}"
        else:
            body.append(line)
    yield title, "".join(body), place, "", ""


def _jsonl(file: Path) -> Iterator[Found]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadRow(f"{where}: broken JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadRow(f"{where}: expected an object with text and title, got {line[:80]!r}")
        title, text, own = row.get("title", ""), row.get("text"), row.get("id", "")
        if isinstance(parts := row.get("sentences"), list):
            text = tuple(parts)
        if isinstance(text, tuple) and not all(isinstance(part, str) for part in text):
            text = None
        if text is None or not isinstance(text, str | tuple) or not isinstance(title, str):
            raise BadRow(f"{where}: expected an object with text and title, got {line[:80]!r}")
        if not isinstance(own, str | int):
            raise BadRow(f"{where}: field id: expected text, got {own!r}")
        yield title, text, f":{number}", str(own), _date(row.get("date", ""), where)


def _date(value: object, where: str) -> str:
    try:
        return date.fromisoformat(value).isoformat() if isinstance(value, str) and value else ""
    except ValueError as error:
        raise BadRow(f"{where}: field date: expected a date like 2023-07-20: {error}") from error


_READ = {".txt": _txt, ".md": _md, ".jsonl": _jsonl}
