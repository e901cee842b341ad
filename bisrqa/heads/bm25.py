"""BM25 over triples put into words."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Scores, ScoringHead, from_edges
from bisrqa.retrieval.lexical import BM25, words
from bisrqa.retrieval.passages import lend_to_entities


class BM25Head(ScoringHead):
    """Each question's graph is a collection of its own: its texts, or its triples put into words.

    Raises:
        ValueError: ``bm25s`` is not installed.
    """

    def __init__(self, config: RetrieverConfig):
        super().__init__(config)
        self._bm25 = BM25()

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        passages = graph.node_kind == NodeKind.PASSAGE
        if passages.any():
            node = question_x.new_zeros(graph.num_nodes)
            node[passages] = self._bm25.of_passages(graph, questions).sum(1)
            return Scores(lend_to_entities(graph, node)[None])
        mediator = (graph.node_kind == NodeKind.MEDIATOR).tolist()
        names = [
            [] if joint else words(name)
            for name, joint in zip(graph.node_text, mediator, strict=True)
        ]
        relations = [words(text) for text in graph.relation_text]
        head, tail = graph.edge_index.tolist()
        texts = [
            names[h] + relations[r] + names[t]
            for h, r, t in zip(head, graph.edge_type.tolist(), tail, strict=True)
        ]
        parts = [
            self._bm25(texts[start:end], words(question.question))
            for question, (start, end) in zip(
                questions, pairwise(graph.edge_ptr.tolist()), strict=True
            )
        ]
        edge = torch.cat(parts) if parts else torch.zeros(0)
        return from_edges(graph, edge.to(question_x))
