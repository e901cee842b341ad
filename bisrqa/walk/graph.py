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

    def __post_init__(self) -> None:
        """Refuse what a back end would read past the end of, or as another type."""
        narrow = torch.uint16, torch.int32
        for name, kinds in (
            ("ptr", (torch.int64,)), ("src", (torch.int32,)), ("rel", narrow),
            ("loop_node", (torch.int32,)), ("loop_rel", (torch.int32,)),
            ("node_ptr", (torch.int64,)), ("relation_ptr", (torch.int64,))
        ):  # fmt: skip
            value = getattr(self, name)
            if value.ndim != 1 or value.dtype not in kinds:
                raise ValueError(
                    f"{name} must be one row of {kinds[0]}, got {value.dtype} {list(value.shape)}"
                )
        for one, other in (("src", "rel"), ("loop_node", "loop_rel"), ("node_ptr", "relation_ptr")):
            lengths = len(getattr(self, one)), len(getattr(self, other))
            if lengths[0] != lengths[1]:
                raise ValueError(f"{one} has {lengths[0]} rows and {other} {lengths[1]}")
        if len(self.ptr) < 1 or len(self.node_ptr) < 2:
            raise ValueError("ptr needs a row, and node_ptr needs two")
        ends = {"ptr": self.num_arcs, "node_ptr": self.num_nodes}
        for name, end in ends.items():
            if int(getattr(self, name)[-1]) != end:
                raise ValueError(f"{name} must end at {end}, got {int(getattr(self, name)[-1])}")

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
        if num_nodes < 0:
            raise ValueError(f"num_nodes must not be negative, got {num_nodes}")
        _check_shapes(edge_index, edge_type)
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
                "loops": len(self.loop_node),
                "graphs": self.num_graphs,
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
            sizes = {
                "ptr": header["nodes"] + 1,
                **dict.fromkeys(("src", "rel"), header["arcs"]),
                **dict.fromkeys(("loop_node", "loop_rel"), header["loops"]),
                **dict.fromkeys(("node_ptr", "relation_ptr"), header["graphs"] + 1),
            }
            for name, size in sizes.items():
                if tensors[name].shape != (size,):
                    raise ValueError(f"{name}.npy is not the one of the graph in walk.json")
            graph = cls(**tensors, both_ways=bool(header["both_ways"]))
            if graph.num_relations != header["relations"]:
                raise ValueError("relation_ptr.npy is not the one of the graph in walk.json")
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise ValueError(f"{folder}: not a whole prepared graph: {error}") from error
        return graph

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
    _check_shapes(edge_index, edge_type)
    edge_ptr, node_ptr, relation_ptr = (
        ptr.long().contiguous() for ptr in (edge_ptr, node_ptr, relation_ptr)
    )
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
        ptr, src, rel = native.build(
            edge_index, edge_type, edge_ptr, node_ptr, relation_ptr, wide, both_ways
        )
    else:
        owner = batch_of(edge_ptr, len(edge_type))
        away = (batch_of(node_ptr, nodes)[edge_index] != owner).any(0)
        away |= batch_of(relation_ptr, relations)[edge_type] != owner
        if away.any():
            raise ValueError(f"edge {int(away.nonzero()[0])} leaves its graph")
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


def _check_shapes(edge_index: Tensor, edge_type: Tensor) -> None:
    shapes = list(edge_index.shape), list(edge_type.shape)
    if len(shapes[0]) != 2 or shapes[0][0] != 2 or shapes[1] != shapes[0][1:]:
        raise ValueError(
            f"edge_index and edge_type have shapes {shapes[0]} and {shapes[1]}, "
            "expected [2, edges] and [edges]"
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
