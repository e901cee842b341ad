"""Shortest paths from the topics to the nodes whose names are nearest to the question."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead
from bisrqa.retrieval.nearest import closeness
from bisrqa.retrieval.paths import carry_back, distances, on_shortest_paths
from bisrqa.retrieval.segments import segment_top_k

ON_THE_WAY = 0.999
"""A node on the way stands just behind the one that it leads to."""


class PathsHead(ScoringHead):
    """Candidates are the ``top_k`` nearest names; what lies between is as good as its best end.

    A candidate that no way leads to is kept without a path.
    """

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        near = closeness(question_x, graph)
        may = (near > 0) & ~topics[0]
        candidates = segment_top_k(near, graph.node_ptr, may, self.config.top_k)
        value = near * candidates
        distance = distances(graph, topics[0])
        value = torch.maximum(value, ON_THE_WAY * carry_back(graph, distance, value))
        _, between = on_shortest_paths(graph, distance, candidates)
        head, tail = graph.edge_index
        return Scores(value[None], edge=torch.minimum(value[head], value[tail]) * between)
