"""BiS-RQA: the parts joined.

question, graph --(examples: embed, SPPR, top-K)--> Example
Example --(encoders: MAIF or another)--> soft tokens, attention
Example --(prompt)--> tokens of instruction, facts, question
soft tokens + tokens --(here)--> word embeddings --(generator)--> loss or answers
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bisrqa import encoders
from bisrqa.config import RunConfig
from bisrqa.encoders import Fusion, Subgraphs
from bisrqa.examples import Example
from bisrqa.generator import Generator
from bisrqa.prompt import PromptBuilder, TokenBatch, Words


class Prepared(NamedTuple):
    """An example with its text tokenised."""

    example: Example
    words: Words


class BiSRQA(nn.Module):
    """Encoder, prompt and generator.

    Args:
        config: ``encoder`` and ``prompt`` are read.
        generator: The language model.
        dim: Width of the text embeddings.
    """

    def __init__(self, config: RunConfig, generator: Generator, *, dim: int):
        super().__init__()
        self.generator = generator
        self.encoder = None
        if config.prompt.soft_prompt:
            sizes = {"dim": dim, "llm_hidden": generator.hidden, "word_norm": generator.word_norm}
            self.encoder = encoders.build(config.encoder, **sizes)
        self.builder = PromptBuilder(
            generator.tokenizer, config.prompt, config.encoder.num_soft_tokens
        )
        self._order_by_attention = config.prompt.order == "attention"

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def prepare(self, examples: Sequence[Example]) -> list[Prepared]:
        """Tokenise once what every pass needs."""
        return [Prepared(e, w) for e, w in zip(examples, self.builder.words(examples), strict=True)]

    def forward(self, batch: Sequence[Prepared], targets: Sequence[list[int]]) -> Float[Tensor, ""]:
        """Loss, summed over the answer tokens of a batch.

        Args:
            batch: Questions.
            targets: What :meth:`targets` gave for them; none may be empty.
        """
        embeds, tokens = self.inputs(batch, targets)
        return self.generator.loss(
            embeds, tokens.attention_mask, tokens.labels, tokens.target_tokens
        )

    @torch.no_grad()
    def generate(self, batch: Sequence[Prepared]) -> list[str]:
        """Replies to a batch of questions, without dropout."""
        training = self.training
        self.eval()
        try:
            embeds, tokens = self.inputs(batch)
            return self.generator.generate(embeds, tokens.attention_mask, self.builder.stop_ids)
        finally:
            self.train(training)

    def targets(
        self, batch: Sequence[Prepared], order: Sequence[random.Random] | None = None
    ) -> list[list[int]]:
        """What the model should write for each question, its answers shuffled by ``order``."""
        questions = [p.example.question for p in batch]
        if order is None:
            return [self.builder.target(question) for question in questions]
        return [self.builder.target(q, rng) for q, rng in zip(questions, order, strict=True)]

    def inputs(
        self, batch: Sequence[Prepared], targets: Sequence[list[int]] | None = None
    ) -> tuple[Float[Tensor, "questions tokens hidden"], TokenBatch]:
        """Word embeddings with the soft tokens in their places, for loss and replies alike."""
        fusion = self.fuse(batch)
        scores = (
            self._edge_scores(batch, fusion)
            if self._order_by_attention and fusion
            else [None] * len(batch)
        )
        prompts = [
            self.builder.prompt(p.words, score) for p, score in zip(batch, scores, strict=True)
        ]
        tokens = self.builder.collate(prompts, targets).to(self.device)
        embeds = self.generator.embed(tokens.input_ids)
        if fusion is not None:
            soft = fusion.soft_tokens.to(embeds.dtype).flatten(0, 1)
            embeds = embeds.masked_scatter(tokens.keep_soft[..., None], soft)
        return embeds, tokens

    def fuse(self, batch: Sequence[Prepared]) -> Fusion | None:
        """Soft tokens, and MAIF's attention weights; None without a soft prompt."""
        if self.encoder is None:
            return None
        evidence, question_x = (
            [p.example.evidence for p in batch],
            [p.example.question_x for p in batch],
        )
        return self.encoder(Subgraphs.collate(evidence, question_x).to(self.device))

    @torch.no_grad()
    def prompt_facts(self, prepared: Prepared) -> list[int]:
        """Edges of the evidence that the hard prompt states, in its order."""
        score = None
        if self._order_by_attention and (fusion := self.fuse([prepared])):
            score = self._edge_scores([prepared], fusion)[0]
        return [
            edge for line in self.builder.fitting(prepared.words, score) for edge in line.fact.edges
        ]

    @staticmethod
    def _edge_scores(batch: Sequence[Prepared], fusion: Fusion) -> list[Float[Tensor, " edges"]]:
        """Attention that falls on an edge: on its ends and on its relation."""
        assert fusion.entity_attention is not None
        assert fusion.relation_attention is not None
        entity, relation = (
            fusion.entity_attention.detach().cpu(),
            fusion.relation_attention.detach().cpu(),
        )
        scores = []
        for row, prepared in enumerate(batch):
            graph = prepared.example.evidence.graph
            scores.append(entity[row][graph.edge_index].sum(0) + relation[row][graph.edge_type])
        return scores
