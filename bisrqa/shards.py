"""Shards on disk: folders of records, each of which is read alone, exactly as it was written.

A shard holds ``rows.bin``, its records one after another, and ``shard.json``: where each begins, a
checksum of each, and what is said of the shard as a whole. Opening one reads ``shard.json``;
``rows.bin`` is memory-mapped, and a record costs its own bytes.

A record is a line of JSON and the bytes of its tensors. JSON holds dataclasses and named tuples by
the names in :data:`KINDS`, so that no other code than theirs is ever called.
"""

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisrqa.data.records import Chunk, Event, Question, Triple
from bisrqa.examples import Example
from bisrqa.facts import Fact
from bisrqa.files import write_folder
from bisrqa.graph.events import Decision
from bisrqa.graph.tensors import GraphTensors
from bisrqa.graph.texts import Merge
from bisrqa.heads.base import Evidence
from bisrqa.prompt import Line, Words

FORMAT = 1
ROWS, HEADER = "rows.bin", "shard.json"
ALIGNED = 16
"""Every tensor begins at a multiple of so many bytes."""
KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        Example, Question, Chunk, Event, Triple, Evidence, GraphTensors, Merge, Decision, Words,
        Line, Fact,
    )
}  # fmt: skip
"""What a record may hold besides tensors, texts, numbers, bytes, lists, tuples and mappings."""
PLAIN = (str, int, float, bool, type(None))
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8,
        torch.int16, torch.int32, torch.int64,
    )
}  # fmt: skip


def encode(value: Any) -> bytes:
    """A record's bytes; :func:`decode` gives an equal value of the same types.

    Raises:
        TypeError: It holds something of another kind; names it.
    """
    tensors: list[bytes] = []
    at = 0

    def plain(item: Any) -> Any:
        nonlocal at
        if type(item) in PLAIN:
            return item
        if isinstance(item, Tensor):
            name, content = str(item.dtype).removeprefix("torch."), item.detach().contiguous()
            if name not in DTYPES or item.device.type != "cpu":
                raise TypeError(f"a shard cannot hold a tensor of {item.dtype} on {item.device}")
            raw = content.numpy().tobytes()
            raw += bytes(-len(raw) % ALIGNED)
            start, at = at, at + len(raw)
            tensors.append(raw)
            return {"tensor": [name, list(item.shape), start]}
        if type(item) in (tuple, list):
            return {type(item).__name__: _each(item, plain)}
        if isinstance(item, bytes):
            return {"bytes": item.hex()}
        if isinstance(item, Mapping):
            return {"dict": [[plain(key), plain(content)] for key, content in item.items()]}
        name = type(item).__name__
        if KINDS.get(name) is not type(item):
            raise TypeError(f"a shard cannot hold a {type(item)}")
        if isinstance(item, tuple):
            return {name: _each(item, plain)}
        fields = dataclasses.fields(item)
        return {name: {field.name: plain(getattr(item, field.name)) for field in fields}}

    line = json.dumps(plain(value), separators=(",", ":")).encode()
    line += b" " * (-(len(line) + 1) % ALIGNED) + b"\n"
    return line + b"".join(tensors)


def decode(record: bytearray) -> Any:
    """What :func:`encode` was given; its tensors lie in ``record``."""
    first = record.index(b"\n") + 1

    def whole(item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        ((name, content),) = item.items()
        if name == "tensor":
            dtype, shape, start = content
            return _tensor(record, DTYPES[dtype], shape, first + start)
        if name in ("tuple", "list"):
            return (tuple if name == "tuple" else list)(_each(content, whole))
        if name == "bytes":
            return bytes.fromhex(content)
        if name == "dict":
            return {whole(key): whole(value) for key, value in content}
        if isinstance(content, list):
            return KINDS[name](*_each(content, whole))
        return KINDS[name](**{field: whole(value) for field, value in content.items()})

    return whole(json.loads(record[:first]))


def _each(items: Sequence[Any], convert: Callable[[Any], Any]) -> list[Any]:
    """Each item converted; long lists of texts or numbers need nothing of the kind."""
    kinds = set(map(type, items))
    return list(items) if kinds.issubset(PLAIN) else [convert(item) for item in items]


def _tensor(record: bytearray, dtype: torch.dtype, shape: list[int], at: int) -> Tensor:
    count = int(np.prod(shape, dtype=np.int64))
    if not count:  # torch.frombuffer wants something
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(record, dtype=dtype, count=count, offset=at).reshape(shape)


def write(folder: Path, values: Sequence[Any], **facts: Any) -> None:
    """Write a shard, whole or not at all.

    Args:
        folder: Replaced, if it is there.
        values: A record each.
        facts: Said of the shard; plain values, for :attr:`Shard.facts`.
    """
    records = [encode(value) for value in values]
    offsets = np.cumsum([0, *map(len, records)]).tolist()
    body = {
        "format": FORMAT,
        "offsets": offsets,
        "checksums": list(map(zlib.crc32, records)),
        "facts": facts,
    }
    with write_folder(folder) as partial:
        (partial / ROWS).write_bytes(b"".join(records))
        text = json.dumps(body)
        (partial / HEADER).write_text(f"{zlib.crc32(text.encode())}\n{text}\n", "utf8")


class Shard:
    """A shard that was written.

    Raises:
        ValueError: It is damaged, cut or of another version; names the file and says what to do.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._rows: np.ndarray | None = None
        try:
            checksum, _, text = (
                (folder / HEADER).read_text("utf8").removesuffix("\n").partition("\n")
            )
            if checksum != str(zlib.crc32(text.encode())):
                raise ValueError("it was changed")
            body = json.loads(text)
            size = (folder / ROWS).stat().st_size
        except (OSError, ValueError) as error:
            raise self._damaged(HEADER, error) from error
        if body["format"] != FORMAT:
            raise self._damaged(HEADER, f"format {body['format']}, this version reads {FORMAT}")
        self._offsets, self._checksums = body["offsets"], body["checksums"]
        self.facts: dict[str, Any] = body["facts"]
        if size != self._offsets[-1]:
            raise self._damaged(ROWS, f"{size} bytes, expected {self._offsets[-1]}")

    def __len__(self) -> int:
        return len(self._checksums)

    def __getitem__(self, row: int) -> Any:
        """Read one record."""
        start, stop = self._offsets[row], self._offsets[row + 1]
        if self._rows is None:
            self._rows = np.memmap(self.folder / ROWS, mode="r")
        record = bytearray(self._rows[start:stop])
        if zlib.crc32(record) != self._checksums[row]:
            raise self._damaged(ROWS, f"record {row}, bytes {start} to {stop}, was changed")
        return decode(record)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": None}  # each process maps the file itself

    def _damaged(self, name: str, why: object) -> ValueError:
        return ValueError(
            f"{self.folder / name}: damaged ({why}); delete {self.folder} and run the same command "
            "again, which makes it anew"
        )
