"""BiS-RQA: the parts joined.

question, graph --(examples: embed, SPPR, top-K)--> Example
Example --(collate)--> padded subgraph, and tokens of instruction, facts, question
subgraph --(encoders: MAIF or another)--> soft tokens, attention
soft tokens + tokens --(here)--> word embeddings --(generator)--> loss or answers
"""

import random
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bisrqa import encoders
from bisrqa.clock import now
from bisrqa.collate import Collated, Collator, Prepared
from bisrqa.config import RunConfig
from bisrqa.constraint import Lines
from bisrqa.encoders import Fusion
from bisrqa.examples import Example
from bisrqa.facts import Fact
from bisrqa.generator import Generator, Replies
from bisrqa.prompt import PromptBuilder, TokenBatch


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
        self.collate = Collator(
            self.builder,
            reads_graph=self.encoder is not None,
            by_attention=self._order_by_attention,
        )
        """Makes the tensors of a batch, here or in another process."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def prepare(self, examples: Sequence[Example]) -> list[Prepared]:
        """Tokenise once what every pass needs."""
        return [Prepared(e, w) for e, w in zip(examples, self.builder.words(examples), strict=True)]

    def forward(
        self,
        batch: Sequence[Prepared] | Collated,
        targets: Sequence[list[int]] | None = None,
        attention_weight: float = 0.0,
    ) -> Float[Tensor, ""]:
        """Loss, summed over the answer tokens of a batch.

        Args:
            batch: Questions, or what :attr:`collate` made of them and their targets.
            targets: What :meth:`targets` gave for questions; none may be empty.
            attention_weight: As how many answer tokens each question's attention counts.
        """
        if not isinstance(batch, Collated):
            batch = self.collate(batch, targets, masks=attention_weight > 0)
        fusion = self.fuse(batch)
        embeds, tokens = self.inputs(batch, fusion=fusion)
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
        self, batch: Sequence[Prepared] | Collated, fusion: Fusion | None = None
    ) -> Float[Tensor, ""]:
        """How little of MAIF's attention to entities falls on answers, summed over questions.

        ``-log`` of the share of the attention to kept nodes, without topics and mediators, that
        falls on golds; 0 for a question without a kept gold.
        """
        if not isinstance(batch, Collated):
            batch = self.collate(batch, masks=True)
        fusion = fusion or self.fuse(batch)
        assert fusion is not None
        assert fusion.entity_attention is not None
        assert batch.masks is not None
        gold, candidate = (mask.to(self.device, non_blocking=True) for mask in batch.masks)
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
            lines = self._lines(batch) if self.generator.config.decode == "entities" else None
            seconds = now(self.device) - started
            stop = self.builder.stop_ids
            replies = self.generator.generate(embeds, tokens.attention_mask, stop, prefix, lines)
            return replies._replace(encode_seconds=seconds)
        finally:
            self.train(training)

    def _lines(self, batch: Sequence[Prepared]) -> list[Lines | None]:
        """What each reply may be made of: the names that were retrieved, or, without any, all."""
        builder, longest = self.builder, self.generator.config.max_new_tokens
        found: list[Lines | None] = []
        for prepared in batch:
            names = builder.names(prepared.example.evidence)
            fitting = any(len(ids) <= longest for ids in names.values())
            found.append(
                Lines(names, builder.newline, builder.stop_ids, longest) if fitting else None
            )
        return found

    def targets(
        self, batch: Sequence[Prepared], order: Sequence[random.Random] | None = None
    ) -> list[list[int]]:
        """What the model should write for each question, its answers shuffled by ``order``."""
        return self.collate.targets(batch, order)

    def lengths(
        self, batch: Sequence[Prepared], targets: Sequence[list[int]] | None = None
    ) -> list[int]:
        """Tokens of each question's row: soft ones, words, and the target.

        MAIF's attention, where it orders the triples, may choose others of another length.
        """
        return self.collate.lengths(batch, targets)

    def inputs(
        self,
        batch: Sequence[Prepared] | Collated,
        targets: Sequence[list[int]] | None = None,
        fusion: Fusion | None = None,
        skip: int = 0,
    ) -> tuple[Float[Tensor, "questions tokens hidden"], TokenBatch]:
        """Word embeddings with the soft tokens in their places, for loss and replies alike.

        Args:
            batch: Questions, or what :attr:`collate` made of them.
            targets: Of questions, for the loss.
            fusion: What :meth:`fuse` gave for them, if it is there already.
            skip: Of questions: leave out so many tokens of the instruction, which all prompts
                begin with.
        """
        if not isinstance(batch, Collated):
            batch = self.collate(batch, targets, skip=skip)
        fusion = fusion or self.fuse(batch)
        tokens = batch.tokens
        if tokens is None:
            assert fusion is not None
            tokens = self.collate.ordered(batch, self._edge_scores(batch, fusion))
        tokens = tokens.to(self.device)
        embeds = self.generator.embed(tokens.input_ids)
        if fusion is not None and self._soft_prompt:
            soft = fusion.soft_tokens.to(embeds.dtype).flatten(0, 1)
            embeds = embeds.masked_scatter(tokens.keep_soft[..., None], soft)
        return embeds, tokens

    def fuse(self, batch: Sequence[Prepared] | Collated) -> Fusion | None:
        """Soft tokens, and MAIF's attention weights; None where neither is asked for."""
        if self.encoder is None:
            return None
        if not isinstance(batch, Collated):
            batch = self.collate(batch)
        assert batch.subgraphs is not None
        return self.encoder(batch.subgraphs.to(self.device))

    @torch.no_grad()
    def prompt_facts(self, prepared: Prepared) -> list[Fact]:
        """What the hard prompt states, in its order."""
        score = None
        if self._order_by_attention:
            batch = self.collate([prepared])
            fusion = self.fuse(batch)
            assert fusion is not None
            score = self._edge_scores(batch, fusion)[0]
        return [line.fact for line in self.builder.fitting(prepared.words, score)]

    @staticmethod
    def _edge_scores(batch: Collated, fusion: Fusion) -> list[Tensor]:
        """Attention that falls on the ends of each edge, a row for every question."""
        assert fusion.entity_attention is not None
        assert batch.subgraphs is not None
        entity = fusion.entity_attention.detach().cpu()
        on_ends = entity.flatten()[batch.subgraphs.edge_index].sum(0)
        return list(on_ends.split(batch.num_edges))
