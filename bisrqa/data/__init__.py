"""Readers: one file a data set, each yields :class:`~bisrqa.data.records.Question` records."""

import hashlib
import logging
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from bisrqa.config import DataConfig
from bisrqa.data import ablation, crud, hotpotqa, musique, questions, quickstart, rog
from bisrqa.data.passages import Passage, read_passages
from bisrqa.data.records import Question
from bisrqa.data.tally import Tally
from bisrqa.files import sha256

logger = logging.getLogger(__name__)

_SLICE = re.compile(r"(.+)\[(\d*):(\d*)\]")
CORPUS = "corpus.json"
"""The file of a corpus of texts that says what is in it."""
READERS = {
    "rog": rog,
    "hotpotqa": hotpotqa,
    "musique": musique,
    "questions": questions,
    "crud": crud,
}


def read(
    config: DataConfig, split: str, *, limit: int | None = None, report: bool = True
) -> Iterator[Question]:
    """Stream a split's questions; what is odd in the data is logged once, at the end of the split.

    Args:
        config: Where the data is, and what is taken away from it.
        split: Its name; ``train[:80]`` or ``train[80:]`` is a part of it.
        limit: Only the first so many.
        report: Log what is odd; not for who reads the same split a second time.

    Raises:
        ValueError: As the reader of ``config.source`` says.
    """
    split, start, stop = _part(split)
    if limit is not None:
        stop = start + limit if stop is None else min(stop, start + limit)
    tally = Tally()
    if config.source == "quickstart":
        asked = iter(_quickstart(split))
    else:
        asked = READERS[config.source].read(config, split, tally)
    for question in islice(asked, start, stop):
        yield ablation.ablate(question, config)
    for line in tally.lines() if report else ():
        logger.warning("%s %s: %s", config.path, split, line)


def size(config: DataConfig, split: str, *, limit: int | None = None) -> int | None:
    """How many rows a split has at most, for progress bars; None where only reading would tell."""
    split, start, stop = _part(split)
    count = None
    if config.source == "quickstart":
        count = len(_quickstart(split))
    elif config.source == "rog":
        count = rog.size(config, split)
    if count is not None:
        count = max(min(count, stop or count) - start, 0)
    return limit if count is None else min(count, limit or count)


@cache
def _quickstart(split: str) -> tuple[Question, ...]:
    """Kept, as a split takes most of a second to make and a run asks for it several times."""
    return tuple(quickstart.load(split))


def texts(path: Path, tally: Tally) -> Iterator[Passage]:
    """Passages of any texts that are read: a folder of CRUD-RAG's, or texts of your own.

    Raises:
        ValueError: Nothing to read, or something broken; names it.
    """
    return crud.passages(path, tally) if crud.is_crud(path) else read_passages(path, tally)


def digest_of_texts(path: Path) -> str:
    """Changes with the files that :func:`texts` reads, or could."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    for file in files:
        digest.update(f"{file.relative_to(path)}\0{sha256(file)}\0".encode())
    return digest.hexdigest()


def content(config: DataConfig, split: str) -> str:
    """Changes with anything that reading a split gives; reads every byte of local files."""
    found = [fingerprint(config)]
    if config.path and Path(config.path).exists():
        found.append(digest_of_texts(Path(config.path)))
    elif config.source == "rog" and rog.on_hub(config):
        found.append(rog.hub_fingerprint(config, _part(split)[0]))
    if config.resplit is not None:
        found.append(sha256(Path(config.resplit)))
    return "+".join(found)


def _part(split: str) -> tuple[str, int, int | None]:
    """``train[10:20]`` as its parts."""
    found = _SLICE.fullmatch(split)
    if found is None:
        return split, 0, None
    name, start, stop = found.groups()
    return name, int(start or 0), int(stop) if stop else None


def fingerprint(config: DataConfig) -> str:
    """Changes with the data on disk; for the hub, with the name and revision only."""
    if config.source == "quickstart":
        found = quickstart.fingerprint()
    else:
        found = READERS[config.source].fingerprint(config)
    shared = Path(config.graph_path)
    if config.graph == "corpus":
        if not (shared / CORPUS).is_file():  # texts that become one in the cache
            return f"{found}+{digest_of_texts(shared)[:16]}"
        shared = shared / CORPUS  # says what the texts are by their hash
    if config.graph != "question" and shared.is_file():
        found = f"{found}+{sha256(shared)[:16]}"
    return found
