"""Examples and their tokens, made once and kept in shards in the cache.

    prepared/<split>-<hash of all that examples depend on>/
        begun.json      what that is, and the questions of a shard
        shard-00000/    256 examples, as :mod:`bisrqa.shards` keeps them
        split.json      written last: how many there are
        words-<hash of tokenizer and prompt settings>/shard-00000/ ...

What is there is used, what is missing is made; the folder can be deleted at any time. Of two
processes that want the same, one makes it and the other waits.
"""

import json
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from filelock import FileLock, Timeout

from bisrqa import data, examples, provenance, sharding, shards
from bisrqa.collate import Prepared
from bisrqa.config import RunConfig
from bisrqa.data.records import Question, is_bare_id
from bisrqa.examples import Example, Retriever
from bisrqa.files import write_text
from bisrqa.prompt import PromptBuilder
from bisrqa.sharding import Engine

logger = logging.getLogger(__name__)

SHARD_QUESTIONS = 256
"""A multiple of the questions that are retrieved for at once."""
BEGUN, SPLIT = "begun.json", "split.json"
T = TypeVar("T")


class Heading(NamedTuple):
    """What is known of an example without reading it."""

    id: str
    source_digest: bytes
    golds_in_evidence: int
    can_be_taught: bool
    """Whether it has a gold that can be written."""


class Chosen(Sequence[T]):
    """Some of a sequence, by place; each is read when it is asked for."""

    def __init__(self, of: Sequence[T], places: Sequence[int]):
        self._of, self._places = of, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> "Chosen[T]": ...
    def __getitem__(self, place: int | slice) -> "T | Chosen[T]":
        if isinstance(place, slice):
            return Chosen(self._of, self._places[place])
        return self._of[self._places[place]]


class Records(Sequence[Any]):
    """Records of several shards, in order; none is read before it is asked for.

    Raises:
        ValueError: A shard is damaged; names its file.
    """

    def __init__(self, folder: Path, count: int):
        self.shards = [shards.Shard(folder / _name(number)) for number in range(count)]
        self._ends = list(accumulate(map(len, self.shards)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Chosen(self, range(len(self))[place])
        place = range(len(self))[place]
        number = bisect_right(self._ends, place)
        shard = self.shards[number]
        return shard[place - self._ends[number] + len(shard)]


class Examples(Records):
    """The examples of a split."""

    def __init__(self, folder: Path):
        self.folder = folder
        super().__init__(folder, json.loads((folder / SPLIT).read_text("utf8"))["shards"])
        rows = [row for shard in self.shards for row in shard.facts["headings"]]
        self.headings = [Heading(row[0], bytes.fromhex(row[1]), *row[2:]) for row in rows]
        self.seconds = dict(sum((Counter(s.facts["seconds"]) for s in self.shards), Counter()))
        """What was spent on making them, by stage."""

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return len(self[0].question_x)


class Tokenised(Sequence[Prepared]):
    """The examples of a split with their tokens."""

    def __init__(self, found: Examples, folder: Path):
        self.examples, self._words = found, Records(folder, len(found.shards))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Chosen(self, range(len(self))[place])
        return Prepared(self.examples[place], self._words[place])


@dataclass
class Preparation:
    """Makes what is missing, and opens it.

    Args:
        config: Of the run.
        cache_dir: Shards are kept below it.
        device: Where heads work.
        engine: See :func:`bisrqa.sharding.run`.
        workers: The same.
        shard_questions: Questions of a shard, of splits that are not begun yet.
        progress: Show progress bars.
    """

    config: RunConfig
    cache_dir: Path
    device: str = "cpu"
    engine: Engine = "local"
    workers: int = 1
    shard_questions: int = SHARD_QUESTIONS
    progress: bool = False

    def __post_init__(self) -> None:
        if self.shard_questions < 1:
            raise ValueError(f"--shard_questions must be positive, got {self.shard_questions}")

    def examples(self, split: str, limit: int | None = None) -> Examples:
        """All examples of a split, or of its first ``limit`` questions.

        Raises:
            ValueError: Data that cannot be used, a damaged shard, or shards that failed.
        """
        depends_on = provenance.of_examples(self.config, split, limit, self.cache_dir)
        plain = re.sub(r"[^\w.-]+", "_", split)
        folder = self.cache_dir / "prepared" / f"{plain}-{provenance.digest(depends_on)}"
        if not self._complete(folder):
            with _alone(folder):
                if not self._complete(folder):
                    self._make_examples(folder, depends_on, split, limit)
        return Examples(folder)

    def tokenised(self, found: Examples, builder: PromptBuilder) -> Tokenised:
        """Examples with their tokens."""
        depends_on = provenance.of_words(builder.tokenizer, builder.config)
        folder = found.folder / f"words-{provenance.digest(depends_on)}"
        names = [_name(number) for number in range(len(found.shards))]
        if not all((folder / name).is_dir() for name in names):
            with _alone(folder):
                missing = [n for n, name in enumerate(names) if not (folder / name).is_dir()]
                todo = (
                    sharding.Shard(names[number], _said(found.shards[number].facts), number)
                    for number in missing
                )
                make = _MakeWords(found, builder, folder)
                self._run(make, todo, len(missing), f"tokenising {found.folder.name}")
        return Tokenised(found, folder)

    def _complete(self, folder: Path) -> bool:
        file = folder / SPLIT
        if not file.exists():
            return False
        count = json.loads(file.read_text("utf8"))["shards"]
        return all(self._is_done(folder / _name(number)) for number in range(count))

    def _is_done(self, shard: Path) -> bool:
        if not shard.is_dir():
            return False
        return not (self.config.extraction.retry_bad and shards.Shard(shard).facts["bad_replies"])

    def _make_examples(
        self, folder: Path, depends_on: dict[str, Any], split: str, limit: int | None
    ) -> None:
        begun = folder / BEGUN
        if not begun.exists():
            text = json.dumps({"shard_questions": self.shard_questions} | depends_on, indent=1)
            write_text(begun, text + "\n")
        size = json.loads(begun.read_text("utf8"))["shard_questions"]
        if size != self.shard_questions:
            logger.info("%s was begun with %d questions a shard and keeps to it", folder, size)
        if self.config.data.graph != "question":  # made once, before there are several workers
            Retriever(self.config, self.cache_dir, progress=self.progress)
        made = Counter[str]()

        def todo() -> Iterator[sharding.Shard]:
            questions = data.read(self.config.data, split, limit=limit)
            while some := list(islice(questions, size)):
                number, start = made["shards"], made["questions"]
                made.update(shards=1, questions=len(some))
                if not self._is_done(folder / _name(number)):
                    said = _said({"first": start, "headings": [[q.id] for q in some]})
                    yield sharding.Shard(_name(number), said, (number, start, some))

        expected = data.size(self.config.data, split, limit=limit)
        total = None if expected is None else -(-expected // size)
        alone = self.engine == "local"
        make = _MakeExamples(
            self.config, self.cache_dir, self.device, folder, alone and self.progress
        )
        self._run(make, todo(), total, f"preparing {split}")
        write_text(folder / SPLIT, json.dumps(dict(made)) + "\n")
        found = Examples(folder)
        lacking = sum((Counter(shard.facts["lacking"]) for shard in found.shards), Counter[str]())
        examples.report_lacking(self.config, lacking)
        size = sum((shard.folder / shards.ROWS).stat().st_size for shard in found.shards)
        logger.info(
            "prepared %s: %d questions, %.1f MB in %s", split, len(found), size / 1e6, folder
        )

    def _run(
        self, work: sharding.Work, todo: Iterator[sharding.Shard], total: int | None, describe: str
    ) -> None:
        sharding.run(
            work, todo, engine=self.engine, workers=self.workers, total=total, describe=describe,
            progress=self.progress,
        )  # fmt: skip


def asked_for(config: RunConfig, names: Sequence[str] | None) -> list[tuple[str, int | None]]:
    """Splits that a run and its evaluation read, and how many questions of each.

    Args:
        config: Of the run.
        names: Only these; one that training does not read is limited as ``evaluation.limit`` says.
    """
    taught = [
        (config.data.train_split, config.data.train_limit),
        (config.data.validation_split, config.training.validation_limit),
    ]
    answered = config.evaluation.limit
    if names is None:
        return list(dict.fromkeys([*taught, (config.evaluation.split, answered)]))
    known = {name for name, _ in taught} - {config.evaluation.split}
    chosen = [(name, limit) for name, limit in taught if name in names]
    return list(
        dict.fromkeys([*chosen, *((name, answered) for name in names if name not in known)])
    )


@dataclass
class _MakeExamples:
    config: RunConfig
    cache_dir: Path
    device: str
    folder: Path
    progress: bool

    @cached_property
    def retriever(self) -> Retriever:
        return Retriever(self.config, self.cache_dir, device=self.device, progress=self.progress)

    def __call__(self, content: tuple[int, int, list[Question]]) -> None:
        number, start, questions = content
        retriever = self.retriever
        retriever.refresh()
        seconds, bad = dict(retriever.seconds), retriever.bad_replies
        found: list[Example] = list(
            retriever(questions, describe=f"retrieving, {_name(number)}", report=False)
        )
        headings = [
            [
                e.question.id,
                e.source_digest.hex(),
                e.golds_in_evidence,
                not all(map(is_bare_id, e.question.answers)),
            ]
            for e in found
        ]
        shards.write(
            self.folder / _name(number),
            found,
            first=start,
            headings=headings,
            seconds={stage: spent - seconds[stage] for stage, spent in retriever.seconds.items()},
            lacking=dict(retriever.lacking),
            bad_replies=retriever.bad_replies - bad,
        )


@dataclass
class _MakeWords:
    found: Examples
    builder: PromptBuilder
    folder: Path

    def __call__(self, number: int) -> None:
        shard = self.found.shards[number]
        words = self.builder.words([shard[row] for row in range(len(shard))])
        shards.write(self.folder / _name(number), words)


def _name(number: int) -> str:
    return f"shard-{number:05d}"


def _said(facts: dict[str, Any]) -> str:
    start, ids = facts["first"], [row[0] for row in facts["headings"]]
    return f"questions {start} to {start + len(ids) - 1}, {ids[0]} to {ids[-1]}"


def _alone(folder: Path) -> FileLock:
    """Nobody else makes the same; says so while it waits."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=1)
        lock.release()
    except Timeout:
        logger.info("waiting for another process that makes %s", folder)
    return lock
