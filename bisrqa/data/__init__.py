"""Readers: one file a data set, each yields :class:`~bisrqa.data.records.Question` records."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bisrqa.config import DataConfig
from bisrqa.data import ablation, hotpotqa, musique, quickstart, rog
from bisrqa.data.records import Question
from bisrqa.data.tally import Tally
from bisrqa.files import sha256

logger = logging.getLogger(__name__)

READERS = {"rog": rog, "hotpotqa": hotpotqa, "musique": musique}


def read(
    config: DataConfig, split: str, *, limit: int | None = None, report: bool = True
) -> Iterator[Question]:
    """Stream a split's questions; what is odd in the data is logged once, at the end of the split.

    Args:
        config: Where the data is, and what is taken away from it.
        split: Its name.
        limit: Only the first so many.
        report: Log what is odd; not for who reads the same split a second time.

    Raises:
        ValueError: As the reader of ``config.source`` says.
    """
    if config.source == "quickstart":
        for question in quickstart.load(split)[:limit]:
            yield ablation.ablate(question, config)
        return
    tally = Tally()
    for question in islice(READERS[config.source].read(config, split, tally), limit):
        yield ablation.ablate(question, config)
    for line in tally.lines() if report else ():
        logger.warning("%s %s: %s", config.path, split, line)


def size(config: DataConfig, split: str, *, limit: int | None = None) -> int | None:
    """How many rows a split has at most, for progress bars; None where only reading would tell."""
    count = None
    if config.source == "quickstart":
        count = len(quickstart.load(split))
    elif config.source == "rog":
        count = rog.size(config, split)
    return limit if count is None else min(count, limit or count)


def fingerprint(config: DataConfig) -> str:
    """Changes with the data on disk; for the hub, with the name and revision only."""
    if config.source == "quickstart":
        found = quickstart.fingerprint()
    else:
        found = READERS[config.source].fingerprint(config)
    if config.graph == "shared" and Path(config.graph_path).is_file():
        found = f"{found}+{sha256(Path(config.graph_path))[:16]}"
    return found
