"""Answering many questions: batches of similar length, longest first."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tqdm import tqdm

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
    batch_size: int,
    progress: bool = False,
    describe: str = "answering",
) -> Iterator[list[Reply]]:
    """Answer questions batch by batch, in order of length and not as they come.

    Longest first: memory runs out at once if it does, and the time left is never underestimated.
    """
    lengths = [len(model.builder.prompt(question.words)) for question in questions]
    order = sorted(range(len(questions)), key=lambda index: -lengths[index])
    with tqdm(total=len(order), desc=describe, unit="question", disable=not progress) as bar:
        for at in range(0, len(order), batch_size):
            indices = order[at : at + batch_size]
            started = time.perf_counter()
            texts = model.generate([questions[index] for index in indices])
            seconds = (time.perf_counter() - started) / len(indices)
            yield [Reply(index, text, seconds) for index, text in zip(indices, texts, strict=True)]
            bar.update(len(indices))
