"""Scores by shared words: BM25, of a few texts at a time."""

import logging
import re
from collections.abc import Sequence
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors, NodeKind

_WORD = re.compile(r"[^\W_]+")


class BM25:
    """BM25 of a question's own few texts.

    Raises:
        ValueError: ``bm25s`` is not installed.
    """

    def __init__(self) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise ValueError("BM25 needs bm25s: pip install 'bisrqa[bm25]'") from error
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._bm25s = bm25s

    def __call__(self, texts: list[list[str]], asked: list[str]) -> Float[Tensor, " texts"]:
        """Scores of texts, as words; 0 without a shared word."""
        known = set().union(*texts)
        asked = [word for word in asked if word in known]
        if not asked:
            return torch.zeros(len(texts))
        index = self._bm25s.BM25()
        index.index(texts, show_progress=False)
        return torch.from_numpy(index.get_scores(asked)).float()

    def of_passages(self, graph: GraphTensors, asked: Sequence[str]) -> Float[Tensor, " passages"]:
        """Scores of the passages of a batch, each question's a collection of its own."""
        node = (graph.node_kind == NodeKind.PASSAGE).nonzero().squeeze(1)
        counts = torch.bincount(graph.node_batch[node], minlength=graph.num_graphs).tolist()
        texts = iter([words(graph.node_text[n]) for n in node.tolist()])
        parts = [
            self(list(islice(texts, count)), words(text))
            for count, text in zip(counts, asked, strict=True)
        ]
        return torch.cat(parts)


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case."""
    return _WORD.findall(text.lower())
