"""One question asked over several samples of its subgraph, and what most replies agree on.

The first prompt is the usual one. In each other a share of the lines is left out, so that lines
fit that had no room; what MAIF reads stays the same.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bisrqa.answering import Engine
from bisrqa.collate import Prepared
from bisrqa.generator import Replies
from bisrqa.predictions import split_answers
from bisrqa.text import normalise

LEFT_OUT = 0.3
"""Chance of each line."""


@dataclass(frozen=True)
class Vote:
    """An engine that has another reply to several prompts a question, and counts.

    Tokens and seconds are those of all prompts together.

    Args:
        engine: What replies.
        subgraphs: Prompts a question.
        seed: Of the samples, which depend besides on the question's id alone.
    """

    engine: Engine
    subgraphs: int
    seed: int

    def __call__(self, batch: Sequence[Prepared]) -> Replies:
        if self.subgraphs == 1:
            return self.engine(batch)
        rounds = [self.prompts(prepared) for prepared in batch]
        made = [self.engine(some) for some in zip(*rounds, strict=True)]
        return Replies(
            [agreed(texts) for texts in zip(*(one.texts for one in made), strict=True)],
            [sum(tokens) for tokens in zip(*(one.tokens for one in made), strict=True)],
            *(
                sum(getattr(one, part) for one in made)
                for part in ("prefill_seconds", "decode_seconds", "encode_seconds")
            ),
        )

    def prompts(self, prepared: Prepared) -> list[Prepared]:
        """The question with the lines of each of its prompts."""
        words, made = prepared.words, [prepared]
        for number in range(1, self.subgraphs):
            rng = random.Random(f"{self.seed} {number} {prepared.example.question.id}")
            lines = [line for line in words.lines if rng.random() >= LEFT_OUT]
            made.append(prepared._replace(words=words._replace(lines=lines)))
        return made


def agreed(texts: Sequence[str]) -> str:
    """Answers that at least half of the replies give, those of most replies first.

    They are compared in normalised form and spelled as where they stand first. Without any, the
    first reply holds.
    """
    votes, spelled = Counter[str](), dict[str, str]()
    for text in texts:
        answers = [(normalise(answer), answer) for answer in split_answers(text)]
        votes.update(list(dict.fromkeys(form for form, _ in answers if form)))
        spelled = dict(reversed(answers)) | spelled  # the first spelling holds
    kept = [form for form, count in votes.most_common() if 2 * count >= len(texts)]
    return "\n".join(spelled[form] for form in kept) or texts[0]
