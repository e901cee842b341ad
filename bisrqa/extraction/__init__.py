"""Extraction of triples or events from texts: one file a method, and what chooses among them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisrqa import chat
from bisrqa.config import ExtractionConfig
from bisrqa.data.records import Chunk, Question
from bisrqa.extraction.base import Extraction, Extractor, Task
from bisrqa.extraction.clauses import Clauses
from bisrqa.extraction.events import EVENTS
from bisrqa.extraction.model import Model
from bisrqa.extraction.precomputed import Precomputed
from bisrqa.extraction.store import Report, Store
from bisrqa.extraction.syntax import Syntax
from bisrqa.extraction.triples import TRIPLES

logger = logging.getLogger(__name__)

TASKS: dict[str, Task] = {"triples": TRIPLES, "events": EVENTS}


def build(config: ExtractionConfig, cache_dir: Path) -> Extractor:
    """The extractor that ``config.method`` names."""
    if config.method == "precomputed":
        return Precomputed(Path(config.path))
    if config.method == "syntax":
        return Syntax() if config.what == "triples" else Clauses()
    if config.method in ("llm", "server"):
        talker = chat.build(config.method, config, cache_dir, "extraction.method")
        return Model(talker, TASKS[config.what])
    raise ValueError("extraction.method is none: there is nothing to extract with")


class Reader:
    """Extracts from chunks, each text once; keeps what was costly.

    Args:
        config: The method and its settings.
        cache_dir: Extractions are kept below it.
        progress: Show progress bars.
    """

    def __init__(self, config: ExtractionConfig, cache_dir: Path, *, progress: bool = False):
        self._config, self._progress = config, progress
        self._extractor = build(config, cache_dir)
        self._store = None
        if self._extractor.cached:
            self._store = Store(self._extractor, cache_dir / "extractions")
        self.identity = self._extractor.identity
        self.bad_replies = 0
        """Chunks of :meth:`read` so far whose replies could not be understood."""

    def __call__(self, chunks: Sequence[Chunk]) -> tuple[list[Extraction], Report]:
        """One extraction a chunk, in order, and what it took."""
        if self._store is not None:
            return self._store(chunks, self._config, progress=self._progress)
        return self._extractor(chunks), Report(chunks=len(chunks), distinct=len(set(chunks)))

    def read(self, questions: Sequence[Question]) -> list[Question]:
        """The questions with what their texts tell, besides what they have."""
        found, report = self([chunk for question in questions for chunk in question.chunks])
        self.bad_replies += report.bad_replies
        if isinstance(self._extractor, Precomputed) and self._extractor.lacking:
            logger.info(
                "%s has triples for the titles of %d of %d chunks", self._config.path,
                self._extractor.asked - self._extractor.lacking, self._extractor.asked,
            )  # fmt: skip
        extractions = iter(found)
        return [
            _with(question, [next(extractions) for _ in question.chunks]) for question in questions
        ]


def _with(question: Question, found: Sequence[Extraction]) -> Question:
    rows = [(triple, number) for number, e in enumerate(found) for triple in e.triples]
    names = [(number, name) for number, e in enumerate(found) for name in e.entities]
    events = [(number, event) for number, e in enumerate(found) for event in e.events]
    return replace(
        question,
        graph=(*question.graph, *(triple for triple, _ in rows)),
        sources=(*question.sources, *(number for _, number in rows)),
        named=(*question.named, *names),
        events=(*question.events, *events),
    )


__all__ = ["Extraction", "Extractor", "Reader", "Report", "build"]
