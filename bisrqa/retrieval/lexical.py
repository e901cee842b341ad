"""Scores by shared words: BM25, of a few texts at a time or of a whole corpus."""

import logging
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa import chinese
from bisrqa.files import write_folder
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.segments import top_k

_WORD = re.compile(r"[^\W_]+")
_SCRIPT = re.compile(f"([{chinese.HAN}]+)|[^{chinese.HAN}]+")


class BM25:
    """BM25 of a question's own few texts.

    Raises:
        ValueError: ``bm25s`` is not installed.
    """

    def __init__(self) -> None:
        self._bm25s = _bm25s()

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


class WordIndex:
    """BM25 over all chunks of a corpus, kept in a folder."""

    def __init__(self, index: Any, count: int):
        self._index, self._count = index, count

    @classmethod
    def open(cls, folder: Path, texts: Sequence[str]) -> "WordIndex":
        """Read the folder, or make it.

        Raises:
            ValueError: ``bm25s`` is not installed, or the folder is damaged.
        """
        bm25s = _bm25s()
        if not texts:
            return cls(None, 0)
        if not folder.exists():
            index: Any = bm25s.BM25()
            index.index([words(text) or [""] for text in texts], show_progress=False)
            with write_folder(folder) as partial:
                index.save(partial, show_progress=False)
        try:
            index = bm25s.BM25.load(folder, show_progress=False)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"{folder}: damaged index ({error}); delete this folder to build it anew"
            ) from error
        return cls(index, len(texts))

    def best(self, asked: Sequence[str], k: int) -> Int[Tensor, "questions found"]:
        """The ``k`` best chunks of each question, best first; -1 where fewer share a word."""
        found = torch.full((len(asked), min(k, self._count)), -1)
        for row, text in enumerate(asked if self._count else ()):
            known = [word for word in words(text) if word in self._index.vocab_dict]
            if known:
                score = torch.from_numpy(self._index.get_scores(known))[None]
                value, ids = top_k(score, k)
                found[row] = torch.where(value > 0, ids, -1)[0]
        return found


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise ValueError("BM25 needs bm25s: pip install 'bisrqa[bm25]'") from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case; of Chinese what jieba takes for words."""
    found = []
    for run in _WORD.findall(text.lower()):
        for part in _SCRIPT.finditer(run):
            found += chinese.words(part.group()) if part[1] else [part.group()]
    return found
