"""Nearest nodes: exact against a sort, in parts, and by HNSW."""

import pytest
import torch

from bisrqa.retrieval import nearest as module
from bisrqa.retrieval.nearest import FaissIndex, nearest, similarity


def unit(rows: int, seed: int) -> torch.Tensor:
    x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=1)


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_in_parts_as_at_once(chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
    asked, x = unit(4, 0), unit(50, 1).half()
    cosine = asked @ x.float().T
    assert torch.allclose(similarity(asked, x), cosine, atol=1e-6)
    for k in (1, 9, 60):
        best, ids = nearest(asked, x, k)
        assert ids.tolist() == cosine.argsort(1, descending=True)[:, :k].tolist()
        assert torch.allclose(best, cosine.gather(1, ids), atol=1e-6)


def test_equal_cosines_go_to_the_smaller_id(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    x = unit(1, 0).expand(50, -1)
    assert nearest(x[:1], x, 9)[1].tolist() == [[*range(9)]]


def test_no_nodes():
    assert similarity(unit(2, 0), unit(0, 1)).shape == (2, 0)
    assert nearest(unit(2, 0), unit(0, 1), 3)[1].shape == (2, 0)


def test_hnsw_finds_nearly_all(tmp_path):
    pytest.importorskip("faiss")
    asked, x = unit(20, 2), unit(3000, 3)
    exact = nearest(asked, x, 10)[1].tolist()
    index = FaissIndex(x.half(), tmp_path / "faiss")
    stamp = (tmp_path / "faiss" / "index.faiss").stat().st_mtime_ns
    again = FaissIndex(x.half(), tmp_path / "faiss")
    assert (tmp_path / "faiss" / "index.faiss").stat().st_mtime_ns == stamp
    for way in (index, again):
        best, ids = way(asked, 10)
        assert torch.allclose(best, (asked[:, None] * x[ids]).sum(-1), atol=2e-3)
        shared = sum(len(set(a) & set(b)) for a, b in zip(exact, ids.tolist(), strict=True))
        assert shared / 200 > 0.95
    assert index(asked, 9999)[1].shape == (20, 3000)
