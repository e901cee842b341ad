"""ED-RAG: passages found along entity, event and text, and ranked along the event line.

Question side: the entities that a question names are looked up in the graph and weighed; the core
ones lead through the events that involve them to the passages that tell of these. Where no way
leads anywhere, the nearest events answer. Two forms:

- ``ranked`` (default): every passage is scored by all signals of
  :data:`bisrqa.retrieval.events.SIGNALS`, added with weights, or by a trained ranker.
- ``literal``: as the abstract has it: only what was reached is ranked, by entity coverage, cosine
  of question and passage, and the nearest event's.

On a graph without texts mediators are the events, and a plain triple is one of its own.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import EDRAGConfig, RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Evidence, Scores, ScoringHead, from_edges, from_passages
from bisrqa.retrieval.events import (
    FEATURES,
    SIGNALS,
    EventLinks,
    features,
    reached,
    redundant,
    signals,
)
from bisrqa.retrieval.lexical import BM25
from bisrqa.retrieval.mentions import Mentions, mentions
from bisrqa.retrieval.passages import links, passage_rows
from bisrqa.retrieval.ranker import PassageRanker
from bisrqa.retrieval.segments import segment_top_k, standardise
from bisrqa.retrieval.shared import SharedGraph

logger = logging.getLogger(__name__)

Embed = Callable[[Sequence[str]], Float[Tensor, "texts dim"]]


class Looked(NamedTuple):
    """What the head thinks of the passages of a batch."""

    signals: Float[Tensor, "passages signals"]
    hit: Bool[Tensor, " nodes"]
    """Passages that were reached along the graph, or through the index where nothing was."""
    ways: tuple[str, ...]
    """Of each question: ``graph`` or ``index``."""
    named: Mentions
    events: EventLinks


class EDRAGHead(ScoringHead):
    """Scores passages along the event line.

    Args:
        config: How much is kept.
        own: The form and its weights.
        embed: Gives unit-norm rows for names in questions; for ``own.embedding``.
    """

    names = FEATURES

    def __init__(self, config: RetrieverConfig, own: EDRAGConfig, embed: Embed | None = None):
        super().__init__(config)
        self.own, self._embed = own, embed
        self._bm25 = BM25() if own.words and own.form == "ranked" else None
        self._ranker = None
        if own.ranker and own.form == "ranked":
            self._ranker = PassageRanker.load(own.ranker_folder, FEATURES)
        self._last: Looked | None = None
        self._warned = False

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors | SharedGraph,
    ) -> list[Evidence]:
        self._last = None
        kept = super().__call__(questions, question_x, graph)
        if self._last is None or not isinstance(graph, GraphTensors):
            return kept
        return _explained(kept, graph, self._last)

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        is_passage = graph.node_kind == NodeKind.PASSAGE
        if not is_passage.any():
            return self._of_triples(question_x, graph, topics[0])
        looked = self._last = self.look(questions, question_x, graph)
        value = torch.sigmoid(self._log_odds(looked, graph))
        if self.own.form == "literal":
            value = value * looked.hit[is_passage]
        return from_passages(graph, value)

    def look(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> Looked:
        """Find what questions name, walk to passages, and measure what speaks for each."""
        asked, own = [question.question for question in questions], self.own
        joined, events = links(graph), EventLinks.of(graph)
        if not len(events.event) and not self._warned:
            self._warned = True
            logger.warning("head edrag: these texts have no events (extraction.what events)")
        named = mentions(
            asked, graph, joined, core=own.core, fuzzy=own.fuzzy, embedding=own.embedding,
            embed=self._embed,
        )  # fmt: skip
        hit = reached(events, named, graph)
        found = torch.zeros(len(asked), dtype=torch.bool, device=graph.device)
        found[graph.node_batch[hit]] = True
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)
        is_event = graph.node_kind == NodeKind.EVENT
        near = segment_top_k(cosine, graph.node_ptr, is_event, own.index)
        near &= ~found[graph.node_batch]
        hit[events.passage[events.describes & near[events.event]]] = True
        words = cosine.new_zeros(int((graph.node_kind == NodeKind.PASSAGE).sum()), 0)
        if self._bm25 is not None:
            words = self._bm25.of_passages(graph, questions).to(cosine)
        value = signals(graph, question_x, asked, words, named, joined, events)
        ways = tuple("graph" if way else "index" for way in found.tolist())
        return Looked(value, hit, ways, named, events)

    def features(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> Float[Tensor, "passages features"]:
        """What a ranker is given."""
        return self._features(self.look(questions, question_x, graph), graph)

    def _features(self, looked: Looked, graph: GraphTensors) -> Float[Tensor, "passages features"]:
        together = self._weighted(looked, graph)
        return features(looked.signals, together, graph, looked.events, looked.hit)

    def _log_odds(self, looked: Looked, graph: GraphTensors) -> Float[Tensor, " passages"]:
        if self._ranker is not None:
            ranker = self._ranker.to(graph.device)
            score = ranker(self._features(looked, graph))
        else:
            score = self._weighted(looked, graph)
        if self.own.redundancy:
            again = redundant(score, graph, looked.events)
            score = score - self.own.redundancy * again.to(score)
        return score

    def _weighted(self, looked: Looked, graph: GraphTensors) -> Float[Tensor, " passages"]:
        """The signals, each standardised within its question, times their weights."""
        question = graph.node_batch[graph.node_kind == NodeKind.PASSAGE]
        score = looked.signals.new_zeros(len(question))
        for name, column in zip(SIGNALS, looked.signals.T, strict=True):
            if weight := self.own.weight(name):
                score = score + weight * standardise(column, question, graph.num_graphs)
        return score

    def _of_triples(
        self,
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, " nodes"],
    ) -> Scores:
        """Triples by the event that they belong to: its cosine, and its steps from the topics."""
        head, tail = graph.edge_index
        is_event = graph.node_kind == NodeKind.MEDIATOR
        triple = graph.x[head] + graph.relation_x[graph.edge_type] + graph.x[tail]
        # An edge's event: its mediator, else itself.
        count = graph.num_nodes + graph.num_edges
        event = torch.arange(graph.num_edges, device=graph.device) + graph.num_nodes
        event = torch.where(is_event[head], head, torch.where(is_event[tail], tail, event))
        x = triple.new_zeros(count, triple.shape[1]).index_add(0, event, triple)[event]
        cosine = (torch.nn.functional.normalize(x, dim=-1) * question_x[graph.edge_batch]).sum(-1)
        steps = _event_steps(graph, event, topics, count)
        nearness = self.own.coverage * standardise(
            1 / (1.0 + steps), graph.edge_batch, graph.num_graphs
        )
        likeness = self.own.event * standardise(cosine, graph.edge_batch, graph.num_graphs)
        return from_edges(graph, torch.sigmoid(nearness + likeness))


def _explained(kept: Sequence[Evidence], graph: GraphTensors, looked: Looked) -> list[Evidence]:
    """The evidence with what spoke for each passage, and how it was found."""
    _, row = passage_rows(graph)
    named: list[dict[str, tuple[float, str]]] = [{} for _ in kept]
    for question, node, weight, way in zip(*map(_listed, looked.named), strict=True):
        named[question][graph.node_text[node]] = (round(weight, 4), way)
    parts = zip(kept, graph.node_ptr[:-1].tolist(), looked.ways, named, strict=True)
    return [
        replace(
            evidence,
            signals=dict(
                zip(
                    SIGNALS,
                    looked.signals[row[evidence.node_ids[list(evidence.passages)] + start]].T,
                    strict=True,
                )
            ),
            found_by=way,
            named=names,
        )
        for evidence, start, way, names in parts
    ]


def _listed(values: Tensor | tuple[str, ...]) -> Sequence:
    return values.tolist() if isinstance(values, Tensor) else values


FAR = 4


def _event_steps(
    graph: GraphTensors, event: Int[Tensor, " edges"], topics: Bool[Tensor, " nodes"], count: int
) -> Float[Tensor, " edges"]:
    """Events between the topics and each edge's, at most ``FAR``; 0 for one that has a topic."""
    head, tail = graph.edge_index
    near = topics.clone()
    steps = torch.full((count,), float(FAR), device=graph.device)
    for step in range(FAR):
        hit = torch.zeros(count, dtype=torch.bool, device=graph.device)
        hit[event[near[head] | near[tail]]] = True
        steps[hit] = steps[hit].clamp_max(float(step))
        inside = hit[event]
        near[head[inside]] = True
        near[tail[inside]] = True
    return steps[event].to(graph.x)
