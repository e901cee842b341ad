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
from bisrqa.data.records import Question
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
        return self.by_word(texts, asked).sum(1)

    def by_word(self, texts: list[list[str]], asked: list[str]) -> Float[Tensor, "texts words"]:
        """What each word of a question adds to the scores."""
        known = set().union(*texts)
        asked = [word for word in asked if word in known]
        if not asked:
            return torch.zeros(len(texts), 0)
        index = self._bm25s.BM25()
        index.index(texts, show_progress=False)
        return _columns(index, asked)

    def of_passages(
        self, graph: GraphTensors, questions: Sequence[Question]
    ) -> Float[Tensor, "passages words"]:
        """Scores of the passages of a batch for each word of their question, padded by zeros.

        Where a question does not bring them (:attr:`Question.lexical`, over the collection that its
        passages are taken from), its passages are the collection.
        """
        node = (graph.node_kind == NodeKind.PASSAGE).nonzero().squeeze(1)
        counts = torch.bincount(graph.node_batch[node], minlength=graph.num_graphs).tolist()
        texts = iter([graph.node_text[n] for n in node.tolist()])
        parts = []
        for count, question in zip(counts, questions, strict=True):
            own = list(islice(texts, count))
            if question.lexical is not None:
                parts.append(torch.tensor(question.lexical).reshape(count, -1))
            else:
                parts.append(self.by_word([words(text) for text in own], words(question.question)))
        most = max((part.shape[1] for part in parts), default=0)
        pad = torch.nn.functional.pad
        return torch.cat([pad(part, (0, most - part.shape[1])) for part in parts])


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

    def scores(self, asked: str) -> Float[Tensor, " chunks"]:
        """Of every chunk; 0 without a shared word."""
        known = self._known(asked)
        if not known:
            return torch.zeros(self._count)
        return torch.from_numpy(self._index.get_scores(known)).float()

    def by_word(self, asked: str, chunks: Int[Tensor, " some"]) -> Float[Tensor, "some words"]:
        """Of some chunks, what each word of a question adds to the scores."""
        known = self._known(asked)
        return _columns(self._index, known)[chunks] if known else torch.zeros(len(chunks), 0)

    def _known(self, asked: str) -> list[str]:
        return [w for w in words(asked) if w in self._index.vocab_dict] if self._count else []

    def best(self, asked: Sequence[str], k: int) -> Int[Tensor, "questions found"]:
        """The ``k`` best chunks of each question, best first; -1 where fewer share a word."""
        found = torch.full((len(asked), min(k, self._count)), -1)
        for row, text in enumerate(asked if self._count else ()):
            value, ids = top_k(self.scores(text)[None], k)
            found[row] = torch.where(value > 0, ids, -1)[0]
        return found


def _columns(index: Any, asked: list[str]) -> Float[Tensor, "texts words"]:
    columns = [torch.from_numpy(index.get_scores([word])).float() for word in asked]
    return torch.stack(columns, 1)


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
