"""From examples to the tensors of a batch: all that can be done without the model.

It needs no weights, so that another process can do it while the model is busy.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bisrqa.encoders import Subgraphs
from bisrqa.examples import Example
from bisrqa.facts import golds_as_told
from bisrqa.prompt import PromptBuilder, TokenBatch, Words
from bisrqa.retrieval.subgraph import Reason


class Prepared(NamedTuple):
    """An example with its text tokenised."""

    example: Example
    words: Words


@dataclass(frozen=True, kw_only=True, eq=False)
class Collated:
    """A batch of questions as tensors, on the CPU."""

    num_edges: list[int]
    """Of each question's subgraph."""
    subgraphs: Subgraphs | None
    """For the encoder; None where there is none."""
    tokens: TokenBatch | None
    """None where MAIF's attention has to order the triples first: then ``words`` and so on."""
    words: list[Words]
    targets: list[list[int]] | None
    skip: int
    masks: tuple[Bool[Tensor, "questions entities"], Bool[Tensor, "questions entities"]] | None
    """Which kept nodes are golds, and which may be answers at all, if these were asked for."""

    def __len__(self) -> int:
        return len(self.num_edges)

    def pin_memory(self) -> "Collated":
        """The same in memory that a GPU can copy from on its own."""
        masks = self.masks
        return replace(
            self,
            subgraphs=self.subgraphs and self.subgraphs.pin_memory(),
            tokens=self.tokens and self.tokens.pin_memory(),
            masks=masks and (masks[0].pin_memory(), masks[1].pin_memory()),
        )


@dataclass(frozen=True)
class Collator:
    """Makes batches.

    Args:
        builder: Of the prompts.
        reads_graph: Whether there is an encoder.
        by_attention: Whether its attention orders the triples.
    """

    builder: PromptBuilder
    reads_graph: bool
    by_attention: bool

    def __call__(
        self,
        batch: Sequence[Prepared],
        targets: Sequence[list[int]] | None = None,
        *,
        skip: int = 0,
        masks: bool = False,
    ) -> Collated:
        """Collate a batch; see :meth:`bisrqa.prompt.PromptBuilder.collate` for the arguments."""
        evidence = [p.example.evidence for p in batch]
        subgraphs = None
        if self.reads_graph:
            subgraphs = Subgraphs.collate(evidence, [p.example.question_x for p in batch])
        words = [p.words for p in batch]
        tokens = None
        if not self.by_attention:
            prompts = [self.builder.prompt(some) for some in words]
            tokens = self.builder.collate(prompts, targets, skip=skip)
        found = None
        if masks:
            gold, candidate = zip(*(_answer_masks(p.example) for p in batch), strict=True)
            found = (pad_sequence(list(gold), True), pad_sequence(list(candidate), True))
        return Collated(
            num_edges=[e.graph.num_edges for e in evidence],
            subgraphs=subgraphs,
            tokens=tokens,
            words=words if self.by_attention else [],
            targets=list(targets) if targets is not None and self.by_attention else None,
            skip=skip,
            masks=found,
        )

    def ordered(self, batch: Collated, scores: Sequence[Tensor]) -> TokenBatch:
        """The tokens of a batch whose triples had to wait for their order.

        Args:
            batch: Without tokens.
            scores: Of each question's edges.
        """
        pairs = zip(batch.words, scores, strict=True)
        prompts = [self.builder.prompt(words, score) for words, score in pairs]
        return self.builder.collate(prompts, batch.targets, skip=batch.skip)

    def targets(
        self, batch: Sequence[Prepared], order: Sequence[random.Random] | None = None
    ) -> list[list[int]]:
        """What the model should write for each question, its answers shuffled by ``order``."""
        return [
            self.builder.target(p.example.question, rng, self._told(p))
            for p, rng in zip(batch, order or [None] * len(batch), strict=True)
        ]

    def _told(self, prepared: Prepared) -> list[str]:
        if self.builder.config.answers == "any":
            return []
        lines = [line.fact for line in self.builder.fitting(prepared.words)]
        return golds_as_told(prepared.example, lines)

    def lengths(
        self, batch: Sequence[Prepared], targets: Sequence[list[int]] | None = None
    ) -> list[int]:
        """Tokens of each question's row: soft ones, words, and the target."""
        length = self.builder.length
        answers = [0] * len(batch) if targets is None else map(len, targets)
        return [length(p.words) + extra for p, extra in zip(batch, answers, strict=True)]


def _answer_masks(example: Example) -> tuple[Bool[Tensor, " nodes"], Bool[Tensor, " nodes"]]:
    """Which kept nodes are golds, and which may be answers at all."""
    evidence = example.evidence
    candidate = evidence.reason == Reason.TOP_K
    golds = set(example.question.answers)
    gold = torch.tensor([text in golds for text in evidence.graph.node_text], dtype=torch.bool)
    return gold & candidate, candidate
