"""Answering many questions: batches of similar length, longest first."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tqdm import tqdm

from bisrqa import batches, memory
from bisrqa.generator import Replies
from bisrqa.model import BiSRQA, Prepared

Engine = Callable[[Sequence[Prepared]], Replies]
"""What replies to a batch of questions, in their order."""


class Reply(NamedTuple):
    """What the model wrote for one question."""

    place: int
    """Place of the question in the list that was asked."""
    text: str
    tokens: int
    """Length of the reply."""
    encode: float
    """Its share of the seconds that its batch took to make soft tokens and word embeddings,"""
    prefill: float
    """to read the prompts,"""
    decode: float
    """and to write the replies."""

    @property
    def seconds(self) -> float:
        return self.encode + self.prefill + self.decode


def answer(
    model: BiSRQA,
    questions: Sequence[Prepared],
    *,
    batch_tokens: int,
    engine: Engine | None = None,
    progress: bool = False,
    describe: str = "answering",
) -> Iterator[list[Reply]]:
    """Answer questions batch by batch, in order of length and not as they come.

    Longest first: memory runs out at once if it does, and the time left is never underestimated.
    The model itself replies, unless there is another engine.
    """
    engine = engine or model.generate
    settings = model.generator.config
    lengths = [
        (length + settings.max_new_tokens) * settings.num_beams  # each beam holds the prompt, too
        for length in model.lengths(questions)
    ]
    parts, number = batches.parts(lengths, batch_tokens), -1
    with tqdm(total=len(lengths), desc=describe, unit="question", disable=not progress) as bar:
        while model.generator.together((number := number + 1) < len(parts)):
            # Behind its last batch a process answers that once more while others have some left.
            indices = parts[min(number, len(parts) - 1)]
            size = (len(indices), max(lengths[index] for index in indices), batch_tokens)
            with memory.explained(partial(_too_large, *size)):
                made = engine([questions[index] for index in indices])
            if number >= len(parts):
                continue
            spent = (made.encode_seconds, made.prefill_seconds, made.decode_seconds)
            shares = [seconds / len(indices) for seconds in spent]
            rows = zip(indices, made.texts, made.tokens, strict=True)
            yield [Reply(index, text, tokens, *shares) for index, text, tokens in rows]
            bar.update(len(indices))


def _too_large(questions: int, tokens: int, batch_tokens: int) -> str:
    lower = f"evaluation.batch_tokens (now {batch_tokens})"
    lower = lower if questions > 1 else "prompt.max_prompt_tokens or generator.max_new_tokens"
    return (
        f"no memory left to answer {questions} questions of at most {tokens} tokens: lower {lower}"
    )
