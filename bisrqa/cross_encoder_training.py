"""Fine-tuning a cross-encoder from the sentence encoder, on questions with known support.

Positives are the chunks that support an answer; negatives are drawn anew in each epoch from the
nearest other chunks of the same question, as deep as the cross-encoder will look: were they only
the very nearest, it would learn that what is near is wrong. On a knowledge graph the positives are
the triples on the shortest ways from the topics to the answers.

What is trained is the sum of the first score and the cross-encoder's, as it will be used: it starts
as good as the first stage, and the cross-encoder learns what that lacks. From some hundred
questions it does not learn to rank alone.
"""

import dataclasses
import json
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from bisrqa import data
from bisrqa.config import CrossEncoderConfig, RunConfig, to_dict
from bisrqa.data.records import Question
from bisrqa.examples import Retriever
from bisrqa.files import write_folder
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import gold_mask, topic_mask
from bisrqa.packaged import default_cache_dir, resolve_model
from bisrqa.ranker_training import sources
from bisrqa.retrieval.cross_encoder import open_model
from bisrqa.retrieval.passages import verbalised
from bisrqa.retrieval.paths import distances, on_shortest_paths
from bisrqa.text_recall import facts_of_chunk

logger = logging.getLogger(__name__)

HEADER = "bisrqa.json"


class Group(NamedTuple):
    """A question, the texts that support an answer, and others."""

    question: str
    positives: tuple["Text", ...]
    negatives: tuple["Text", ...]

    @property
    def texts(self) -> tuple["Text", ...]:
        """Positives and negatives."""
        return self.positives + self.negatives

    def draw(self, negatives: int, order: random.Random) -> "Group":
        """With so many of the negatives."""
        some = order.sample(self.negatives, min(negatives, len(self.negatives)))
        return self._replace(negatives=tuple(some))


class Text(NamedTuple):
    """A text and its cosine with the question, standardised among the nearest."""

    words: str
    first: float


def run(config: RunConfig, out: Path, *, progress: bool = False) -> dict[str, Any]:
    """Fine-tune and write a folder that ``sentence_transformers.CrossEncoder`` opens.

    Args:
        config: ``data`` and ``ranker.data`` say what to learn from; ``cross_encoder`` how;
            ``embedder.model`` is where the weights start.
        out: A folder, replaced if it is there.
        progress: Show progress bars.

    Returns:
        Flat: questions, positives, the loss of the first and the last tenth of the steps, seconds.

    Raises:
        ValueError: Data that cannot be used, or without any support.
    """
    started = time.perf_counter()
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    retriever = Retriever(dataclasses.replace(config, head="dense"), cache_dir, progress=progress)
    groups: list[Group] = []
    for source in sources(config):
        questions = list(data.read(source, source.train_split, limit=config.data.train_limit))
        groups += _groups(retriever.ready(questions), retriever, config.cross_encoder)
    if not groups:
        raise ValueError("no training question has known support: nothing to learn from")
    torch.manual_seed(config.seed)
    model = open_model(resolve_model(config.embedder.model, cache_dir), config.cross_encoder)
    losses = _train(model, groups, config, progress=progress)
    tenth = max(len(losses) // 10, 1)
    report = {
        "questions": len(groups),
        "positives": sum(len(group.positives) for group in groups),
        "loss_before": round(sum(losses[:tenth]) / tenth, 4),
        "loss": round(sum(losses[-tenth:]) / tenth, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }
    with write_folder(out) as partial:
        model.float().save_pretrained(str(partial))
        header = {
            "trained_on": [[s.source, s.path, s.train_split, data.fingerprint(s)]
                           for s in sources(config)],
            "from": config.embedder.model,
            "settings": to_dict(config.cross_encoder),
            "seed": config.seed,
            "report": report,
        }  # fmt: skip
        (partial / HEADER).write_text(json.dumps(header, indent=1) + "\n", "utf8")
    return report


def _groups(
    questions: Sequence[Question], retriever: Retriever, config: CrossEncoderConfig
) -> Iterator[Group]:
    for question in questions:
        graph = retriever.graph_of(question).graph
        asked = retriever.questions([question.question])
        if question.chunks:
            golds = set(question.support)
            texts = [chunk.words for chunk in question.chunks]
            supports = [bool(golds & facts_of_chunk(c, question)) for c in question.chunks]
            x = graph.x[graph.num_nodes - len(texts) :]
        else:
            texts, supports, x = _triples(question, graph)
        cosine = (x @ asked[0]).float()
        best, near = cosine.sort(descending=True, stable=True)
        best = (best - best[: config.depth].mean()) / best[: config.depth].std().clamp_min(1e-6)
        found = [(place, Text(texts[place], first))
                 for place, first in zip(near.tolist(), best.tolist(), strict=True)]  # fmt: skip
        others = [text for place, text in found if not supports[place]][: config.depth]
        positives = [text for place, text in found if supports[place]]
        if positives and others:
            yield Group(question.question, tuple(positives), tuple(others))


def _triples(question: Question, graph: GraphTensors) -> tuple[list[str], list[bool], Tensor]:
    golds = gold_mask([question], graph)
    distance = distances(graph, topic_mask([question], graph))
    _, on_way = on_shortest_paths(graph, distance, golds)
    head, tail = graph.edge_index
    x = graph.x[head] + graph.relation_x[graph.edge_type] + graph.x[tail]
    return verbalised(graph), on_way.tolist(), torch.nn.functional.normalize(x.float(), dim=-1)


def _train(
    model: Any, groups: Sequence[Group], config: RunConfig, *, progress: bool
) -> list[float]:
    """Cross-entropy of each positive against its question's negatives; the loss of each step."""
    own = config.cross_encoder
    order = random.Random(config.seed)
    network, tokenizer = model.model, model.tokenizer
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=own.learning_rate, weight_decay=0.01)
    steps = own.epochs * math.ceil(len(groups) / own.train_batch_size)
    warm = max(1, steps // 10)

    def rate(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    with tqdm(total=steps, desc="training cross-encoder", unit="step", disable=not progress) as bar:
        for _ in range(own.epochs):
            shuffled = order.sample(list(groups), len(groups))
            for at in range(0, len(shuffled), own.train_batch_size):
                batch = [group.draw(own.negatives, order) for group in
                         shuffled[at : at + own.train_batch_size]]  # fmt: skip
                tokens = tokenizer(
                    [group.question for group in batch for _ in group.texts],
                    [text.words for group in batch for text in group.texts],
                    padding=True, truncation="longest_first", max_length=own.max_length,
                    return_tensors="pt",
                ).to(network.device)  # fmt: skip
                logits = network(**tokens).logits.squeeze(1).float()
                first = [text.first for group in batch for text in group.texts]
                loss = contrast(torch.tensor(first).to(logits) + own.weight * logits, batch)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(float(loss.detach()))
                bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
                bar.update()
    network.eval()
    return losses


def contrast(logits: Float[Tensor, " pairs"], batch: Sequence[Group]) -> Float[Tensor, ""]:
    """Mean over the positives of -log softmax among it and its question's negatives."""
    sizes = [len(group.texts) for group in batch]
    losses = []
    for logit, group in zip(logits.split(sizes), batch, strict=True):
        positive, negative = logit.split([len(group.positives), len(group.negatives)])
        against = torch.logsumexp(negative, 0)
        losses.append(torch.nn.functional.softplus(against - positive))
    return torch.cat(losses).mean()
