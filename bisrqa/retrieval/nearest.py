"""Nearest nodes by embedding: exact in torch, or approximate with ``faiss`` (an extra)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.files import write_folder
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.segments import top_k

CHUNK_ROWS = 65_536
HNSW = "HNSW32_SQfp16"


def similarity(
    question_x: Float[Tensor, "questions dim"], x: Float[Tensor, "nodes dim"]
) -> Float[Tensor, "questions nodes"]:
    """Cosine of every question and node.

    Args:
        question_x: Unit norm.
        x: Unit norm, in any precision; may be memory-mapped. Read once, a part at a time.
    """
    out = question_x.new_empty(len(question_x), len(x))
    for start in range(0, len(x), CHUNK_ROWS):
        part = x[start : start + CHUNK_ROWS].to(question_x)
        torch.mm(question_x, part.T, out=out[:, start : start + CHUNK_ROWS])
    return out


def nearest(
    question_x: Float[Tensor, "questions dim"], x: Float[Tensor, "nodes dim"], k: int
) -> tuple[Float[Tensor, "questions found"], Int[Tensor, "questions found"]]:
    """Cosines and ids of the ``k`` nearest nodes (all, where there are fewer), best first.

    Equal cosines are settled by id. Memory is for one part of the nodes at a time.
    """
    best = question_x.new_empty(len(question_x), 0)
    ids = torch.empty(len(question_x), 0, dtype=torch.long, device=question_x.device)
    for start in range(0, len(x), CHUNK_ROWS):
        found = similarity(question_x, x[start : start + CHUNK_ROWS])
        found, here = top_k(found, k)
        best, ids = torch.cat([best, found], 1), torch.cat([ids, here + start], 1)
        best, order = top_k(best, k)
        ids = ids.gather(1, order)
    return best, ids


class FaissIndex:
    """An HNSW graph over the nodes, built once and kept in a folder.

    Raises:
        ValueError: ``faiss`` is not installed.
    """

    def __init__(self, x: Float[Tensor, "nodes dim"], folder: Path):
        try:
            import faiss
        except ImportError as error:
            raise ValueError(
                "an index needs faiss, which is not installed: pip install 'bisrqa[faiss]'"
            ) from error
        file = folder / "index.faiss"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not file.exists():
                self._build(faiss, x, file)
        try:
            self._index: Any = faiss.read_index(str(file))
        except RuntimeError as error:
            raise ValueError(
                f"{file}: damaged index ({error}); delete its folder to build it anew"
            ) from error

    @staticmethod
    def _build(faiss: Any, x: Tensor, file: Path) -> None:
        index: Any = faiss.index_factory(x.shape[1], HNSW, faiss.METRIC_INNER_PRODUCT)
        for start in range(0, len(x), CHUNK_ROWS):
            part = x[start : start + CHUNK_ROWS].float().cpu().numpy()
            if not start:
                index.train(part)
            index.add(part)
        with write_folder(file.parent) as partial:
            faiss.write_index(index, str(partial / file.name))

    def __call__(
        self, question_x: Float[Tensor, "questions dim"], k: int
    ) -> tuple[Float[Tensor, "questions found"], Int[Tensor, "questions found"]]:
        """As :func:`nearest`; a few of the nearest may be missed."""
        k = min(k, self._index.ntotal)
        self._index.hnsw.efSearch = max(2 * k, 64)
        best, ids = self._index.search(question_x.float().cpu().numpy(), k)
        if (ids < 0).any():
            row = int(np.argmax((ids < 0).any(1)))
            raise ValueError(f"faiss found fewer than {k} nodes for question {row}")
        device = question_x.device
        return torch.from_numpy(best).to(question_x), torch.from_numpy(ids).to(device)


def closeness(
    question_x: Float[Tensor, "questions dim"], graph: GraphTensors
) -> Float[Tensor, " nodes"]:
    """``1 + cosine`` of each named node of a batch and its question; 0 for mediators."""
    cosine = (graph.x * question_x[graph.node_batch]).sum(-1)
    return (1 + cosine).clamp_min(1e-6) * (graph.node_kind != NodeKind.MEDIATOR)
