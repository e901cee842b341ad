"""What each training step needs, made while the step before it is taken.

A worker sends a step as bytes: shared memory would need a file for every tensor, and containers
often have little of it.
"""

import contextlib
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch.utils.data import DataLoader, Dataset

from bisrqa import batches
from bisrqa.batches import Batches
from bisrqa.collate import Collated, Collator, Prepared
from bisrqa.config import RunConfig


class Part(NamedTuple):
    """Questions that pass through the model together."""

    ids: list[str]
    longest: int
    """Tokens of the longest prompt."""
    batch: Collated


class Step(NamedTuple):
    """One optimizer step, as far as it is this process's."""

    answer_tokens: int
    """Of all processes' questions: they weigh the loss."""
    parts: list[Part]


class Steps(Dataset[Step]):
    """The steps of a run by number; each is a function of its number alone.

    Args:
        config: ``training`` and ``seed`` are read.
        train: Questions with a target each.
        taken: Which of them each step takes.
        collate: Makes the tensors.
        process: Whose part of a step.
        processes: Among how many it is shared.
    """

    def __init__(
        self,
        config: RunConfig,
        train: Sequence[Prepared],
        taken: Batches,
        collate: Collator,
        *,
        process: int = 0,
        processes: int = 1,
    ):
        self._seed, self._settings = config.seed, config.training
        self._train, self._taken, self._collate = train, taken, collate
        self._share = {"process": process, "processes": processes}

    def __len__(self) -> int:
        return self._taken.total_steps

    def __getitem__(self, step: int) -> Step:
        epoch = self._taken.epoch(step)
        rows = [self._train[place] for place in self._taken.indices(step)]
        # Every process makes all targets: their number weighs the loss, and text is cheap.
        targets = self._collate.targets(rows, [self._shuffle(epoch, p) for p in rows])
        lengths = self._collate.lengths(rows, targets)
        mine = batches.parts(lengths, self._settings.batch_tokens, **self._share)
        return Step(sum(map(len, targets)), [self._part(rows, targets, part) for part in mine])

    def _part(self, rows: list[Prepared], targets: list[list[int]], part: list[int]) -> Part:
        chosen = [rows[i] for i in part]
        masks = self._settings.attention_weight > 0
        made = self._collate(chosen, [targets[i] for i in part], masks=masks)
        ids = [p.example.question.id for p in chosen]
        return Part(ids, max(self._collate.lengths(chosen)), made)

    def _shuffle(self, epoch: int, prepared: Prepared) -> random.Random:
        return random.Random(f"{self._seed}/{epoch}/{prepared.example.question.id}")


def feed(steps: Steps, start: int, *, workers: int, pin: bool) -> Iterator[Step]:
    """Steps from ``start`` to the end, in order.

    Args:
        steps: Of the run.
        start: The first.
        workers: Processes that make them; 0 makes each here when it is asked for.
        pin: Put tensors where a GPU can copy them from while it works.
    """
    numbers = range(start, len(steps))
    if not workers:
        made: Iterator[Step] = (steps[number] for number in numbers)
    else:
        loader = DataLoader(
            steps,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=pickle.dumps,
            multiprocessing_context="spawn",  # forks of a process with threads may hang
            generator=torch.Generator(),  # the global one is for dropout
        )
        made = (pickle.loads(raw) for raw in cast(Iterator[bytes], loader))
    for answer_tokens, parts in made:
        if pin:
            parts = [part._replace(batch=part.batch.pin_memory()) for part in parts]
        yield Step(answer_tokens, parts)


@contextlib.contextmanager
def explained(workers: int) -> Iterator[None]:
    """Say in place of torch's error what it means that a worker has died.

    Raises:
        ChildProcessError: With that message; other errors pass.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise ChildProcessError(
            f"a process of training.workers (now {workers}) died: {error} Memory may be short: "
            "fewer workers need less, and 0 needs none. The same command goes on from the last "
            "checkpoint"
        ) from error
