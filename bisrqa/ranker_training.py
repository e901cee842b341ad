"""Training the small ranker of passages on questions whose supporting facts are known."""

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from bisrqa import data
from bisrqa.config import DataConfig, RunConfig, to_dict
from bisrqa.data.records import Question
from bisrqa.examples import BATCH_QUESTIONS, Retriever
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.edrag import EDRAGHead
from bisrqa.heads.kg2rag import KG2RAGHead
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.ranker import PassageRanker
from bisrqa.text_recall import supports

logger = logging.getLogger(__name__)


@runtime_checkable  # the type checks of the tests need it
class Learner(Protocol):
    """A head that a ranker can be trained for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features."""
        ...

    def features(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> Float[Tensor, "passages features"]: ...


HEADS: dict[str, Callable[[RunConfig], Learner]] = {
    "kg2rag": lambda config: KG2RAGHead(config.retriever, config.kg2rag),
    "edrag": lambda config: EDRAGHead(config.retriever, config.edrag),
}


class Row(NamedTuple):
    """One question's passages."""

    features: Float[Tensor, "passages features"]
    supports: Bool[Tensor, " passages"]
    fact: Int[Tensor, " passages"]
    """Which supporting fact, or paragraph, each passage is of, where it supports."""


def run(config: RunConfig, out: Path, *, progress: bool = False) -> dict[str, Any]:
    """Train a ranker and write it to a folder.

    Args:
        config: ``data`` and ``ranker`` say what to learn from, ``head`` and its settings what the
            features are.
        out: A folder that does not exist, or holds a ranker.
        progress: Show progress bars.

    Returns:
        Flat: questions, passages, the share that supports, the loss before and after, seconds.

    Raises:
        ValueError: Data that cannot be used, or without supporting facts.
    """
    started = time.perf_counter()
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    name = config.head if config.head in HEADS else "kg2rag"
    own = dataclasses.replace(getattr(config, name), ranker=None, form="ranked")
    plain = dataclasses.replace(config, head=name, **{name: own})
    retriever = Retriever(plain, cache_dir, progress=progress)
    head = HEADS[name](plain)
    rows: list[Row] = []
    for source in sources(config):
        questions = list(data.read(source, source.train_split, limit=config.data.train_limit))
        rows += _rows(questions, head, retriever)
    if not rows:
        raise ValueError("no training question has both texts and supporting facts")
    torch.manual_seed(config.seed)
    ranker = PassageRanker(head.names, config.ranker.hidden, config.ranker.members)
    every = torch.cat([row.features for row in rows])
    ranker.fit_scale(every)
    first, last = _train(ranker, rows, config, progress=progress)
    report = {
        "questions": len(rows),
        "passages": len(every),
        "supporting": round(float(torch.cat([row.supports for row in rows]).float().mean()), 4),
        "loss_before": round(first, 4),
        "loss": round(last, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }
    known = {
        "trained_on": [
            [source.source, source.path, source.train_split, data.fingerprint(source)]
            for source in sources(config)
        ],
        "settings": json.loads(json.dumps(to_dict(config.ranker))),
        "head": {name: json.loads(json.dumps(to_dict(own)))},
        "seed": config.seed,
        "report": report,
    }
    ranker.save(out, known)
    return report


def sources(config: RunConfig) -> list[DataConfig]:
    """The sets that are learnt from."""
    found = [config.data]
    for entry in config.ranker.data:
        source, _, path = entry.partition(":")
        values: dict[str, Any] = {"source": source, "path": path}
        found.append(dataclasses.replace(config.data, **values))
    return found


def _rows(questions: Sequence[Question], head: Learner, retriever: Retriever) -> list[Row]:
    rows = []
    kept = [q for q in questions if q.support and (q.chunks or retriever.over_corpus)]
    if len(kept) < len(questions):
        logger.warning(
            "questions without supporting facts or texts: %d", len(questions) - len(kept)
        )
    for start in range(0, len(kept), BATCH_QUESTIONS):
        some, question_x, graph = retriever.graphs(kept[start : start + BATCH_QUESTIONS])
        values = head.features(some, question_x, graph)
        for question, part in zip(some, values.split([len(q.chunks) for q in some]), strict=True):
            good = [supports(chunk, question) for chunk in question.chunks]
            if not any(good):  # what the corpus was searched for is not among the candidates
                continue
            fact = [chunk.paragraph for chunk in question.chunks]
            if question.support_unit == "sentence":
                fact = list(range(len(fact)))
            rows.append(Row(part, torch.tensor(good), torch.tensor(fact)))
    return rows


def _train(
    ranker: PassageRanker, rows: Sequence[Row], config: RunConfig, *, progress: bool
) -> tuple[float, float]:
    """Binary cross-entropy of every passage; returns the first and the last epoch's mean."""
    own = config.ranker
    order = torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(
        ranker.parameters(), lr=own.learning_rate, weight_decay=own.weight_decay
    )
    steps = own.epochs * math.ceil(len(rows) / own.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    means = []
    ranker.train()
    for _ in tqdm(range(own.epochs), desc="training ranker", unit="epoch", disable=not progress):
        losses = []
        for some in torch.randperm(len(rows), generator=order).split(own.batch_size):
            batch = [rows[index] for index in some.tolist()]
            score = ranker.each(torch.cat([row.features for row in batch]))
            supports = torch.cat([row.supports for row in batch])
            fact = _apart([row.fact for row in batch])
            weight = weights(score.detach(), supports, fact, own.best_sentence)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                score, supports.to(score)[:, None].expand_as(score), weight, reduction="none"
            )
            loss = loss.mean(0).sum()  # each network learns as if it were alone
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()) / ranker.members)
        means.append(sum(losses) / len(losses))
    ranker.eval()
    return means[0], means[-1]


def weights(
    score: Float[Tensor, "passages members"],
    supports: Bool[Tensor, " passages"],
    fact: Int[Tensor, " passages"],
    best: float,
) -> Float[Tensor, "passages members"]:
    """How much each passage counts in the loss.

    Where paragraphs are marked and not sentences, most sentences of a supporting one say nothing of
    the question. ``best`` is the share of their weight that goes to those which the network itself
    thinks best by now, one in all for each paragraph; the rest goes to all alike.
    """
    chance = torch.where(supports[:, None], score.clamp_max(50).exp(), 0.0)
    total = torch.zeros(len(fact), score.shape[1]).to(score).index_add(0, fact, chance)
    own = chance / total[fact].clamp_min(1e-9)
    return torch.where(supports[:, None], 1 - best + best * own, 1.0)


def _apart(facts: Sequence[Int[Tensor, " _"]]) -> Int[Tensor, " passages"]:
    """Numbers of facts of several questions, none of them twice."""
    key = torch.cat([
        fact + number * (max(map(len, facts)) + 1) for number, fact in enumerate(facts)
    ])  # fmt: skip
    return torch.unique(key, return_inverse=True)[1]
