"""``GraphTensors``: the graph that every part works on, alone or many in a batch."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bisrqa.files import write_folder

FORMAT = 1
TEXTS = ("node_text", "relation_text")


class NodeKind(IntEnum):
    """What a node stands for."""

    ENTITY = 0
    """A named thing or a literal."""
    EVENT = 1
    """An event read from a text."""
    PASSAGE = 2
    """A piece of text."""
    MEDIATOR = 3
    """A node without a name that joins the parts of an n-ary fact; structure, never an answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphTensors:
    """A directed multigraph with text on nodes and relations, or several of them side by side.

    In a batch node, edge and relation rows of graph ``g`` are ``ptr[g]:ptr[g + 1]`` and ids count
    through the whole batch, as in PyG; a single graph is a batch of one. Parallel edges,
    direction and self-loops are kept.
    """

    x: Float[Tensor, "nodes dim"]
    """Unit-norm text embedding of each node; zeros for mediators, which have no text."""
    node_text: tuple[str, ...]
    """Name of an entity, name of an event, text of a passage, id of a mediator."""
    node_kind: Int[Tensor, " nodes"]
    """:class:`NodeKind` as int8."""
    edge_index: Int[Tensor, "2 edges"]
    """Row 0 head, row 1 tail."""
    edge_type: Int[Tensor, " edges"]
    """Row of the relation table."""
    edge_passage: Int[Tensor, " edges"]
    """Node id of the passage that the edge was read from, -1 where none."""
    relation_x: Float[Tensor, "relations dim"]
    """Unit-norm text embedding of each relation."""
    relation_text: tuple[str, ...]
    """One row for each distinct relation."""
    node_ptr: Int[Tensor, " graphs_and_one"]
    """Where each graph's nodes start, and the end."""
    edge_ptr: Int[Tensor, " graphs_and_one"]
    """The same for edges, which are grouped by graph."""
    relation_ptr: Int[Tensor, " graphs_and_one"]
    """The same for relations."""

    @property
    def num_nodes(self) -> int:
        return len(self.node_text)

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def num_relations(self) -> int:
        return len(self.relation_text)

    @property
    def num_graphs(self) -> int:
        return len(self.node_ptr) - 1

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def node_batch(self) -> Int[Tensor, " nodes"]:
        """Graph of each node."""
        return batch_of(self.node_ptr, self.num_nodes)

    @property
    def edge_batch(self) -> Int[Tensor, " edges"]:
        """Graph of each edge."""
        return batch_of(self.edge_ptr, self.num_edges)

    @property
    def relation_batch(self) -> Int[Tensor, " relations"]:
        """Graph of each relation."""
        return batch_of(self.relation_ptr, self.num_relations)

    def check(self) -> "GraphTensors":
        """Return the graph itself if it is sound.

        Raises:
            ValueError: Shapes that do not fit together, ids out of range, edges that join two
            graphs, or values that are not finite; names the field and the first place.
        """
        if self.edge_index.ndim != 2 or len(self.edge_index) != 2:
            shape = list(self.edge_index.shape)
            raise ValueError(f"edge_index has shape {shape}, expected [2, edges]")
        nodes, edges, relations = self.num_nodes, self.num_edges, self.num_relations
        for name, length in (
            ("x", nodes), ("node_kind", nodes), ("edge_type", edges), ("edge_passage", edges),
            ("relation_x", relations)
        ):  # fmt: skip
            if len(getattr(self, name)) != length:
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, expected {length}")
        for name, low, high in (
            ("edge_index", 0, nodes), ("edge_type", 0, relations), ("edge_passage", -1, nodes),
            ("node_kind", 0, len(NodeKind))
        ):  # fmt: skip
            value = getattr(self, name)
            bad = (value < low) | (value >= high)
            if bad.any():
                place = tuple(bad.nonzero()[0].tolist())
                raise ValueError(
                    f"{name}{list(place)} is {value[place].item()}, expected {low} to {high - 1}"
                )
        for name in ("x", "relation_x"):
            bad = ~torch.isfinite(getattr(self, name)).all(-1)
            if bad.any():
                row = int(bad.nonzero()[0])
                text = (self.node_text if name == "x" else self.relation_text)[row]
                raise ValueError(f"{name}[{row}] holds values that are not finite (text {text!r})")
        for name, total in (("node_ptr", nodes), ("edge_ptr", edges), ("relation_ptr", relations)):
            ptr = getattr(self, name)
            if (
                len(ptr) != len(self.node_ptr)
                or len(ptr) < 2
                or ptr[0] != 0
                or ptr[-1] != total
                or (ptr.diff() < 0).any()
            ):
                raise ValueError(
                    f"{name} must rise from 0 to {total}, once a graph: got {ptr.tolist()[:8]}"
                )
        graphs, node_batch = self.edge_batch, self.node_batch
        passage = torch.where(self.edge_passage < 0, self.edge_index[0], self.edge_passage)
        crossing = (
            (node_batch[self.edge_index] != graphs).any(0)
            | (self.relation_batch[self.edge_type] != graphs)
            | (node_batch[passage] != graphs)
        )
        if crossing.any():
            raise ValueError(f"edge {int(crossing.nonzero()[0])} leaves its graph")
        return self

    def to(self, device: torch.device | str) -> "GraphTensors":
        """The same graph with its tensors on ``device``."""
        moved = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(
            self, **{k: v.to(device) for k, v in moved.items() if isinstance(v, Tensor)}
        )

    @classmethod
    def collate(cls, graphs: Sequence["GraphTensors"]) -> "GraphTensors":
        """Put graphs side by side into one block-diagonal batch."""
        if not graphs:
            raise ValueError("collate needs at least one graph")
        node_start = np.cumsum([0] + [g.num_nodes for g in graphs])
        relation_start = np.cumsum([0] + [g.num_relations for g in graphs])
        edge_start = np.cumsum([0] + [g.num_edges for g in graphs])

        def joined(name: str, offset: np.ndarray) -> Tensor:
            tail = [getattr(g, name)[1:] + int(o) for g, o in zip(graphs, offset, strict=False)]
            return torch.cat([torch.zeros_like(graphs[0].node_ptr[:1]), *tail])

        passages = [
            torch.where(g.edge_passage < 0, g.edge_passage, g.edge_passage + int(o))
            for g, o in zip(graphs, node_start, strict=False)
        ]
        return cls(
            x=torch.cat([g.x for g in graphs]),
            node_text=tuple(text for g in graphs for text in g.node_text),
            node_kind=torch.cat([g.node_kind for g in graphs]),
            edge_index=torch.cat(
                [g.edge_index + int(o) for g, o in zip(graphs, node_start, strict=False)], 1
            ),
            edge_type=torch.cat(
                [g.edge_type + int(o) for g, o in zip(graphs, relation_start, strict=False)]
            ),
            edge_passage=torch.cat(passages),
            relation_x=torch.cat([g.relation_x for g in graphs]),
            relation_text=tuple(text for g in graphs for text in g.relation_text),
            node_ptr=joined("node_ptr", node_start),
            edge_ptr=joined("edge_ptr", edge_start),
            relation_ptr=joined("relation_ptr", relation_start),
        )

    def unbatch(self) -> list["GraphTensors"]:
        """The graphs of a batch, each on its own; undoes :meth:`collate`."""
        ptr = zip(
            *(p.tolist() for p in (self.node_ptr, self.edge_ptr, self.relation_ptr)), strict=True
        )
        return [self._slice(start, end) for start, end in pairwise(ptr)]

    def _slice(self, start: tuple[int, int, int], end: tuple[int, int, int]) -> "GraphTensors":
        nodes, edges, relations = (slice(a, b) for a, b in zip(start, end, strict=True))
        passage = self.edge_passage[edges]
        return GraphTensors(
            x=self.x[nodes],
            node_text=self.node_text[nodes],
            node_kind=self.node_kind[nodes],
            edge_index=self.edge_index[:, edges] - start[0],
            edge_type=self.edge_type[edges] - start[2],
            edge_passage=torch.where(passage < 0, passage, passage - start[0]),
            relation_x=self.relation_x[relations],
            relation_text=self.relation_text[relations],
            **{
                name: torch.tensor([0, b - a], device=self.device)
                for name, a, b in zip(
                    ("node_ptr", "edge_ptr", "relation_ptr"), start, end, strict=True
                )
            },
        )

    def save(self, folder: str | Path) -> None:
        """Write a folder: ``tensors.safetensors``, the texts as parquet, ``graph.json``."""
        with write_folder(Path(folder)) as partial:
            tensors = {
                k: v.cpu().contiguous() for k, v in vars(self).items() if isinstance(v, Tensor)
            }
            save_file(tensors, partial / "tensors.safetensors")
            for name in TEXTS:
                column = pyarrow.table(
                    {"text": pyarrow.array(getattr(self, name), pyarrow.large_string())}
                )
                pyarrow.parquet.write_table(column, partial / f"{name}.parquet")
            header = {
                "format": FORMAT,
                "nodes": self.num_nodes,
                "edges": self.num_edges,
                "relations": self.num_relations,
            }
            (partial / "graph.json").write_text(json.dumps(header) + "\n", "utf8")

    @classmethod
    def load(cls, folder: str | Path) -> "GraphTensors":
        """Read what :meth:`save` wrote, and check it.

        Raises:
            ValueError: A missing, foreign or damaged file, named.
        """
        folder = Path(folder)
        try:
            header = json.loads((folder / "graph.json").read_text("utf8"))
            tensors = load_file(folder / "tensors.safetensors")
            texts = {name: _read_texts(folder / f"{name}.parquet") for name in TEXTS}
        except (OSError, ValueError, KeyError, SafetensorError, pyarrow.ArrowException) as error:
            raise ValueError(f"{folder}: not a whole saved graph: {error}") from error
        found = header.get("format") if isinstance(header, dict) else None
        if found != FORMAT:
            raise ValueError(f"{folder}/graph.json: format {found!r}, this version reads {FORMAT}")
        expected = {f.name for f in dataclasses.fields(cls)} - set(TEXTS)
        if set(tensors) != expected:
            raise ValueError(
                f"{folder}/tensors.safetensors: holds {sorted(tensors)}, not {sorted(expected)}"
            )
        fields: dict[str, Any] = {**tensors, **texts}
        return cls(**fields).check()


def batch_of(ptr: Int[Tensor, " graphs_and_one"], total: int) -> Int[Tensor, " rows"]:
    """Which graph each of ``total`` rows belongs to."""
    graphs = torch.arange(len(ptr) - 1, device=ptr.device)
    return torch.repeat_interleave(graphs, ptr.diff(), output_size=total)


def ragged_range(
    start: Int[Tensor, " rows"], stop: Int[Tensor, " rows"]
) -> tuple[Int[Tensor, " total"], Int[Tensor, " total"]]:
    """The numbers from start to stop of every row, one after another, and the row of each."""
    count = stop - start
    row = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    before = count.cumsum(0) - count
    return row, torch.arange(len(row), device=count.device) + (start - before)[row]


def _read_texts(file: Path) -> tuple[str, ...]:
    return tuple(pyarrow.parquet.read_table(file)["text"].to_pylist())
