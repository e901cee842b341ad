"""What a retrieval head takes and gives, and the part that all heads that score nodes share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.cross_encoder import CrossEncoder
from bisrqa.retrieval.passages import is_structure, lend_to_entities
from bisrqa.retrieval.segments import segment_rank, standardise
from bisrqa.retrieval.shared import SharedGraph
from bisrqa.retrieval.sppr import edge_scores
from bisrqa.retrieval.subgraph import Ranked, Selection, induced, rank, select, select_shared

RANKED = 100
"""How many nodes are ranked for each question, however few are kept."""
ANSWERS = (NodeKind.ENTITY, NodeKind.EVENT)
"""Kinds of nodes that may be answers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a head kept of one question's graph, and why."""

    graph: GraphTensors
    """The kept subgraph; its edges are in order, best first."""
    node_ids: Int[Tensor, " nodes"]
    """Ids that the nodes had in the whole graph."""
    edge_ids: Int[Tensor, " edges"]
    """Ids that the edges had in the whole graph."""
    node_score: Float[Tensor, " nodes"]
    """Higher is better."""
    edge_score: Float[Tensor, " edges"]
    """Higher is better; falls along the edges."""
    reason: Int[Tensor, " nodes"]
    """Why each node was kept, as :class:`~bisrqa.retrieval.subgraph.Reason`."""
    ranked: Int[Tensor, " ranked"] = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Ids (in the whole graph) of the best named nodes besides the topics, best first; as many as
    :data:`RANKED`, more than were kept."""
    passages: tuple[int, ...] = ()
    """Node ids (in ``graph``) of kept passages, best first."""
    reading: tuple[int, ...] = ()
    """The same passages in the order in which they are read best; empty for the order above."""
    signals: Mapping[str, Float[Tensor, " kept_passages"]] = field(default_factory=dict)
    """What spoke for each of ``passages``, by the signal's name (ED-RAG)."""
    found_by: str = ""
    """``graph`` where passages were found along entities and events, ``index`` where only the
    nearest events led to them (ED-RAG)."""
    named: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """Entities that the question names: importance, and how each was found (ED-RAG)."""
    ranked_passages: Int[Tensor, " ranked_passages"] = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long)
    )
    """Ids (in the whole graph) of the best passages, best first; as many as :data:`RANKED`."""


@runtime_checkable  # the type checks of the tests need it
class Head(Protocol):
    """Cuts the evidence for each question out of its graph."""

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors | SharedGraph,
    ) -> list[Evidence]:
        """Answer for all questions at once.

        Args:
            questions: ``graph`` of the records is not read.
            question_x: Unit-norm embeddings.
            graph: A block-diagonal batch with a graph for each question, or one graph for all, on
                the same device as ``question_x``.
        """
        ...


def topic_mask(questions: Sequence[Question], graph: GraphTensors) -> Bool[Tensor, " nodes"]:
    """Mark each question's topic entities in its own graph, as far as the graph has them."""
    return _named([question.topics for question in questions], graph)


def gold_mask(questions: Sequence[Question], graph: GraphTensors) -> Bool[Tensor, " nodes"]:
    """Mark each question's answers in its own graph."""
    return _named([question.answers for question in questions], graph)


def _named(names: Sequence[Sequence[str]], graph: GraphTensors) -> Bool[Tensor, " nodes"]:
    sets, batch = [set(some) for some in names], graph.node_batch.tolist()
    flags = [text in sets[g] for text, g in zip(graph.node_text, batch, strict=True)]
    return torch.tensor(flags, dtype=torch.bool, device=graph.device)


class Scores(NamedTuple):
    """What a method thinks of nodes and edges; higher is better."""

    node: Float[Tensor, "rows nodes"]
    """One row a question, or a single one for a batch of graphs. A node with 0 is never kept."""
    relation: Float[Tensor, "rows relations"] | None = None
    """Weights of relations, of a method that does not score edges: an edge then has the score of
    its weaker end times that of its relation (1 without weights)."""
    edge: Float[Tensor, " edges"] | None = None
    """Scores of edges, of a method that has them; an edge with 0 is never kept."""


class ScoringHead(ABC):
    """A head that scores nodes; the best of them, the topics and what joins them are kept."""

    def __init__(self, config: RetrieverConfig):
        self.config = config
        self.cross_encoder: CrossEncoder | None = None
        """Looks at the best passages once more; set by whoever builds the head."""

    looks_at_triples = False
    """Whether the cross-encoder has been asked by :meth:`score` where there are no passages."""

    @abstractmethod
    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        """Score a batch with a graph for each question."""

    def score_shared(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: SharedGraph,
        topics: Bool[Tensor, "questions nodes"],
    ) -> Scores:
        """Score one graph for all questions."""
        raise ValueError(f"head {type(self).__name__} needs data.graph question")

    def look_again(
        self,
        questions: Sequence[Question],
        graph: GraphTensors,
        node: Float[Tensor, "one nodes"],
        passages: Ranked,
    ) -> Float[Tensor, "one nodes"]:
        """Scores after the cross-encoder has looked at the best passages."""
        assert self.cross_encoder is not None
        some = passages.place < self.cross_encoder.config.depth
        question, ids = passages.question[some], passages.node[some]
        pairs = [
            (questions[q].question, graph.node_text[n])
            for q, n in zip(question.tolist(), ids.tolist(), strict=True)
        ]
        looked, result = self.cross_encoder(pairs), node.clone()
        result[0, ids] = dealt_anew(node[0, ids], looked, question, self.cross_encoder)
        return result

    def _refuse_cross_encoder(self) -> None:
        """Where there are no passages: one that would never be asked is a mistake."""
        if self.cross_encoder is not None and not self.looks_at_triples:
            raise ValueError(
                "cross_encoder.model: this head has no texts here to look at; use it with texts, "
                "or with head kg2rag"
            )

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors | SharedGraph,
    ) -> list[Evidence]:
        top_k = self.config.top_k
        depth = max(RANKED, top_k)
        if isinstance(graph, SharedGraph):
            self._refuse_cross_encoder()
            topics = graph.mask([question.topics for question in questions])
            scores = self.score_shared(questions, question_x, graph, topics)
            ranked = rank(graph.graph, scores.node, topics, depth)
            selection = select_shared(graph.graph, graph.links, ranked, topics, top_k)
            return _evidence(graph.graph, selection, ranked, scores, len(questions))
        topics = topic_mask(questions, graph)[None]
        scores = self.score(questions, question_x, graph, topics)
        ranked = rank(graph, scores.node, topics, depth, ANSWERS)
        passages = rank(graph, scores.node, topics, depth, (NodeKind.PASSAGE,))
        if not len(passages.node) and graph.num_edges:
            self._refuse_cross_encoder()
        if self.cross_encoder is not None and len(passages.node):
            scores = scores._replace(node=self.look_again(questions, graph, scores.node, passages))
            passages = rank(graph, scores.node, topics, depth, (NodeKind.PASSAGE,))
        best = passages.node[passages.place < self.config.passages]
        selection = select(graph, ranked, topics, top_k, best)
        kept = _evidence(graph, selection, ranked, scores, len(questions))
        return _with_passages(kept, passages, graph) if len(best) else kept


def dealt_anew(
    score: Float[Tensor, " rows"],
    looked: Float[Tensor, " rows"],
    question: Int[Tensor, " rows"],
    cross_encoder: CrossEncoder,
) -> Float[Tensor, " rows"]:
    """The same scores within each question, in the order that first score and second look make.

    Args:
        score: Of some rows of each question.
        looked: What the cross-encoder says of them.
        question: Of each row.
        cross_encoder: Knows its weight.
    """
    groups = int(question.max()) + 1 if len(question) else 0
    mixed = standardise(score, question, groups)
    mixed = mixed + cross_encoder.config.weight * looked.to(score)
    orders = []
    for key in (mixed, score):
        order = torch.argsort(key, descending=True, stable=True)
        orders.append(order[torch.argsort(question[order], stable=True)])
    result = torch.empty_like(score)
    result[orders[0]] = score[orders[1]]
    return result


def from_passages(graph: GraphTensors, passage: Float[Tensor, " passages"]) -> Scores:
    """Scores of a method that scores passages: entities and edges are as good as where they stand.

    Args:
        graph: A batch of text graphs.
        passage: Of each passage, in the order of their ids.
    """
    node = passage.new_zeros(graph.num_nodes)
    node[graph.node_kind == NodeKind.PASSAGE] = passage
    node = lend_to_entities(graph, node)
    source = torch.where(is_structure(graph), graph.edge_index[0], graph.edge_passage)
    return Scores(node[None], edge=node[source])


def from_edges(graph: GraphTensors, edge: Float[Tensor, " edges"]) -> Scores:
    """Scores of a method that scores edges: a node is as good as its best edge."""
    ends = graph.edge_index.flatten()
    node = edge.new_zeros(graph.num_nodes).scatter_reduce(0, ends, edge.repeat(2), "amax")
    return Scores(node[None], edge=edge)


def nearest_triples(graph: GraphTensors, question_x: Float[Tensor, "questions dim"]) -> Scores:
    """Triples by the cosine of the question and the sum of their parts; a mediator adds nothing."""
    head, tail = graph.edge_index
    triple = graph.x[head] + graph.relation_x[graph.edge_type] + graph.x[tail]
    triple = torch.nn.functional.normalize(triple, dim=-1)
    cosine = (triple * question_x[graph.edge_batch]).sum(-1)
    return from_edges(graph, (1 + cosine).clamp_min(1e-6))


def lend_to_mediators(
    graph: GraphTensors, node: Float[Tensor, " nodes"]
) -> Float[Tensor, " nodes"]:
    """Give a mediator, which has no name to be scored by, the score of its best neighbour."""
    head, tail = graph.edge_index
    best = node.new_zeros(len(node))
    best = best.scatter_reduce(0, torch.cat([head, tail]), node[torch.cat([tail, head])], "amax")
    return torch.where(graph.node_kind == NodeKind.MEDIATOR, best, node)


def scored_edges(
    graph: GraphTensors,
    scores: Scores,
    question: Int[Tensor, " some"],
    edge: Int[Tensor, " some"],
) -> Float[Tensor, " some"]:
    """Scores of some edges, by themselves or by their ends.

    Args:
        graph: One graph, or a batch.
        scores: What a head thinks.
        question: Which question, or graph of the batch, each edge is looked at for.
        edge: Its id.
    """
    if scores.edge is not None:
        return scores.edge[edge]
    weight = scores.relation
    if weight is None:
        weight = scores.node.new_ones(len(scores.node), graph.num_relations)
    return edge_scores(graph, scores.node, weight, question, edge)


def _evidence(
    graph: GraphTensors, selection: Selection, ranked: Ranked, scores: Scores, questions: int
) -> list[Evidence]:
    """The subgraph of each question, its edges best first."""
    value = scored_edges(graph, scores, selection.edge_question, selection.edge)
    if scores.edge is not None:
        good = value > 0
        selection = selection._replace(
            edge_question=selection.edge_question[good], edge=selection.edge[good]
        )
        value = value[good]
    question, node, reason, edge_question, edge = selection
    small = induced(graph, selection, questions)
    place = segment_rank(value, small.edge_ptr) + small.edge_ptr[small.edge_batch]
    order = torch.empty_like(place)
    order[place] = torch.arange(len(place), device=place.device)
    rows = question if len(scores.node) > 1 else torch.zeros_like(question)
    score, best = scores.node[rows, node], ranked.node
    if graph.num_graphs > 1:  # ids within the question's own graph
        node = node - graph.node_ptr[question]
        edge = edge - graph.edge_ptr[edge_question]
        best = best - graph.node_ptr[ranked.question]
    nodes, edges = small.node_ptr.diff().tolist(), small.edge_ptr.diff().tolist()
    parts = zip(
        _reorder(small, order).unbatch(),
        node.split(nodes),
        edge[order].split(edges),
        score.split(nodes),
        value[order].split(edges),
        reason.split(nodes),
        best.split(torch.bincount(ranked.question, minlength=questions).tolist()),
        strict=True,
    )
    return [
        Evidence(graph=g, node_ids=n, edge_ids=e, node_score=ns, edge_score=es, reason=r, ranked=b)
        for g, n, e, ns, es, r, b in parts
    ]


def _with_passages(kept: list[Evidence], passages: Ranked, graph: GraphTensors) -> list[Evidence]:
    """Name the passages in order: those that were kept, and all that are ranked."""
    node = passages.node - graph.node_ptr[passages.question]
    counts = torch.bincount(passages.question, minlength=len(kept)).tolist()
    filled = []
    for evidence, ids in zip(kept, node.split(counts), strict=True):
        is_kept = torch.isin(ids, evidence.node_ids)
        places = torch.searchsorted(evidence.node_ids, ids[is_kept])  # ids of kept nodes rise
        filled.append(replace(evidence, passages=tuple(places.tolist()), ranked_passages=ids))
    return filled


def _reorder(graph: GraphTensors, order: Int[Tensor, " edges"]) -> GraphTensors:
    """The same graph with its edges in another order that keeps each graph's edges together."""
    return replace(
        graph,
        edge_index=graph.edge_index[:, order],
        edge_type=graph.edge_type[order],
        edge_passage=graph.edge_passage[order],
    )
