"""Nodes by the cosine of their name and the question; the graph is not looked at."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, lend_to_mediators
from bisrqa.retrieval.nearest import closeness


class DenseHead(ScoringHead):
    """The nearest names."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        return Scores(lend_to_mediators(graph, closeness(question_x, graph))[None])
