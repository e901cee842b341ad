"""Training retrievers: which relations lead from a question's topics to its answers.

The only labels are the answers. Of several networks each question is kept from one, which stands
for all when evidence for that question is wanted later.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from bisrqa import data, retriever_losses
from bisrqa.config import LearningConfig, RetrieverConfig, RunConfig, to_dict
from bisrqa.examples import CHUNK_QUESTIONS, Retriever
from bisrqa.graph.tensors import NodeKind
from bisrqa.heads.base import gold_mask, topic_mask
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.learned import LearnedWalk
from bisrqa.retrieval.trained import Trained, keys
from bisrqa.retrieval.triple_scorer import TripleScorer
from bisrqa.retriever_losses import Row

logger = logging.getLogger(__name__)

WARM_UP = 0.1


class Kind(NamedTuple):
    """A retriever that can be trained."""

    build: Callable[[int, LearningConfig, int], Trained]
    """From the width of embeddings, the settings, and how many questions are kept from a member."""
    loss: Callable[[Any, Sequence[Row], LearningConfig], Tensor]
    reads_nodes: bool
    """Whether it looks at the embeddings of nodes."""


def _walk(dim: int, own: LearningConfig, seen: int) -> Trained:
    return LearnedWalk(
        dim, hidden=own.hidden, members=own.members, dropout=own.dropout, doubt=own.doubt, seen=seen
    )


def _scorer(dim: int, own: LearningConfig, seen: int) -> Trained:
    return TripleScorer(dim, hidden=own.hidden, members=own.members, dropout=own.dropout, seen=seen)


KINDS = {
    LearnedWalk.head: Kind(_walk, retriever_losses.of_walk, reads_nodes=False),
    TripleScorer.head: Kind(_scorer, retriever_losses.of_triples, reads_nodes=True),
}
"""By the head that uses it."""


def run(config: RunConfig, out: Path, *, progress: bool = False) -> dict[str, Any]:
    """Train on ``data.train_split`` and write what was learnt to a folder.

    Args:
        config: ``data``, ``embedder``, ``learning`` and ``seed`` are read.
        out: A folder that does not exist, or holds a trained retriever, which is replaced.
        progress: Show progress bars.

    Returns:
        Flat: questions, those with a gold in the graph, the loss of the first and the last pass,
        the trained scalars (means of the members), seconds.

    Raises:
        ValueError: Data that cannot be used, or a shared graph or corpus.
    """
    started = time.perf_counter()
    if config.data.graph != "question":
        raise ValueError(
            f"data.graph {config.data.graph}: retrievers learn on questions that bring their "
            "graph; what the walk has learnt can be used on any"
        )
    head = LearnedWalk.head if config.head == "union" else config.head
    if head not in KINDS:
        raise ValueError(f"head {head} learns nothing: set it to {' or '.join(KINDS)}")
    kind = KINDS[head]
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    retriever = Retriever(_plain(config), cache_dir, progress=progress)
    own = config.learning
    splits, count = [config.data.train_split, *own.data], 0
    rows: list[Row] = []
    for split in splits:
        questions = list(data.read(config.data, split, limit=own.limit))
        count += len(questions)
        rows += _rows(questions, retriever, kind)
    if not rows:
        raise ValueError(f"no question of {', '.join(splits)} has a gold in its graph")
    torch.manual_seed(config.seed)
    aside = own.cross_fit and own.members > 1
    model = kind.build(retriever.dim, own, len(rows) if aside else 0)
    if len(model.seen):
        model.seen.copy_(torch.stack([row.key for row in rows]))
    first, last = _train(kind, model, rows, config, progress=progress)
    report = {
        "questions": count,
        "learnt_from": len(rows),
        "loss_before": round(first, 4),
        "loss": round(last, 4),
        **_scalars(model),
        "seconds": round(time.perf_counter() - started, 1),
    }
    known = {
        "trained_on": [config.data.source, config.data.path, splits, data.fingerprint(config.data)],
        "embedder": retriever.texts.folder.name,
        "settings": json.loads(json.dumps(to_dict(own))),
        "seed": config.seed,
        "report": report,
    }
    model.save(out, known)
    return report


def _plain(config: RunConfig) -> RunConfig:
    """Without what is about to be trained."""
    return replace(config, head="bisrqa", retriever=replace(config.retriever, learned=None))


def _scalars(model: Trained) -> dict[str, float]:
    if not isinstance(model, LearnedWalk):
        return {}
    settled = model.settled(RetrieverConfig())
    sharpness = float(torch.exp(-model.sharpness.detach().mean()))
    return {
        "node_temperature": round(settled.node_temperature, 4),
        "relation_temperature": round(sharpness, 4),
        "topic_mass": round(settled.topic_mass, 4),
        "restart": round(settled.restart, 4),
    }


def _rows(questions: list[Any], retriever: Retriever, kind: Kind) -> Iterator[Row]:
    for start in range(0, len(questions), CHUNK_QUESTIONS):
        some, question_x, graph = retriever.graphs(questions[start : start + CHUNK_QUESTIONS])
        topics = topic_mask(some, graph)
        golds = gold_mask(some, graph) & ~topics & (graph.node_kind != NodeKind.MEDIATOR)
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)
        nodes, relations = (ptr.diff().tolist() for ptr in (graph.node_ptr, graph.relation_ptr))
        of_nodes = [value.split(nodes) for value in (cosine, topics, golds)]
        relation_x = graph.relation_x
        if not kind.reads_nodes:
            # Not x[:, :0], which would keep the whole of it in memory.
            none = [x.new_zeros(len(x), 0) for x in (graph.x, relation_x)]
            graph = replace(graph, x=none[0], relation_x=none[1])
        slim = graph.unbatch()
        parts = slim, question_x, relation_x.split(relations), *of_nodes, keys(some)
        for row in map(Row._make, zip(*parts, strict=True)):
            if row.golds.any():
                yield row


def _train(
    kind: Kind, model: Trained, rows: list[Row], config: RunConfig, *, progress: bool
) -> tuple[float, float]:
    """Returns the mean loss of a member and question in the first and in the last pass."""
    own = config.learning
    order = torch.Generator().manual_seed(config.seed)
    matrices = [p for p in model.parameters() if p.ndim > 2]
    others = [p for p in model.parameters() if p.ndim <= 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": others, "weight_decay": 0.0}],
        lr=own.learning_rate,
        weight_decay=own.weight_decay,
    )
    total = own.epochs * math.ceil(len(rows) / own.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, own.learning_rate, total_steps=max(total, 2), pct_start=WARM_UP
    )
    means = []
    model.train()
    with tqdm(total=total, desc="training retriever", unit="step", disable=not progress) as bar:
        for _ in range(own.epochs):
            losses = 0.0
            for some in torch.randperm(len(rows), generator=order).split(own.batch_size):
                batch = [rows[index] for index in some.tolist()]
                loss = loss_of(kind, model, batch, own)
                optimizer.zero_grad()
                loss.sum().backward()  # each member learns as if it were alone
                _clip(list(model.parameters()))
                optimizer.step()
                schedule.step()
                losses += float(loss.detach().mean()) * len(batch)
                bar.set_postfix(loss=f"{float(loss.detach().mean()):.3f}")
                bar.update()
            means.append(losses / len(rows))
    model.eval()
    return means[0], means[-1]


def loss_of(
    kind: Kind, model: Trained, batch: Sequence[Row], config: LearningConfig
) -> Float[Tensor, " members"]:
    """Loss of each member, its mean over the questions of a batch that it may see."""
    learns = model.learns(torch.stack([row.key for row in batch]))
    loss = kind.loss(model, batch, config) * learns
    return loss.sum(1) / learns.sum(1).clamp_min(1)


def _clip(weights: list[nn.Parameter]) -> None:
    """Bring the norm of each member's gradient down to 1."""
    gradients = [p.grad for p in weights if p.grad is not None]
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    scale = (1 / norm.clamp_min(1e-9)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))
