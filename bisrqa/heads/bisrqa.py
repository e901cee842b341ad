"""BiS-RQA's explicit filter: SPPR scores, and the subgraph of the best nodes."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Evidence, topic_mask
from bisrqa.retrieval.nearest import nearest, similarity
from bisrqa.retrieval.segments import segment_rank, segment_top_k
from bisrqa.retrieval.shared import SharedGraph
from bisrqa.retrieval.sppr import edge_scores, personalization, relation_weights
from bisrqa.retrieval.subgraph import Selection, induced, select, select_shared
from bisrqa.walk import WalkGraph, push, sppr

logger = logging.getLogger(__name__)


class BiSRQAHead:
    """SPPR and top-K selection, over a batch of graphs or over one shared graph."""

    def __init__(self, config: RetrieverConfig):
        self._config = config

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors | SharedGraph,
    ) -> list[Evidence]:
        if isinstance(graph, SharedGraph):
            return self._over_shared(questions, question_x, graph)
        config = self._config
        topics = topic_mask(questions, graph)[None]
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)[None]
        weight = (graph.relation_x * question_x[graph.relation_batch]).sum(-1)[None]
        weight = relation_weights(weight, config)
        named = graph.node_kind != NodeKind.MEDIATOR
        if config.seeds is not None:
            named = segment_top_k(cosine[0], graph.node_ptr, named, config.seeds)
        p = personalization(cosine, topics, named, graph.node_ptr, config)
        scores = self._walk(WalkGraph.of(graph), p, weight)
        selection = select(graph, scores, topics, config.top_k)
        return _evidence(graph, selection, scores, weight, len(questions))

    def _over_shared(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        shared: SharedGraph,
    ) -> list[Evidence]:
        config, graph = self._config, shared.graph
        topics = shared.mask([question.topics for question in questions])
        weight = relation_weights(question_x @ graph.relation_x.to(question_x).T, config)
        p = self._restart(question_x, topics, shared)
        if config.walk == "push":
            found = push(
                shared.walk,
                p.to_sparse(),
                weight,
                restart=config.restart,
                threshold=config.push_threshold,
            )
            scores = found.scores.to_dense().to(weight)
        else:
            scores = self._walk(shared.walk, p, weight)
        selection = select_shared(graph, shared.links, scores, topics, config.top_k)
        return _evidence(graph, selection, scores, weight, len(questions))

    def _restart(
        self,
        question_x: Float[Tensor, "questions dim"],
        topics: Bool[Tensor, "questions nodes"],
        shared: SharedGraph,
    ) -> Float[Tensor, "questions nodes"]:
        """Personalization over the named nodes of a shared graph; zero on its mediators."""
        config, named = self._config, shared.num_named
        x = shared.graph.x[:named]
        if config.seeds is None:
            cosine = similarity(question_x, x)
            may = torch.ones(named, dtype=torch.bool, device=cosine.device)
        else:
            if config.search == "faiss":
                best, ids = shared.index(question_x, config.seeds)
            else:
                best, ids = nearest(question_x, x, config.seeds)
            cosine = question_x.new_zeros(len(question_x), named).scatter(1, ids, best)
            may = torch.zeros_like(cosine, dtype=torch.bool).scatter(1, ids, True)
        mediators = (0, shared.graph.num_nodes - named)
        if topics[:, named:].any():  # a question may ask of one by its id
            cosine, may = (torch.nn.functional.pad(t, mediators) for t in (cosine, may))
            mediators = (0, 0)
        ptr = torch.tensor([0, cosine.shape[1]], device=cosine.device)
        p = personalization(cosine, topics[:, : cosine.shape[1]], may, ptr, config)
        return torch.nn.functional.pad(p, mediators)

    def _walk(
        self,
        graph: WalkGraph,
        p: Float[Tensor, "rows nodes"],
        weight: Float[Tensor, "rows relations"],
    ) -> Float[Tensor, "rows nodes"]:
        config = self._config
        result = sppr(
            graph,
            p,
            weight,
            restart=config.restart,
            tol=config.tolerance,
            max_steps=config.max_steps,
        )
        unsettled = int((~(result.residual < config.tolerance)).sum())
        if unsettled:
            logger.warning(
                "the walk of %d questions had not settled after retriever.max_steps %d",
                unsettled,
                config.max_steps,
            )
        return result.scores


def _evidence(
    graph: GraphTensors,
    selection: Selection,
    scores: Float[Tensor, "rows nodes"],
    weight: Float[Tensor, "rows relations"],
    questions: int,
) -> list[Evidence]:
    """The subgraph of each question, its edges best first."""
    question, node, reason, edge_question, edge = selection
    value = edge_scores(graph, scores, weight, edge_question, edge)
    small = induced(graph, selection, questions)
    rank = segment_rank(value, small.edge_ptr) + small.edge_ptr[small.edge_batch]
    order = torch.empty_like(rank)
    order[rank] = torch.arange(len(rank), device=rank.device)
    score = scores[question if len(scores) > 1 else torch.zeros_like(question), node]
    if graph.num_graphs > 1:  # ids within the question's own graph
        node = node - graph.node_ptr[question]
        edge = edge - graph.edge_ptr[edge_question]
    nodes, edges = small.node_ptr.diff().tolist(), small.edge_ptr.diff().tolist()
    parts = zip(
        _reorder(small, order).unbatch(),
        node.split(nodes),
        edge[order].split(edges),
        score.split(nodes),
        value[order].split(edges),
        reason.split(nodes),
        strict=True,
    )
    return [
        Evidence(graph=g, node_ids=n, edge_ids=e, node_score=ns, edge_score=es, reason=r)
        for g, n, e, ns, es, r in parts
    ]


def _reorder(graph: GraphTensors, order: Int[Tensor, " edges"]) -> GraphTensors:
    """The same graph with its edges in another order that keeps each graph's edges together."""
    return replace(
        graph,
        edge_index=graph.edge_index[:, order],
        edge_type=graph.edge_type[order],
        edge_passage=graph.edge_passage[order],
    )
