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
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bisrqa import encoders
from bisrqa.clock import now
from bisrqa.config import RunConfig
from bisrqa.encoders import Fusion, Subgraphs
from bisrqa.examples import Example
from bisrqa.generator import Generator, Replies
from bisrqa.prompt import Fact, PromptBuilder, TokenBatch, Words
from bisrqa.retrieval.subgraph import Reason


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
        self._order_by_attention = config.prompt.order == "attention"
        self._soft_prompt = config.prompt.soft_prompt
        self._packing = config.training.packing
        if self._packing and not generator.can_pack:
            raise ValueError(
                "training.packing: this language model's attention cannot take packed rows; it "
                "needs generator.attention sdpa and a model whose layers all see every token before"
            )
        if self._soft_prompt or self._order_by_attention:
            sizes = {"dim": dim, "llm_hidden": generator.hidden, "word_norm": generator.word_norm}
            self.encoder = encoders.build(config.encoder, **sizes)
        self.builder = PromptBuilder(
            generator.tokenizer, config.prompt, config.encoder.num_soft_tokens
        )

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def prepare(self, examples: Sequence[Example]) -> list[Prepared]:
        """Tokenise once what every pass needs."""
        return [Prepared(e, w) for e, w in zip(examples, self.builder.words(examples), strict=True)]

    def forward(
        self,
        batch: Sequence[Prepared],
        targets: Sequence[list[int]],
        attention_weight: float = 0.0,
    ) -> Float[Tensor, ""]:
        """Loss, summed over the answer tokens of a batch.

        Args:
            batch: Questions.
            targets: What :meth:`targets` gave for them; none may be empty.
            attention_weight: As how many answer tokens each question's attention counts.
        """
        fusion = self.fuse(batch)
        embeds, tokens = self.inputs(batch, targets, fusion)
        loss = self.generator.loss(embeds, tokens.attention_mask, tokens.labels, self.shared)
        if attention_weight:
            loss = loss + attention_weight * self.attention_loss(batch, fusion)
        return loss

    @property
    def shared(self) -> int | None:
        """Tokens that the rows of a training pass share, laid end to end; None with padding."""
        wanted = self.device.type == "cpu" if self._packing is None else self._packing
        return len(self.builder.prefix) if wanted and self.generator.can_pack else None

    def attention_loss(
        self, batch: Sequence[Prepared], fusion: Fusion | None = None
    ) -> Float[Tensor, ""]:
        """How little of MAIF's attention to entities falls on answers, summed over questions.

        ``-log`` of the share of the attention to kept nodes, without topics and mediators, that
        falls on golds; 0 for a question without a kept gold.
        """
        fusion = fusion or self.fuse(batch)
        assert fusion is not None
        assert fusion.entity_attention is not None
        masks = [_answer_masks(p.example) for p in batch]
        gold, candidate = (
            nn.utils.rnn.pad_sequence(list(some), True).to(self.device)
            for some in zip(*masks, strict=True)
        )
        attention = fusion.entity_attention
        on_gold, on_any = (attention * gold).sum(1), (attention * candidate).sum(1)
        share = (on_gold + 1e-9) / (on_any + 1e-9)
        return -(torch.log(share) * gold.any(1)).sum()

    @torch.no_grad()
    def generate(self, batch: Sequence[Prepared]) -> Replies:
        """Replies to a batch of questions, without dropout."""
        training = self.training
        self.eval()
        try:
            started = now(self.device)
            prefix = self.builder.prefix if self.generator.shares_prefix else []
            embeds, tokens = self.inputs(batch, skip=len(prefix))
            seconds = now(self.device) - started
            stop = self.builder.stop_ids
            replies = self.generator.generate(embeds, tokens.attention_mask, stop, prefix)
            return replies._replace(encode_seconds=seconds)
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

    def lengths(
        self, batch: Sequence[Prepared], targets: Sequence[list[int]] | None = None
    ) -> list[int]:
        """Tokens of each question's row: soft ones, words, and the target.

        MAIF's attention, where it orders the triples, may choose others of another length.
        """
        length = self.builder.length
        answers = [0] * len(batch) if targets is None else map(len, targets)
        return [length(p.words) + extra for p, extra in zip(batch, answers, strict=True)]

    def inputs(
        self,
        batch: Sequence[Prepared],
        targets: Sequence[list[int]] | None = None,
        fusion: Fusion | None = None,
        skip: int = 0,
    ) -> tuple[Float[Tensor, "questions tokens hidden"], TokenBatch]:
        """Word embeddings with the soft tokens in their places, for loss and replies alike.

        Args:
            batch: Questions.
            targets: For the loss.
            fusion: What :meth:`fuse` gave for them, if it is there already.
            skip: Leave out so many tokens of the instruction, which all prompts begin with.
        """
        fusion = fusion or self.fuse(batch)
        scores = (
            self._edge_scores(batch, fusion)
            if self._order_by_attention and fusion
            else [None] * len(batch)
        )
        prompts = [
            self.builder.prompt(p.words, score) for p, score in zip(batch, scores, strict=True)
        ]
        tokens = self.builder.collate(prompts, targets, skip=skip).to(self.device)
        embeds = self.generator.embed(tokens.input_ids)
        if fusion is not None and self._soft_prompt:
            soft = fusion.soft_tokens.to(embeds.dtype).flatten(0, 1)
            embeds = embeds.masked_scatter(tokens.keep_soft[..., None], soft)
        return embeds, tokens

    def fuse(self, batch: Sequence[Prepared]) -> Fusion | None:
        """Soft tokens, and MAIF's attention weights; None where neither is asked for."""
        if self.encoder is None:
            return None
        evidence, question_x = (
            [p.example.evidence for p in batch],
            [p.example.question_x for p in batch],
        )
        return self.encoder(Subgraphs.collate(evidence, question_x).to(self.device))

    @torch.no_grad()
    def prompt_facts(self, prepared: Prepared) -> list[Fact]:
        """What the hard prompt states, in its order."""
        score = None
        if self._order_by_attention and (fusion := self.fuse([prepared])):
            score = self._edge_scores([prepared], fusion)[0]
        return [line.fact for line in self.builder.fitting(prepared.words, score)]

    @staticmethod
    def _edge_scores(batch: Sequence[Prepared], fusion: Fusion) -> list[Float[Tensor, " edges"]]:
        """Attention that falls on the ends of an edge."""
        assert fusion.entity_attention is not None
        entity = fusion.entity_attention.detach().cpu()
        return [
            entity[row][prepared.example.evidence.graph.edge_index].sum(0)
            for row, prepared in enumerate(batch)
        ]


def _answer_masks(example: Example) -> tuple[Bool[Tensor, " nodes"], Bool[Tensor, " nodes"]]:
    """Which kept nodes are golds, and which may be answers at all."""
    evidence = example.evidence
    candidate = evidence.reason == Reason.TOP_K
    golds = set(example.question.answers)
    gold = torch.tensor([text in golds for text in evidence.graph.node_text], dtype=torch.bool)
    return gold & candidate, candidate
