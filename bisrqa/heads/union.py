"""Several heads together: reciprocal ranks added up (Cormack et al. 2009)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, scored_edges
from bisrqa.retrieval.segments import segment_rank

DAMPING = 60
"""Its usual constant: how little the first places stand out."""


class UnionHead(ScoringHead):
    """Nodes and edges by ``sum over heads of 1 / (60 + place)``; a head's zeros add nothing."""

    def __init__(self, config: RetrieverConfig, heads: Sequence[ScoringHead]):
        super().__init__(config)
        self._heads = heads

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        node = question_x.new_zeros(graph.num_nodes)
        edge = question_x.new_zeros(graph.num_edges)
        every = torch.arange(graph.num_edges, device=edge.device)
        for head in self._heads:
            scores = head.score(questions, question_x, graph, topics)
            node += _reciprocal(scores.node[0], graph.node_ptr)
            value = scored_edges(graph, scores, graph.edge_batch, every)
            edge += _reciprocal(value, graph.edge_ptr)
        return Scores(node[None], edge=edge)


def _reciprocal(
    value: Float[Tensor, " rows"], ptr: Int[Tensor, " graphs_and_one"]
) -> Float[Tensor, " rows"]:
    return (value > 0) / (DAMPING + segment_rank(value, ptr)).to(value)
