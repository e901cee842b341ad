"""A training step and batch answering, by bisrqa and as others do them, on the same prompts.

All have the same language model, adapters of rank 8 on queries and values (PyG fixes them so),
float32, the same questions with their retrieved graphs, and the same prompt tokens; what differs is
how these go through the model. ``PyG`` is ``torch_geometric.llm.GRetriever`` with a GAT, given the
prompts as tokens, so that its slow tokenizer does not count. ``G-Retriever's step`` follows the
published one: a graph transformer, its mean in front of the prompt, all rows padded to the longest,
the model's own loss over all positions.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
from torch_geometric.llm import GRetriever
from torch_geometric.nn.models import GAT

from bisrqa import answering, batches, generator
from bisrqa.config import RunConfig
from bisrqa.encoders import Subgraphs, build
from bisrqa.examples import Retriever, load
from bisrqa.linear import FrozenLinear
from bisrqa.model import BiSRQA, Prepared
from bisrqa.packaged import default_cache_dir
from bisrqa.prompt import IGNORE, PromptBuilder, Words

LORA: dict[str, Any] = {
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_targets": ("q_proj", "v_proj"),
}
CPU = torch.device("cpu")
Row = tuple[Prepared, list[int]]
"""A question, and the tokens of its answers."""


def configured(config: RunConfig) -> RunConfig:
    """With the adapters that all have."""
    return dataclasses.replace(config, generator=dataclasses.replace(config.generator, **LORA))


def bisrqa_model(config: RunConfig, dim: int) -> BiSRQA:
    """BiS-RQA as the config says."""
    torch.manual_seed(0)
    return BiSRQA(config, generator.load(config.generator, cache(config), device=CPU), dim=dim)


def cache(config: RunConfig) -> Path:
    """Where embeddings and models are kept."""
    return Path(config.cache_dir) if config.cache_dir else default_cache_dir()


def real_rows(config: RunConfig, builder: PromptBuilder, split: str, count: int) -> list[Row]:
    """Questions of a split, in random order, as a data loader gives them."""
    found = load(config, split, Retriever(config, cache(config)), limit=count)
    prepared = list(map(Prepared, found, builder.words(found)))
    targets = [builder.target(example.question) for example in found]
    rows = [(p, t) for p, t in zip(prepared, targets, strict=True) if t]
    return random.Random(0).sample(rows, len(rows))


def equal_rows(rows: Sequence[Row], builder: PromptBuilder, tokens: int, answer: int) -> list[Row]:
    """The same questions, their text repeated or cut so that every row has that many tokens."""
    made = []
    for prepared, target in rows:
        words = [i for line in prepared.words.lines for i in line.ids] + prepared.words.question
        room = tokens - answer - builder.length(Words([], []))
        words = (words * (room // len(words) + 1))[:room]
        target = (target * answer)[:answer]
        made.append((prepared._replace(words=Words(words, [])), target))
    return made


def dim_of(config: RunConfig) -> int:
    """Width of the text embeddings."""
    return Retriever(config, cache(config)).dim


class Ours:
    """bisrqa: answer positions only, frozen layers by oneDNN, parts of at most ``batch_tokens``."""

    def __init__(self, config: RunConfig, model: BiSRQA, budget: int, *, fast: bool = True):
        self.model, self.config, self.budget, self.fast = model, config, budget, fast
        self.frozen = [m for m in model.modules() if isinstance(m, FrozenLinear)]

    def _choose(self) -> None:
        for module in self.frozen:
            module.__class__ = FrozenLinear if self.fast else nn.Linear

    def step(self, rows: Sequence[Row], *, keep: bool = False) -> float:
        """Forward and backward; gradients are dropped, unless they are to be kept."""
        self._choose()
        model = self.model.train()
        prepared, targets = zip(*rows, strict=True)
        count, total = sum(map(len, targets)), 0.0
        for part in batches.parts(model.lengths(prepared, targets), self.budget):
            loss = model([prepared[i] for i in part], [targets[i] for i in part]) / count
            loss.backward()
            total += loss.item()
        if not keep:
            model.zero_grad()
        return total

    def modules(self) -> Iterator[nn.Module]:
        """What is trained."""
        yield self.model

    def merge(self) -> None:
        """Before answering, as ``evaluate`` does."""
        self.model.generator.merge_adapters()

    def answer(self, rows: Sequence[Row], longest: int) -> list[str]:
        """All questions, in its own batches."""
        self._choose()
        texts = [""] * len(rows)
        questions = [prepared for prepared, _ in rows]
        for batch in answering.answer(self.model, questions, batch_tokens=self.budget):
            for reply in batch:
                texts[reply.place] = reply.text
        return texts


class Plain:
    """Everything at once: one padded batch, all logits, the model's own loss."""

    def __init__(self, config: RunConfig, dim: int):
        torch.manual_seed(0)
        settings = dataclasses.replace(config.encoder, kind="g_retriever")
        base = generator.load(config.generator, cache(config), device=CPU, tuned=False)
        lora = LoraConfig(
            r=LORA["lora_rank"], lora_alpha=LORA["lora_alpha"], lora_dropout=LORA["lora_dropout"],
            target_modules=list(LORA["lora_targets"]), task_type="CAUSAL_LM",
        )  # fmt: skip
        for module in base.modules():  # as it comes
            if isinstance(module, FrozenLinear):
                module.__class__ = nn.Linear
        self.llm: Any = get_peft_model(base.llm, lora)
        self.encoder = build(settings, dim=dim, llm_hidden=base.hidden, word_norm=base.word_norm)
        self.tokenizer = base.tokenizer
        self.builder = PromptBuilder(self.tokenizer, config.prompt, 1)
        self.stop_ids = self.builder.stop_ids

    def take_adapters(self, model: BiSRQA) -> None:
        """Those of a trained model of ours."""
        trained = cast(PeftModel, model.generator.llm)
        set_peft_model_state_dict(self.llm, get_peft_model_state_dict(trained))

    def graph_tokens(self, rows: Sequence[Row]) -> Tensor:
        """One for each question."""
        evidence = [p.example.evidence for p, _ in rows]
        asked = [p.example.question_x for p, _ in rows]
        return self.encoder(Subgraphs.collate(evidence, asked)).soft_tokens

    def inputs(self, rows: Sequence[Row], *, answers: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings, mask and labels, left-padded, the graph's token in front."""
        words = self.llm.get_input_embeddings()
        ids = [self.builder.prompt(p.words) + (t if answers else []) for p, t in rows]
        width = max(map(len, ids)) + 1
        pad = words(torch.zeros(1, dtype=torch.long))
        embeds, mask, labels = [], [], []
        for row, graph, (_, target) in zip(ids, self.graph_tokens(rows), rows, strict=True):
            space = width - len(row) - 1
            embeds.append(torch.cat([pad.repeat(space, 1), graph, words(torch.tensor(row))]))
            mask.append([0] * space + [1] * (len(row) + 1))
            labels.append([IGNORE] * (width - len(target)) + target)
        return torch.stack(embeds), torch.tensor(mask), torch.tensor(labels)

    def modules(self) -> Iterator[nn.Module]:
        """What is trained."""
        yield self.llm
        yield self.encoder

    def train(self, on: bool) -> None:
        """With dropout, or without."""
        for module in self.modules():
            module.train(on)

    def step(self, rows: Sequence[Row], *, keep: bool = False) -> float:
        """Forward and backward; gradients are dropped, unless they are to be kept."""
        self.train(True)
        embeds, mask, labels = self.inputs(rows, answers=True)
        loss = self.llm(inputs_embeds=embeds, attention_mask=mask, labels=labels).loss
        loss.backward()
        for module in self.modules() if not keep else ():
            module.zero_grad()
        return loss.item()

    @torch.no_grad()
    def answer(self, rows: Sequence[Row], longest: int) -> list[str]:
        """One batch of questions."""
        self.train(False)
        embeds, mask, _ = self.inputs(rows, answers=False)
        ids = self.llm.generate(
            inputs_embeds=embeds, attention_mask=mask, max_new_tokens=longest, use_cache=True,
            do_sample=False, eos_token_id=self.stop_ids, pad_token_id=self.stop_ids[0],
        )  # fmt: skip
        return [text.strip() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]


class PyG(Plain):
    """``torch_geometric.llm.GRetriever``: its class, encoder and calls; only tokens are given."""

    def __init__(self, config: RunConfig, dim: int):
        super().__init__(config, dim)
        base = self.llm.base_model.model
        words = base.get_input_embeddings()

        class GivenTokens(nn.Module):
            """What GRetriever asks of its ``LLM``, around a model that is loaded already."""

            def __init__(self) -> None:
                super().__init__()
                self.llm, self.word_embedding, self.device = base, words, CPU

        holder = cast(Any, GivenTokens())
        gnn = GAT(dim, 1024, 4, out_channels=1024, heads=4, edge_dim=dim)
        self.whole = GRetriever(llm=holder, gnn=gnn)
        self.whole.llm_generator = self.llm

    def modules(self) -> Iterator[nn.Module]:
        yield self.whole

    def graph_tokens(self, rows: Sequence[Row]) -> Tensor:
        graphs = [p.example.evidence.graph for p, _ in rows]
        sizes = [g.num_nodes for g in graphs]
        start = torch.tensor([0, *sizes]).cumsum(0)
        x = torch.cat([g.x.float() for g in graphs])
        edges = torch.cat([g.edge_index + s for g, s in zip(graphs, start, strict=False)], 1)
        kinds = torch.cat([g.relation_x.float()[g.edge_type] for g in graphs])
        of = torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes))
        return self.whole.projector(self.whole.encode(x, edges, of, kinds))


def contenders(config: RunConfig, budget: int) -> dict[str, Callable[[], Any]]:
    """By name, what makes each; ``step`` takes rows. All share the same prompts."""
    dim = dim_of(config)

    def ours(**options: Any) -> Callable[[], Any]:
        packing, budget = options.pop("packing", None), options.pop("budget")
        training = dataclasses.replace(config.training, packing=packing)
        chosen = dataclasses.replace(config, training=training)
        return lambda: Ours(chosen, bisrqa_model(chosen, dim), budget, **options)

    return {
        "PyG GRetriever": lambda: PyG(config, dim),
        "G-Retriever's step": lambda: Plain(config, dim),
        "bisrqa": ours(budget=budget),
        "bisrqa, padded rows": ours(budget=budget, packing=False),
        "bisrqa, the whole batch at once": ours(budget=10**9),
        "bisrqa, the same without oneDNN": ours(budget=10**9, fast=False),
    }
