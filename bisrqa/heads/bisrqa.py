"""BiS-RQA's explicit filter: SPPR scores, and the subgraph of the best nodes."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Evidence, topic_mask
from bisrqa.retrieval import sppr as walk
from bisrqa.retrieval.segments import segment_rank
from bisrqa.retrieval.subgraph import Reason, induced, select

logger = logging.getLogger(__name__)


class BiSRQAHead:
    """SPPR and top-K selection over a batch of graphs."""

    def __init__(self, config: RetrieverConfig):
        self._config = config

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> list[Evidence]:
        config = self._config
        topics = topic_mask(questions, graph)
        node_similarity = (graph.x * question_x[graph.node_batch]).sum(-1)[None]
        relation_similarity = (graph.relation_x * question_x[graph.relation_batch]).sum(-1)[None]
        weight = walk.relation_weights(relation_similarity, config)
        p = walk.personalization(graph, node_similarity, topics[None], config)
        result = walk.sppr(
            graph,
            p,
            weight,
            restart=config.restart,
            tolerance=config.tolerance,
            max_steps=config.max_steps,
        )
        unsettled = int((result.residual >= config.tolerance).sum())
        if unsettled:
            logger.warning(
                "the walk of %d questions had not settled after retriever.max_steps %d",
                unsettled,
                config.max_steps,
            )
        scores = result.scores
        value = walk.edge_scores(graph, scores, weight)[0]
        selection = select(graph, scores[0], topics, config.top_k)
        small, node_ids, edge_ids = induced(
            graph, selection.reason != Reason.DROPPED, selection.keep_edges
        )
        node_score, reason, edge_score = (
            scores[0, node_ids],
            selection.reason[node_ids],
            value[edge_ids],
        )
        rank = segment_rank(edge_score, small.edge_ptr) + small.edge_ptr[small.edge_batch]
        order = torch.empty_like(rank)
        order[rank] = torch.arange(len(rank), device=rank.device)
        node_ids = node_ids - graph.node_ptr[graph.node_batch[node_ids]]
        edge_ids = edge_ids - graph.edge_ptr[graph.edge_batch[edge_ids]]
        nodes, edges = small.node_ptr.diff().tolist(), small.edge_ptr.diff().tolist()
        parts = zip(
            _reorder(small, order).unbatch(),
            node_ids.split(nodes),
            edge_ids[order].split(edges),
            node_score.split(nodes),
            edge_score[order].split(edges),
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
