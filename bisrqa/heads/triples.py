"""Triples by the cosine of the question and the sum of the embeddings of their three parts."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, from_edges


class TriplesHead(ScoringHead):
    """The nearest triples; a mediator adds nothing to the sum."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        head, tail = graph.edge_index
        triple = graph.x[head] + graph.relation_x[graph.edge_type] + graph.x[tail]
        triple = torch.nn.functional.normalize(triple, dim=-1)
        cosine = (triple * question_x[graph.edge_batch]).sum(-1)
        return from_edges(graph, (1 + cosine).clamp_min(1e-6))
