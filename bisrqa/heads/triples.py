"""Triples by the cosine of the question and the sum of the embeddings of their three parts."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, nearest_triples


class TriplesHead(ScoringHead):
    """The nearest triples."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        return nearest_triples(graph, question_x)
