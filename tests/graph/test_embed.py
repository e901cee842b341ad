"""The embedding store, with an encoder that notes what it is asked for."""

import json
import logging
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bisrqa.config import EmbedderConfig
from bisrqa.graph import embed
from bisrqa.graph.embed import EmbeddingStore, SentenceEmbedder

DIM = 8


class Fake:
    """Vectors that depend on the text alone; ``before`` sees each batch and may raise."""

    def __init__(self, identity: str = "fake-1", before: Callable = lambda texts: None):
        self.identity = identity
        self.batches: list[list[str]] = []
        self._before = before

    @property
    def dim(self) -> int:
        return DIM

    @property
    def texts(self) -> list[str]:
        return [text for batch in self.batches for text in batch]

    def encode(self, texts, batch_size: int):
        assert len(texts) <= batch_size
        self._before(texts)
        self.batches.append(list(texts))
        return np.stack([vector(text) for text in texts])


def vector(text: str) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(text.encode("utf8", "surrogatepass")))
    values = rng.standard_normal(DIM).astype(np.float32)
    return values / np.linalg.norm(values)


def expected(texts) -> torch.Tensor:
    """What the store gives: the vectors in half precision and back."""
    return torch.from_numpy(np.stack([vector(text) for text in texts]).astype(np.float16)).float()


def shards(folder: Path, identity: str = "fake-1") -> list[Path]:
    return sorted((folder / identity).glob("shard-*"))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(embed, "SHARD_TEXTS", 4)


def test_rows_come_in_order_and_as_often_as_asked(tmp_path, small_shards):
    store = EmbeddingStore(Fake(), tmp_path, batch_size=3)
    texts = [f"text {i}" for i in range(11)] + ["", "Zoë", "中国", "\ud800"]
    assert store.fill(texts) == len(store) == 15
    assert len(shards(tmp_path)) == 4
    asked = ["text 3", "中国", "text 3", "", "text 10", "\ud800", "Zoë", "text 0"]
    assert torch.equal(store(asked), expected(asked))
    assert store(asked).dtype == torch.float32
    assert store([]).shape == (0, DIM)
    assert EmbeddingStore(Fake("other"), tmp_path)([]).shape == (0, DIM)  # nothing was ever filled
    with pytest.raises(KeyError):
        store(["never filled"])


def test_a_text_is_encoded_once_for_all_fills_and_processes(tmp_path):
    first = Fake()
    store = EmbeddingStore(first, tmp_path)
    assert store.fill(["a", "bb", "a", "bb"]) == 2
    assert store.fill(iter(["bb", "ccc"])) == 1
    assert store.fill(["a", "ccc"]) == 0
    assert sorted(first.texts) == ["a", "bb", "ccc"]
    second = Fake()  # as another process would find the folder
    store = EmbeddingStore(second, tmp_path)
    assert len(store) == 3
    assert store.fill(["a", "bb", "ccc", "d"]) == 1
    assert second.texts == ["d"]
    texts = ["d", "ccc", "bb", "a"]
    assert torch.equal(store(texts), expected(texts))


def test_two_processes_that_encode_the_same_texts(tmp_path):
    one, other = EmbeddingStore(Fake(), tmp_path), EmbeddingStore(Fake(), tmp_path)
    one.fill(["a", "b"])
    assert other.fill(["a", "b"]) == 2  # it cannot know
    assert torch.equal(one(["a", "b"]), other(["a", "b"]))
    other.fill(["c"])
    third = Fake()
    assert EmbeddingStore(third, tmp_path).fill(["a", "b", "c"]) == 0


def test_on_disk_in_half_precision_and_mapped(tmp_path):
    EmbeddingStore(Fake(), tmp_path).fill(["a", "b", "c"])
    (shard,) = shards(tmp_path)
    assert sorted(path.name for path in shard.iterdir()) == [
        "keys.npy",
        "shard.json",
        "vectors.npy",
    ]
    vectors = np.load(shard / "vectors.npy")
    assert (vectors.dtype, vectors.shape) == (np.float16, (3, DIM))
    store = EmbeddingStore(Fake(), tmp_path)
    assert all(isinstance(mapped, np.memmap) for mapped in store._vectors)
    # What is read comes from the file.
    np.save(shard / "vectors.npy", np.zeros_like(vectors))
    assert not EmbeddingStore(Fake(), tmp_path)(["b"]).any()


def test_encoders_do_not_share_vectors(tmp_path):
    EmbeddingStore(Fake("one"), tmp_path).fill(["a"])
    other = Fake("two")
    assert EmbeddingStore(other, tmp_path).fill(["a"]) == 1
    assert other.texts == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_longest_first_in_whole_batches(tmp_path):
    encoder = Fake()
    EmbeddingStore(encoder, tmp_path, batch_size=2).fill(["bb", "a", "dddd", "ccc", "eeeee"])
    assert encoder.batches == [["eeeee", "dddd"], ["ccc", "bb"], ["a"]]


def test_a_failure_keeps_whole_shards_and_the_next_fill_goes_on(tmp_path, small_shards):
    texts = [f"{'x' * i}{i}" for i in range(10)]

    def interrupt(batch):
        if len(batch[-1]) < 5:  # within the second shard of four
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(Fake(before=interrupt), tmp_path, batch_size=2).fill(texts)
    assert [json.loads((s / "shard.json").read_text())["texts"] for s in shards(tmp_path)] == [4]
    encoder = Fake()
    store = EmbeddingStore(encoder, tmp_path, batch_size=2)
    assert len(store) == 4
    assert store.fill(texts) == 6
    assert encoder.texts == texts[5::-1]
    assert torch.equal(store(texts), expected(texts))


def test_a_write_that_fails_leaves_no_shard(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    store = EmbeddingStore(Fake(), tmp_path)
    monkeypatch.setattr(embed.json, "dumps", fail)
    with pytest.raises(OSError, match="disk full"):
        store.fill(["a", "b"])
    monkeypatch.undo()
    assert list((tmp_path / "fake-1").iterdir()) == []
    assert len(store) == 0
    assert store.fill(["a", "b"]) == 2


def test_what_a_killed_fill_left_is_not_taken_for_a_shard(tmp_path):
    EmbeddingStore(Fake(), tmp_path).fill(["a"])
    (shard,) = shards(tmp_path)
    left = shard.with_name(f".{shard.name}.abcdefgh")
    shutil.copytree(shard, left)
    (left / "vectors.npy").write_bytes(b"half")
    store = EmbeddingStore(Fake(), tmp_path)
    assert len(store) == 1
    assert store.fill(["a", "b"]) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
    ],
)
def test_out_of_memory_halves_the_batch_and_goes_on(error, tmp_path, caplog):
    def fits_three(batch):
        if len(batch) > 3:
            raise error

    encoder = Fake(before=fits_three)
    store = EmbeddingStore(encoder, tmp_path, batch_size=8)
    texts = [f"{'x' * i}{i}" for i in range(9)]
    with caplog.at_level(logging.WARNING):
        assert store.fill(texts) == 9
    assert [len(batch) for batch in encoder.batches] == [2, 2, 2, 2, 1]
    assert [record.getMessage()[-2:] for record in caplog.records] == [" 4", " 2"]
    assert torch.equal(store(texts), expected(texts))


def test_out_of_memory_for_a_single_text_is_an_error(tmp_path):
    sizes = []

    def fits_none(batch):
        sizes.append(len(batch))
        assert len(sizes) < 9, "goes on for ever"
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        EmbeddingStore(Fake(before=fits_none), tmp_path, batch_size=5).fill("abcdefgh")
    assert sizes == [5, 2, 1]
    assert shards(tmp_path) == []


def test_other_errors_of_the_encoder_come_through(tmp_path):
    def fail(batch):
        raise RuntimeError("shapes do not match")

    store = EmbeddingStore(Fake(before=fail), tmp_path, batch_size=8)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        store.fill(["a", "b"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value, tmp_path, monkeypatch):
    encoder = Fake()
    monkeypatch.setattr(
        encoder,
        "encode",
        lambda texts, size: np.array([[0.0, value if "bad" in t else 1.0] for t in texts]),
    )
    store = EmbeddingStore(encoder, tmp_path, batch_size=2)
    with pytest.raises(ValueError, match="not finite for 'a bad one'"):
        store.fill(["a very long text", "long text", "some text", "a bad one", "x"])
    assert shards(tmp_path) == []


def test_a_row_too_few_is_refused(tmp_path, monkeypatch):
    encoder = Fake()
    monkeypatch.setattr(encoder, "encode", lambda texts, size: np.ones((1, DIM), np.float32))
    with pytest.raises(ValueError, match="1 rows for 2 texts"):
        EmbeddingStore(encoder, tmp_path).fill(["a", "b"])


@pytest.mark.parametrize("name", ["keys.npy", "vectors.npy", "shard.json"])
@pytest.mark.parametrize("left", [None, 0.0, 0.5, 0.99, "foreign"])
def test_a_damaged_shard_is_refused(name, left, tmp_path):
    EmbeddingStore(Fake(), tmp_path).fill([f"text {i}" for i in range(50)])
    (shard,) = shards(tmp_path)
    file = shard / name
    match left:
        case None:
            file.unlink()
        case "foreign" if name == "shard.json":
            file.write_text("[1]")
        case "foreign":
            np.save(file, np.load(file)[:-1])
        case _:
            content = file.read_bytes()
            file.write_bytes(content[: int(len(content) * left)])
    with pytest.raises(ValueError, match=rf"^{shard}: damaged .*delete this folder"):
        EmbeddingStore(Fake(), tmp_path)
    # Doing as told mends it.
    shutil.rmtree(shard)
    assert EmbeddingStore(Fake(), tmp_path).fill(["text 0"]) == 1


def test_a_shard_of_another_format_is_refused(tmp_path):
    EmbeddingStore(Fake(), tmp_path).fill(["a"])
    (shard,) = shards(tmp_path)
    header = json.loads((shard / "shard.json").read_text())
    (shard / "shard.json").write_text(json.dumps(header | {"format": 2}))
    with pytest.raises(ValueError, match="damaged or foreign"):
        EmbeddingStore(Fake(), tmp_path)


def test_the_identity_follows_weights_name_and_prompt(tmp_path):
    def identity(folder: Path, prompt: str = "") -> str:
        return SentenceEmbedder(EmbedderConfig(model=str(folder)), tmp_path, prompt).identity

    folder = tmp_path / "model"
    (folder / "pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "pooling" / "config.json").write_text("{}")
    (folder / "README.md").write_text("anything")
    found = [identity(folder), identity(folder, "query: ")]
    (folder / "README.md").write_text("else")
    assert identity(folder) == found[0]
    (folder / "pooling" / "config.json").write_text("{ }")
    found.append(identity(folder))
    (folder / "model.safetensors").write_bytes(b"Weights")
    found.append(identity(folder))
    (folder / "pooling" / "config.json").rename(folder / "pooling" / "other.json")
    found.append(identity(folder))
    assert len(set(found)) == len(found)
    assert all(name.startswith("model-") and len(name) == len("model-") + 16 for name in found)
