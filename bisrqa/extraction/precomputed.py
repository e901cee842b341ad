"""Triples that others have extracted, from files of JSON lines.

Three kinds of lines are known, by their keys: what ``bisrqa extract`` writes (``title``, ``text``,
``triples``, ``events``), KG2RAG's (``title`` and ``triples``, a mapping of the sentence's number to
[head, relation, tail] lists), and HippoRAG's OpenIE (``title``, ``text``, ``extracted_triples`` of
a whole paragraph).
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bisrqa.data.records import Chunk, Event, Triple
from bisrqa.extraction.base import Extraction, ends, sound
from bisrqa.extraction.store import events_of
from bisrqa.files import sha256
from bisrqa.text import normalise


class Precomputed:
    """Looks triples up by title and sentence, or by paragraph.

    A paragraph's triple is given to the chunk that holds most of its words. A title that the file
    lacks is no sign of a text without facts: ``lacking`` of the ``asked`` chunks had such a one.

    Args:
        path: The file, gzipped or not.

    Raises:
        ValueError: A file or line that is none of these; names file and line.
    """

    cached = False

    def __init__(self, path: Path):
        self._events: dict[tuple[str, str], tuple[Event, ...]] = {}
        self._by_sentence: dict[tuple[str, int], list[Triple]] = {}
        self._by_text: dict[tuple[str, str], list[Triple]] = {}
        self._by_paragraph: dict[str, list[tuple[str, list[Triple]]]] = {}
        self._titles: set[str] = set()
        self.asked, self.lacking = 0, 0
        for where, row in _rows(path):
            title = " ".join(row["title"].split()) if isinstance(row.get("title"), str) else None
            try:
                if title is None:
                    raise ValueError("no title")
                self._titles.add(title)
                if isinstance(row.get("triples"), dict):
                    for number, listed in row["triples"].items():
                        self._by_sentence[title, int(number)] = _triples(listed)
                elif "triples" in row:
                    self._by_text[title, row["text"]] = _triples(row["triples"])
                    self._events[title, row["text"]] = events_of(row)
                else:
                    text = normalise(row["text"])
                    known = self._by_paragraph.setdefault(title, [])
                    known.append((text, _triples(row["extracted_triples"])))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{where}: neither KG2RAG's nor OpenIE's triples: {error!r}"
                ) from error
        self.identity = f"precomputed/{sha256(path)[:16]}"

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        given: list[list[Triple]] = [[] for _ in chunks]
        for number, chunk in enumerate(chunks):
            given[number] += self._by_text.get((chunk.title, chunk.text), [])
            for sentence in range(chunk.start, chunk.stop):
                given[number] += self._by_sentence.get((chunk.title, sentence), [])
        paragraphs: dict[tuple[str, int], list[int]] = {}
        for number, chunk in enumerate(chunks):
            if chunk.title in self._by_paragraph:
                paragraphs.setdefault((chunk.title, chunk.paragraph), []).append(number)
        for (title, _), members in paragraphs.items():
            texts = [set(normalise(chunks[n].words).split()) for n in members]
            first = normalise(chunks[members[0]].text)
            for text, triples in self._by_paragraph[title]:
                if first not in text:
                    continue
                for triple in triples:
                    words = set(normalise(f"{triple.head} {triple.tail}").split())
                    best = max(range(len(members)), key=lambda i: (len(words & texts[i]), -i))
                    given[members[best]].append(triple)
        found = [sound(triples) for triples in given]
        absent = sum(chunk.title not in self._titles for chunk in chunks)
        self.lacking += absent
        self.asked += len(chunks)
        events = [self._events.get((chunk.title, chunk.text), ()) for chunk in chunks]
        return [
            Extraction(triples=triples, entities=ends(triples), events=some)
            for triples, some in zip(found, events, strict=True)
        ]


def _triples(listed: Any) -> list[Triple]:
    rows = [row for row in listed if len(row) == 3 and all(isinstance(p, str) for p in row)]
    return [Triple(*row) for row in rows]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    opened = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf8") as stream:
            for number, line in enumerate(stream, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("expected an object")
                yield f"{path}:{number}", row
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"extraction.path: {path}:{max(number, 1)}: {error}") from error
