"""``WalkGraph``: edges in the order in which the walk reads them."""

import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from bisrqa.files import write_folder
from bisrqa.graph.tensors import GraphTensors, batch_of
from bisrqa.walk import native

FORMAT = 1
MOST_NODES = 2**31 - 1
MOST_RELATIONS = 2**30
NARROW_RELATIONS = 2**15
"""Up to here both directions of every relation fit into 16 bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WalkGraph:
    """A graph prepared for walks: its *arcs*, the steps that can be taken, by destination.

    An edge walked both ways is two arcs, and arc relation ``2 r`` means along an edge of relation
    ``r``, ``2 r + 1`` against it. Repeated edges count once. A self-loop is one arc at its node
    and stands apart, since it only changes what its node keeps. With n nodes, m arcs and fewer
    than 32,768 relations this takes 8 n + 6 m bytes. A block-diagonal batch is one such graph.
    """

    ptr: Int[Tensor, " nodes_and_one"]
    """Where the arcs into each node start, in int64: there may be more than 2**31."""
    src: Int[Tensor, " arcs"]
    """Where each arc comes from, in int32; rising within a node."""
    rel: Integer[Tensor, " arcs"]
    """Arc relation, in uint16, or in int32 where there are more than 32,768 relations."""
    loop_node: Int[Tensor, " loops"]
    """Nodes with a self-loop, in int32, rising; once for each relation."""
    loop_rel: Int[Tensor, " loops"]
    """Arc relation of each self-loop, in int32."""
    node_ptr: Int[Tensor, " graphs_and_one"]
    """Where each graph's nodes start, and the end; ``[0, nodes]`` for one graph."""
    relation_ptr: Int[Tensor, " graphs_and_one"]
    """The same for relations."""
    both_ways: bool
    """Edges are walked along and against their direction."""

    @property
    def num_nodes(self) -> int:
        return len(self.ptr) - 1

    @property
    def num_arcs(self) -> int:
        return len(self.src)

    @cached_property
    def num_relations(self) -> int:
        return int(self.relation_ptr[-1])

    @property
    def num_graphs(self) -> int:
        return len(self.node_ptr) - 1

    @property
    def device(self) -> torch.device:
        return self.ptr.device

    @property
    def num_bytes(self) -> int:
        """Memory that the graph takes."""
        return sum(value.numel() * value.element_size() for value in self._tensors().values())

    @cached_property
    def node_batch(self) -> Int[Tensor, " nodes"]:
        """Graph of each node."""
        return batch_of(self.node_ptr, self.num_nodes)

    @cached_property
    def dst(self) -> Int[Tensor, " arcs"]:
        """Where each arc leads, in int64."""
        return batch_of(self.ptr, self.num_arcs)

    @classmethod
    def from_edges(
        cls,
        edge_index: Int[Tensor, "2 edges"],
        edge_type: Int[Tensor, " edges"],
        num_nodes: int,
        *,
        num_relations: int | None = None,
        both_ways: bool = True,
    ) -> "WalkGraph":
        """Prepare one graph, by counting sort: time and memory are linear in its size.

        Args:
            edge_index: Row 0 head, row 1 tail; any order, repetitions and self-loops allowed.
            edge_type: Relation of each edge.
            num_nodes: At most 2**31 - 1.
            num_relations: One more than the largest of ``edge_type`` if not given.
            both_ways: Walk edges against their direction, too.

        Raises:
            ValueError: Ids out of range, named with their edge, or too many nodes or relations.
        """
        if num_relations is None:
            num_relations = int(edge_type.max()) + 1 if len(edge_type) else 0
        edges, nodes, relations = (
            torch.tensor([0, size], device=edge_index.device)
            for size in (edge_index.shape[1], num_nodes, num_relations)
        )
        return _build(edge_index, edge_type, edges, nodes, relations, both_ways)

    @classmethod
    def of(cls, graph: GraphTensors, *, both_ways: bool = True) -> "WalkGraph":
        """Prepare a graph, or a block-diagonal batch of graphs."""
        ptrs = graph.edge_ptr, graph.node_ptr, graph.relation_ptr
        return _build(graph.edge_index, graph.edge_type, *ptrs, both_ways)

    @cached_property
    def outward(self) -> "WalkGraph":
        """The arcs by where they come from: ``src`` then says where they lead.

        Of a graph that is walked both ways this is the graph itself, with every arc read backwards
        (relation ``r ^ 1``).
        """
        if self.both_ways:
            return self
        nodes, arcs = self.num_nodes, self.src.long()
        ends = torch.cat([torch.stack([self.dst, arcs]), self.loop_node.long().expand(2, -1)], 1)
        kind = torch.cat([self.rel.long(), self.loop_rel.long()]) // 2
        return self.from_edges(ends, kind, nodes, num_relations=self.num_relations, both_ways=False)

    def to(self, device: torch.device | str) -> "WalkGraph":
        """The same graph with its tensors on ``device``."""
        return replace(self, **{k: v.to(device) for k, v in self._tensors().items()})

    def save(self, folder: str | Path) -> None:
        """Write a folder: one ``.npy`` file a tensor, and ``walk.json``."""
        with write_folder(Path(folder)) as partial:
            for name, value in self._tensors().items():
                np.save(partial / f"{name}.npy", value.cpu().numpy())
            header = {
                "format": FORMAT,
                "both_ways": self.both_ways,
                "nodes": self.num_nodes,
                "arcs": self.num_arcs,
                "relations": self.num_relations,
            }
            (partial / "walk.json").write_text(json.dumps(header) + "\n", "utf8")

    @classmethod
    def load(cls, folder: str | Path, *, mmap: bool = True) -> "WalkGraph":
        """Read what :meth:`save` wrote; with ``mmap`` only what a walk touches.

        Raises:
            ValueError: A missing, foreign or damaged file, named.
        """
        folder = Path(folder)
        try:
            header = json.loads((folder / "walk.json").read_text("utf8"))
            found = header.get("format") if isinstance(header, dict) else None
            if found != FORMAT:
                raise ValueError(f"walk.json has format {found!r}, this version reads {FORMAT}")
            tensors: dict[str, Any] = {
                # Copy on write: tensors have to be writable, and the file must stay as it is.
                name: torch.from_numpy(
                    np.load(
                        folder / f"{name}.npy", mmap_mode="c" if mmap else None, allow_pickle=False
                    )
                )
                for name in _tensor_names()
            }
            arcs = header["arcs"]
            sizes = {"ptr": header["nodes"] + 1, "src": arcs, "rel": arcs}
            for name, size in sizes.items():
                if tensors[name].shape != (size,):
                    raise ValueError(f"{name}.npy is not the one of the graph in walk.json")
            if int(tensors["ptr"][-1]) != arcs:
                raise ValueError(f"ptr.npy does not end at {arcs}, the number of arcs")
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise ValueError(f"{folder}: not a whole prepared graph: {error}") from error
        return cls(**tensors, both_ways=bool(header["both_ways"]))

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _tensor_names()}


def _tensor_names() -> list[str]:
    return [field.name for field in fields(WalkGraph) if field.name != "both_ways"]


def _build(
    edge_index: Tensor,
    edge_type: Tensor,
    edge_ptr: Tensor,
    node_ptr: Tensor,
    relation_ptr: Tensor,
    both_ways: bool,
) -> WalkGraph:
    nodes, relations = int(node_ptr[-1]), int(relation_ptr[-1])
    for name, size, most in (
        ("nodes", nodes, MOST_NODES), ("relations", relations, MOST_RELATIONS)
    ):  # fmt: skip
        if size > most:
            raise ValueError(f"a walk takes at most {most} {name}, got {size}")
    for name, value, size in (
        ("edge_index", edge_index, nodes),
        ("edge_type", edge_type, relations),
    ):
        if value.numel() and (value.min() < 0 or value.max() >= size):
            edge = int(((value < 0) | (value >= size)).nonzero()[0][-1])
            found = value[..., edge].tolist()
            raise ValueError(f"{name} of edge {edge} is {found}, expected 0 to {size - 1}")
    edge_index, edge_type = edge_index.long().contiguous(), edge_type.long().contiguous()
    wide = relations > NARROW_RELATIONS
    if native.available() and edge_index.device.type == "cpu":
        ptr, src, rel = native.build(edge_index, edge_type, edge_ptr, node_ptr, wide, both_ways)
    else:
        ptr, src, rel = _sorted_arcs(edge_index, edge_type, nodes, wide, both_ways)
    at = (edge_index[0] == edge_index[1]).nonzero().squeeze(1)
    loops = (
        torch.unique(torch.stack([edge_index[0, at], 2 * edge_type[at]]), dim=1).int().contiguous()
    )
    return WalkGraph(
        ptr=ptr,
        src=src,
        rel=rel,
        loop_node=loops[0],
        loop_rel=loops[1],
        node_ptr=node_ptr,
        relation_ptr=relation_ptr,
        both_ways=both_ways,
    )


def _sorted_arcs(
    edge_index: Tensor, edge_type: Tensor, nodes: int, wide: bool, both_ways: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`bisrqa.walk.native.build` does, with torch alone, on any device."""
    edges = torch.stack([edge_index[1], edge_index[0], 2 * edge_type])
    edges = edges[:, edge_index[0] != edge_index[1]]
    if both_ways:
        edges = torch.cat([edges, torch.stack([edges[1], edges[0], edges[2] + 1])], 1)
    for row in (2, 1, 0):  # the last sort is the first key
        edges = edges[:, torch.sort(edges[row], stable=True).indices]
    new = torch.ones_like(edges[0], dtype=torch.bool)
    new[1:] = (edges[:, 1:] != edges[:, :-1]).any(0)
    dst, src, rel = edges[:, new]
    ptr = torch.zeros(nodes + 1, dtype=torch.long, device=dst.device)
    ptr[1:] = torch.bincount(dst, minlength=nodes).cumsum(0)
    return ptr, src.int(), rel.to(torch.int32 if wide else torch.uint16)
