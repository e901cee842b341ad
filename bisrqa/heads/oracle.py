"""Evidence that shows what retrieval could be worth: the gold paths, and triples at random."""

import random
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, from_edges, gold_mask
from bisrqa.retrieval.paths import distances, on_shortest_paths


class GoldHead(ScoringHead):
    """The answers, and the shortest paths from the topics to them. It reads the golds."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        golds = gold_mask(questions, graph)
        node, edge = on_shortest_paths(graph, distances(graph, topics[0]), golds)
        value = torch.maximum(golds.to(question_x), 0.5 * node.to(question_x))
        return Scores(value[None], edge=edge.to(question_x))


class RandomHead(ScoringHead):
    """Triples at random, the same for a question's id at every call."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        values: list[float] = []
        for question, edges in zip(questions, graph.edge_ptr.diff().tolist(), strict=True):
            rng = random.Random(question.id)
            values += [1 - rng.random() for _ in range(edges)]
        return from_edges(graph, torch.tensor(values).to(question_x))
