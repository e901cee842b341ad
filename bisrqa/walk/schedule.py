"""Which program of the ``triton`` back end does which rows of a graph; made once a graph."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor

from bisrqa.graph.tensors import batch_of, ragged_range
from bisrqa.walk.graph import WalkGraph

GROUPS = 4
"""Groups of rows that are swept one after another."""
ROWS = 32
"""Rows of one program."""
CHUNK = 256
"""Most arcs that are summed in one go; a row with more is a hub."""
TURNS = 16
"""Parts in which nodes choose their group."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Which program does what: rows by group, then graph, then falling number of arcs.

    A *block* is ``ROWS`` rows of one group and graph, the last one padded.
    """

    row: Int[Tensor, " slots"]
    """Node in each place of each block, or -1."""
    row_chunk: Int[Tensor, " slots"]
    """First chunk of each hub."""
    block_graph: Int[Tensor, " blocks"]
    block_ptr: Int[Tensor, " groups_times_graphs_and_one"]
    """Where the blocks of each group and graph start."""
    block_start: list[int]
    """Where the blocks of each group start, and the end."""
    chunk_at: Int[Tensor, " chunks"]
    """First arc of each chunk."""
    chunk_size: Int[Tensor, " chunks"]
    chunk_graph: Int[Tensor, " chunks"]
    chunk_start: list[int]
    loop_node: Int[Tensor, " looped"]
    """Nodes with a self-loop, once each."""
    loop_ptr: Int[Tensor, " looped_and_one"]
    """Where their loops start."""


_made: WeakKeyDictionary[WalkGraph, Schedule] = WeakKeyDictionary()


def of(graph: WalkGraph) -> Schedule:
    """The schedule of a graph, kept as long as the graph is."""
    if graph not in _made:
        _made[graph] = _build_schedule(graph)
    return _made[graph]


def _build_schedule(graph: WalkGraph) -> Schedule:
    graphs, arcs = graph.num_graphs, graph.ptr.diff()
    batch, group = graph.node_batch, _groups(graph)
    part = group * graphs + batch
    order = torch.argsort(arcs, descending=True, stable=True)
    order = order[torch.argsort(part[order], stable=True)]

    rows = torch.bincount(part, minlength=GROUPS * graphs)
    block_ptr = _starts((rows + ROWS - 1) // ROWS)
    pad = block_ptr[:-1] * ROWS - _starts(rows)[:-1]
    slot = _count(order) + pad[part[order]]
    row = torch.full((int(block_ptr[-1]) * ROWS,), -1, dtype=torch.int32, device=graph.device)
    row[slot] = order.int()

    pieces = torch.where(arcs > CHUNK, (arcs + CHUNK - 1) // CHUNK, 0)[order]
    hub = torch.repeat_interleave(order, pieces)
    first = _starts(pieces)[:-1]
    row_chunk = torch.zeros_like(row)
    row_chunk[slot] = first.int()
    nth = _count(hub) - torch.repeat_interleave(first, pieces)
    loop_node, loops = torch.unique_consecutive(graph.loop_node, return_counts=True)
    return Schedule(
        row=row,
        row_chunk=row_chunk,
        block_graph=batch_of(block_ptr, len(row) // ROWS).remainder(graphs).int(),
        block_ptr=block_ptr,
        block_start=block_ptr[::graphs].tolist(),
        chunk_at=graph.ptr[hub] + nth * CHUNK,
        chunk_size=(arcs[hub] - nth * CHUNK).clamp_max(CHUNK).int(),
        chunk_graph=batch[hub].int(),
        chunk_start=_starts(torch.bincount(group[hub], minlength=GROUPS)).tolist(),
        loop_node=loop_node.long(),
        loop_ptr=_starts(loops),
    )


def _groups(graph: WalkGraph) -> Tensor:
    """A group for each node, such that its neighbours are in others.

    A part of the nodes at a time chooses, twice, the group that sends it least. What matters most
    are two nodes with few other neighbours, which would hand their mass to and fro.
    """
    node, src = _count(graph.ptr[1:]), graph.src.long()
    # Of the place in its own graph alone, so that a graph is split alike in every batch.
    mixed = ((node - graph.node_ptr[graph.node_batch]) * 2654435761 >> 16) & 0xFFFF
    # Whole numbers, so that sums come out alike in any order.
    share = 2**20 // torch.bincount(src, minlength=len(node)).clamp_min(1)
    group = torch.full_like(node, GROUPS)  # not chosen yet
    for turn in range(2 * TURNS):
        mine = (mixed % TURNS == turn % TURNS).nonzero().squeeze(1)
        place, arc = ragged_range(graph.ptr[mine], graph.ptr[mine + 1])
        from_ = src[arc]
        sent = share.new_zeros(len(mine) * (GROUPS + 1))
        sent.index_add_(0, place * (GROUPS + 1) + group[from_], share[from_])
        tie = (mixed[mine, None] // TURNS + torch.arange(GROUPS, device=node.device)) % GROUPS
        group[mine] = (sent.view(-1, GROUPS + 1)[:, :GROUPS] * GROUPS + tie).argmin(1)
    return group


def _count(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device)


def _starts(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
