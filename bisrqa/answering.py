"""Answering many questions: batches of similar length, longest first."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tqdm import tqdm

from bisrqa import batches
from bisrqa.model import BiSRQA, Prepared


class Reply(NamedTuple):
    """What the model wrote for one question."""

    place: int
    """Place of the question in the list that was asked."""
    text: str
    seconds: float
    """Its share of the time that its batch took."""


def answer(
    model: BiSRQA,
    questions: Sequence[Prepared],
    *,
    batch_tokens: int,
    progress: bool = False,
    describe: str = "answering",
) -> Iterator[list[Reply]]:
    """Answer questions batch by batch, in order of length and not as they come.

    Longest first: memory runs out at once if it does, and the time left is never underestimated.
    """
    room = model.generator.config.max_new_tokens * model.generator.config.num_beams
    lengths = [length + room for length in model.lengths(questions)]
    with tqdm(total=len(lengths), desc=describe, unit="question", disable=not progress) as bar:
        for indices in batches.parts(lengths, batch_tokens):
            started = time.perf_counter()
            texts = model.generate([questions[index] for index in indices])
            seconds = (time.perf_counter() - started) / len(indices)
            yield [Reply(index, text, seconds) for index, text in zip(indices, texts, strict=True)]
            bar.update(len(indices))
