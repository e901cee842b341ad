"""BM25 over triples put into words."""

import re
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Scores, ScoringHead, from_edges

_WORD = re.compile(r"[^\W_]+")


class BM25Head(ScoringHead):
    """Each question's graph is a collection of its own; a triple without a shared word has 0.

    Raises:
        ValueError: ``bm25s`` is not installed.
    """

    def __init__(self, config: RetrieverConfig):
        super().__init__(config)
        try:
            import bm25s
        except ImportError as error:
            raise ValueError("head bm25 needs bm25s: pip install 'bisrqa[bm25]'") from error
        self._bm25s = bm25s

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
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
            self._one(texts[start:end], words(question.question))
            for question, (start, end) in zip(
                questions, pairwise(graph.edge_ptr.tolist()), strict=True
            )
        ]
        edge = torch.cat(parts) if parts else torch.zeros(0)
        return from_edges(graph, edge.to(question_x))

    def _one(self, texts: list[list[str]], asked: list[str]) -> Float[Tensor, " texts"]:
        known = set().union(*texts)
        asked = [word for word in asked if word in known]
        if not asked:
            return torch.zeros(len(texts))
        index = self._bm25s.BM25()
        index.index(texts, show_progress=False)
        return torch.from_numpy(index.get_scores(asked)).float()


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case."""
    return _WORD.findall(text.lower())
