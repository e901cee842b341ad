"""Training the walk: which relations lead from a question's topics to its answers.

The only labels are the answers. A question's loss is the mean over its golds of how far each falls
behind the nodes that are none: ``log(1 + sum of z over those / z of the gold)``, of every member of
:class:`~bisrqa.retrieval.learned.LearnedWalk`, through the walk. Of several members each question
is kept from one, which stands for all when evidence for that question is wanted later.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from bisrqa import data
from bisrqa.config import RunConfig, to_dict
from bisrqa.examples import CHUNK_QUESTIONS, Retriever
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import gold_mask, topic_mask
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.learned import LearnedWalk, keys

logger = logging.getLogger(__name__)

WARM_UP = 0.1


class Row(NamedTuple):
    """A question that can be learnt from."""

    graph: GraphTensors
    """Without embeddings; those of nodes, which would fill the memory, only count by the cosine."""
    question_x: Float[Tensor, " dim"]
    relation_x: Float[Tensor, "relations dim"]
    cosine: Float[Tensor, " nodes"]
    topics: Bool[Tensor, " nodes"]
    golds: Bool[Tensor, " nodes"]
    """Without topics and mediators."""
    key: Int[Tensor, ""]
    """What the question is known by later."""


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
            f"data.graph {config.data.graph}: the walk learns on questions that bring their graph; "
            "what it has learnt can be used on any"
        )
    if config.head not in ("bisrqa", "union"):
        raise ValueError(f"head {config.head} does not walk: set it to bisrqa")
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    retriever = Retriever(_plain(config), cache_dir, progress=progress)
    own = config.learning
    splits, count = [config.data.train_split, *own.data], 0
    rows: list[Row] = []
    for split in splits:
        questions = list(data.read(config.data, split, limit=own.limit))
        count += len(questions)
        rows += _rows(questions, retriever)
    if not rows:
        raise ValueError(f"no question of {', '.join(splits)} has a gold in its graph")
    torch.manual_seed(config.seed)
    model = LearnedWalk(
        retriever.dim,
        hidden=own.hidden,
        members=own.members,
        dropout=own.dropout,
        doubt=own.doubt,
        seen=len(rows) if own.cross_fit and own.members > 1 else 0,
    )
    if len(model.seen):
        model.seen.copy_(torch.stack([row.key for row in rows]))
    first, last = _train(model, rows, config, progress=progress)
    settled = model.settled(config.retriever)
    report = {
        "questions": count,
        "learnt_from": len(rows),
        "loss_before": round(first, 4),
        "loss": round(last, 4),
        "node_temperature": round(settled.node_temperature, 4),
        "relation_temperature": round(float(torch.exp(-model.sharpness.detach().mean())), 4),
        "topic_mass": round(settled.topic_mass, 4),
        "restart": round(settled.restart, 4),
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
    return replace(config, retriever=replace(config.retriever, learned=None))


def _rows(questions: list[Any], retriever: Retriever) -> Iterator[Row]:
    for start in range(0, len(questions), CHUNK_QUESTIONS):
        some, question_x, graph = retriever.graphs(questions[start : start + CHUNK_QUESTIONS])
        topics = topic_mask(some, graph)
        golds = gold_mask(some, graph) & ~topics & (graph.node_kind != NodeKind.MEDIATOR)
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)
        nodes, relations = (ptr.diff().tolist() for ptr in (graph.node_ptr, graph.relation_ptr))
        of_nodes = [value.split(nodes) for value in (cosine, topics, golds)]
        relation_x = graph.relation_x
        # Not x[:, :0], which would keep the whole of it in memory.
        slim = replace(
            graph,
            x=graph.x.new_zeros(len(graph.x), 0),
            relation_x=relation_x.new_zeros(len(relation_x), 0),
        ).unbatch()
        parts = slim, question_x, relation_x.split(relations), *of_nodes, keys(some)
        for row in map(Row._make, zip(*parts, strict=True)):
            if row.golds.any():
                yield row


def _train(
    model: LearnedWalk, rows: list[Row], config: RunConfig, *, progress: bool
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
                loss = loss_of(model, batch, own.steps)
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


def loss_of(model: LearnedWalk, batch: Sequence[Row], steps: int) -> Float[Tensor, " members"]:
    """Loss of each member, its mean over the questions of a batch that it may see.

    Args:
        model: Every member has its own walk.
        batch: Questions with a gold each.
        steps: Of the walk.
    """
    graph = GraphTensors.collate([row.graph for row in batch])
    cosine, topics, golds = (
        torch.cat([getattr(row, name) for row in batch])[None]
        for name in ("cosine", "topics", "golds")
    )
    question_x = torch.stack([row.question_x for row in batch])
    relation_x = torch.cat([row.relation_x for row in batch])
    score = model(graph, question_x, relation_x, cosine, topics, steps)
    others = ~topics & ~golds & (graph.node_kind != NodeKind.MEDIATOR)
    loss = _behind(score, golds[0], others[0], graph.node_batch, len(batch))
    if len(model.seen):
        member = torch.arange(model.members)[:, None]
        sees = model.left_out(torch.stack([row.key for row in batch])) != member
        return (loss * sees).sum(1) / sees.sum(1).clamp_min(1)
    return loss.mean(1)


def _behind(
    score: Float[Tensor, "members nodes"],
    golds: Bool[Tensor, " nodes"],
    others: Bool[Tensor, " nodes"],
    question: Int[Tensor, " nodes"],
    questions: int,
) -> Float[Tensor, "members questions"]:
    """Golds do not compete with one another: each is held against what is none."""
    rest, mine = score[:, others], question[others]
    most = score.new_full((len(score), questions), -1e9)
    most = most.scatter_reduce(1, mine.expand_as(rest), rest.detach(), "amax")
    total = torch.zeros_like(most).index_add(1, mine, torch.exp(rest - most[:, mine]))
    against = most + torch.log(total.clamp_min(1e-20))
    asked = question[golds]
    loss = nn.functional.softplus(against[:, asked] - score[:, golds])
    count = torch.bincount(asked, minlength=questions).to(loss)
    return torch.zeros_like(most).index_add(1, asked, loss / count[asked])


def _clip(weights: list[nn.Parameter]) -> None:
    """Bring the norm of each member's gradient down to 1."""
    gradients = [p.grad for p in weights if p.grad is not None]
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    scale = (1 / norm.clamp_min(1e-9)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))
