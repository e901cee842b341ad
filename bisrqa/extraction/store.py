"""What was extracted, kept by content: nothing is read twice, and nothing is lost.

A folder for each extractor's identity holds ``extractions.jsonl``, a line for each chunk, and
``bad_replies.jsonl`` with the replies that could not be understood. Lines are only added, a batch
at a time and written through to the disk, so that a run that is killed loses at most the batch
that it was working on; half a line at the end is cut off when the file is opened again.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from bisrqa.config import ExtractionConfig
from bisrqa.data.records import Chunk, Event, Triple
from bisrqa.extraction.base import Extraction, Extractor
from bisrqa.files import room_for

logger = logging.getLogger(__name__)

FILE, BAD, NAME = "extractions.jsonl", "bad_replies.jsonl", "extractor.json"
CHARS_A_TOKEN = 4


class BudgetSpent(ValueError):
    """As much was extracted as was allowed; what was done is kept."""


@dataclass
class Report:
    """What a run did."""

    chunks: int = 0
    distinct: int = 0
    cached: int = 0
    extracted: int = 0
    bad_replies: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    seconds: float = 0.0


class Store:
    """The extractions of one extractor.

    Args:
        extractor: Asked for what is missing.
        folder: Extractions are kept below it, by the extractor's identity.
    """

    def __init__(self, extractor: Extractor, folder: Path):
        self._extractor = extractor
        name = hashlib.sha256(extractor.identity.encode()).hexdigest()[:16]
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, Extraction] = {}
        self._bad: dict[str, Extraction] = {}
        self._read_upto = {FILE: 0, BAD: 0}

    def __call__(
        self, chunks: Sequence[Chunk], config: ExtractionConfig, *, progress: bool = False
    ) -> tuple[list[Extraction], Report]:
        """Extractions in the order of the chunks, and what it took.

        Raises:
            BudgetSpent: ``config.max_tokens`` or ``.max_seconds`` did not suffice.
        """
        keys = [_key(chunk) for chunk in chunks]
        report = Report(chunks=len(chunks), distinct=len(set(keys)))
        started = time.perf_counter()
        with FileLock(self.folder / "lock"):
            self._refresh()
            if config.retry_bad:
                self._bad.clear()
            missing = {
                key: chunk
                for key, chunk in zip(keys, chunks, strict=True)
                if key not in self._known and key not in self._bad
            }
            report.cached = report.distinct - len(missing)
            if missing:
                self._extract(missing, config, report, started, progress=progress)
        report.seconds = round(time.perf_counter() - started, 3)
        found = [self._known.get(key) or self._bad[key] for key in keys]
        report.bad_replies = sum(key not in self._known for key in set(keys))
        if report.bad_replies:
            logger.warning(
                "replies that could not be understood: %d of %d chunks (they are in %s; "
                "--extraction.retry_bad true asks again)",
                report.bad_replies, report.distinct, self.folder / BAD,
            )  # fmt: skip
        return found, report

    def _extract(
        self,
        missing: dict[str, Chunk],
        config: ExtractionConfig,
        report: Report,
        started: float,
        *,
        progress: bool,
    ) -> None:
        tokens = sum(len(chunk.words) for chunk in missing.values()) // CHARS_A_TOKEN
        logger.info(
            "extracting from %d chunks (%d are known), about %d tokens of text",
            len(missing), report.cached, tokens,
        )  # fmt: skip
        items = list(missing.items())
        with tqdm(total=len(items), desc="extracting", unit="chunk", disable=not progress) as bar:
            for at in range(0, len(items), config.batch_size):
                self._check_budget(config, report, started, len(items) - at)
                batch = items[at : at + config.batch_size]
                found = self._extractor([chunk for _, chunk in batch])
                self._write(batch, found)
                report.extracted += len(batch)
                report.prompt_tokens += sum(e.prompt_tokens for e in found)
                report.reply_tokens += sum(e.reply_tokens for e in found)
                if not at and len(items) > len(batch):
                    left = (time.perf_counter() - started) * (len(items) / len(batch) - 1)
                    used = (report.prompt_tokens + report.reply_tokens) * len(items) // len(batch)
                    logger.info(
                        "by the first %d chunks all will take about %.0f s more and %d tokens",
                        len(batch), left, used,
                    )  # fmt: skip
                bar.update(len(batch))

    def _check_budget(
        self, config: ExtractionConfig, report: Report, started: float, left: int
    ) -> None:
        spent = {
            "max_tokens": report.prompt_tokens + report.reply_tokens,
            "max_seconds": time.perf_counter() - started,
        }
        for name, value in spent.items():
            limit = getattr(config, name)
            if limit is not None and value >= limit:
                raise BudgetSpent(
                    f"extraction.{name} {limit} is spent: {left} chunks are left; what was "
                    "extracted is kept, so raise it and run the same command again to go on"
                )

    def _write(self, batch: Sequence[tuple[str, Chunk]], found: Sequence[Extraction]) -> None:
        lines: dict[str, list[str]] = {FILE: [], BAD: []}
        for (key, chunk), extraction in zip(batch, found, strict=True):
            row: dict[str, Any] = {"key": key}
            used = [extraction.prompt_tokens, extraction.reply_tokens]
            if extraction.bad_reply is not None:
                row |= {"text": chunk.words, "reply": extraction.bad_reply, "tokens": used}
                lines[BAD].append(json.dumps(row, ensure_ascii=False))
                self._bad[key] = extraction
                continue
            row |= {"triples": extraction.triples, "entities": extraction.entities, "tokens": used}
            if extraction.events:
                row["events"] = extraction.events
            lines[FILE].append(json.dumps(row, ensure_ascii=False))
            self._known[key] = extraction
            self._bad.pop(key, None)
        for name, some in lines.items():
            if some:
                self._append(self.folder / name, "".join(line + "\n" for line in some))
                self._read_upto[name] = (self.folder / name).stat().st_size

    @staticmethod
    def _append(file: Path, text: str) -> None:
        with room_for(file, len(text.encode("utf8"))), file.open("ab") as stream:
            stream.write(text.encode("utf8"))
            stream.flush()
            os.fsync(stream.fileno())

    def _refresh(self) -> None:
        """Read what was added since, by this process or another."""
        name = self.folder / NAME
        if not name.exists():
            name.write_text(json.dumps({"identity": self._extractor.identity}) + "\n", "utf8")
        for row in self._new_rows(FILE):
            triples = tuple(Triple(*triple) for triple in row["triples"])
            self._known[row["key"]] = Extraction(
                triples=triples, entities=tuple(row["entities"]), events=events_of(row),
                prompt_tokens=row["tokens"][0], reply_tokens=row["tokens"][1],
            )  # fmt: skip
        for row in self._new_rows(BAD):
            self._bad[row["key"]] = Extraction(bad_reply=row["reply"])

    def _new_rows(self, name: str) -> Iterator[dict[str, Any]]:
        file = self.folder / name
        if not file.exists():
            return
        with file.open("rb") as stream:
            stream.seek(self._read_upto[name])
            raw = stream.read()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            logger.warning("%s: half a line at the end is cut off", file)
            os.truncate(file, self._read_upto[name] + whole)
        for number, line in enumerate(raw[:whole].splitlines(), 1):
            try:
                row = json.loads(line)
                if not {"key", "tokens"} <= row.keys():
                    raise ValueError("keys are missing")
            except ValueError as error:
                raise ValueError(
                    f"{file}: line {number} after byte {self._read_upto[name]} is damaged "
                    f"({error}); delete the line, or the file to extract anew"
                ) from error
            yield row
        self._read_upto[name] += whole


def events_of(row: Mapping[str, Any]) -> tuple[Event, ...]:
    """Events of a line of JSON."""
    return tuple(
        Event(name, time, place, tuple(participants), interval)
        for name, time, place, participants, interval in row.get("events", ())
    )


def _key(chunk: Chunk) -> str:
    """By what a chunk's extraction is found again: its words, and its date, which tells years."""
    text = f"{chunk.words}\0{chunk.written}" if chunk.written else chunk.words
    return hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest()[:32]
