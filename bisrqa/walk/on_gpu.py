"""The ``triton`` back end: many questions side by side on a CUDA device.

The mathematics is that of ``native.cpp`` (struct Tile): y = z / s in place of the mass z,
self-loops in the divisor, mass that is stuck brought back at the end, one number a sweep to balance
the mass. There a node sees every new value before its own. Here the rows are split into a few
groups that are swept one after another, and a row sees the new values of the groups before its own.
The split puts neighbours into different groups, which makes up for nearly all of the difference.

Results are alike bit for bit whatever else is in the batch: a row is summed in the order of its
arcs, a long one (a *hub*) in chunks, without atomics; and sums over rows are taken in whole
numbers, where the order in which the compiler adds them changes nothing.

With ``TRITON_INTERPRET=1`` in the environment before the import this runs on a CPU, slowly.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.graph.tensors import batch_of
from bisrqa.walk import schedule
from bisrqa.walk.graph import WalkGraph
from bisrqa.walk.schedule import Schedule

CHUNKS = 16
"""Chunks of one program."""
TILE = 1024
"""Blocks whose sums are added at once."""
UNROLL = 8
"""Arcs of a row whose loads are under way at once."""
TILE_BYTES = 64
"""Of the values of one node: 16 questions in single precision."""
SWEEPS = 8
"""Sweeps between two looks from the host."""
UNIT = tl.constexpr(2.0**50)
EXACT = {"enable_fp_fusion": False}
"""A compiler that may fuse as it likes could round differently for other numbers of questions."""


def solve(
    graph: WalkGraph,
    personalization: Float[Tensor, "questions nodes"],
    weight: Float[Tensor, "questions relations"],
    inverse: Float[Tensor, "questions relations"],
    *,
    restart: float,
    tol: float,
    max_steps: int,
) -> tuple[
    Float[Tensor, "questions nodes"],
    Int[Tensor, "questions graphs"],
    Float[Tensor, "questions graphs"],
]:
    """Block Gauss-Seidel; arguments and result as in :func:`bisrqa.walk.sppr`."""
    if graph.device.type != "cuda" and isinstance(_settle, triton.JITFunction):
        raise ValueError(f"backend 'triton' works on a CUDA device, the graph is on {graph.device}")
    p, questions = personalization, len(personalization)
    scores = torch.empty_like(p)
    residual = p.new_zeros(questions, graph.num_graphs)
    steps = torch.zeros_like(residual, dtype=torch.long)
    if graph.num_nodes:
        width = TILE_BYTES // p.element_size()
        with torch.cuda.device_of(p):  # where Triton launches; nothing on a CPU
            for first in range(0, questions, width):
                at = slice(first, first + width)
                scores[at], steps[at], residual[at] = _solve_tile(
                    graph, p[at], weight[at], inverse[at], restart, tol, max_steps
                )
    return scores, steps, residual


def _solve_tile(
    graph: WalkGraph,
    personalization: Tensor,
    weight: Tensor,
    inverse: Tensor,
    restart: float,
    tol: float,
    max_steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """A few questions; in here nodes, relations and graphs stand in rows, questions in columns."""
    questions, graphs = len(personalization), graph.num_graphs
    lanes = triton.next_power_of_2(questions)
    plan = schedule.of(graph)
    w = _scaled_weights(graph, weight, inverse, lanes)  # [relations, 2, lanes]
    p = w.new_zeros(graph.num_nodes, lanes)
    p[:, :questions] = personalization.T
    active = torch.ones(graphs, lanes, dtype=torch.int32, device=p.device)

    # What leaves each node: the same sums, over arcs read backwards, of nodes that all hold 1.
    y, flow = torch.ones_like(p), torch.empty_like(p)
    away = w.flip(1) if graph.both_ways else w
    for group in range(schedule.GROUPS):
        _sum_rows(graph.outward, schedule.of(graph.outward), group, y, away, active, flow)
    looped, loops = plan.loop_node, flow[:0]
    if len(looped):
        loops = w.flatten(0, 1)[graph.loop_rel.long()]
        loops = torch.segment_reduce(loops, "sum", offsets=plan.loop_ptr, initial=0)
    flow[looped] += loops
    s = torch.where(flow > 0, flow, -1.0)  # negative where nothing leads away
    y = p / s.abs() / restart
    start = torch.segment_reduce(p.double(), "sum", offsets=graph.node_ptr, initial=0)
    w *= 1 - restart
    divisor = s.abs() if len(looped) else s
    divisor[looped] -= loops * (1 - restart)

    active[:, questions:] = 0
    active[graph.node_ptr.diff() == 0] = 0
    # The loop's state lives on the device, in double, which a kernel's plain arguments are not.
    settings = torch.tensor([1 - restart, tol], dtype=torch.float64, device=p.device)
    scale, mass = torch.ones(2, graphs, lanes, dtype=torch.float64, device=p.device)
    residual, steps = torch.zeros_like(scale), torch.zeros_like(active, dtype=torch.long)
    blocks = plan.block_start[-1]
    change, total, stuck = scale.new_empty(3, lanes, blocks)
    for sweep in range(max_steps):
        if sweep % SWEEPS == 0 and not active.any():
            break
        for group in range(schedule.GROUPS):
            _sum_rows(graph, plan, group, y, w, active, flow)
            first, end = plan.block_start[group : group + 2]
            if end > first:
                _update[(end - first,)](
                    y, flow, p, s, divisor, active, scale, change, total, stuck,
                    plan.row, plan.block_graph, first, blocks,
                    LANES=lanes, ROWS=schedule.ROWS, **EXACT,
                )  # fmt: skip
        _settle[(graphs, lanes)](
            change, total, stuck, plan.block_ptr, settings, start, active, scale, mass, residual,
            steps, graphs, blocks, LANES=lanes, GROUPS=schedule.GROUPS, TILE=TILE, **EXACT,
        )  # fmt: skip
    z = y * s.abs() * (1 / mass).to(y)[graph.node_batch]
    return z.T[:questions], steps.T[:questions], residual.T[:questions].to(z)


def _sum_rows(
    graph: WalkGraph,
    plan: Schedule,
    group: int,
    y: Tensor,
    w: Tensor,
    active: Tensor,
    flow: Tensor,
) -> None:
    """Set ``flow`` of a group's rows to the sum of w y over the arcs into them."""
    lanes = y.shape[1]
    parts = y.new_empty(len(plan.chunk_at), lanes)
    first, end = plan.chunk_start[group : group + 2]
    if end > first:
        _add_chunks[(triton.cdiv(end - first, CHUNKS),)](
            y, w, graph.src, graph.rel, active, parts,
            plan.chunk_at, plan.chunk_size, plan.chunk_graph, first, end,
            LANES=lanes, CHUNKS=CHUNKS, UNROLL=UNROLL, **EXACT,
        )  # fmt: skip
    first, end = plan.block_start[group : group + 2]
    if end > first:
        _add_rows[(end - first,)](
            y, w, graph.src, graph.rel, graph.ptr, active, parts, flow,
            plan.row, plan.row_chunk, plan.block_graph, first,
            LANES=lanes, ROWS=schedule.ROWS, CHUNK=schedule.CHUNK, UNROLL=UNROLL, **EXACT,
        )  # fmt: skip


def _scaled_weights(graph: WalkGraph, weight: Tensor, inverse: Tensor, lanes: int) -> Tensor:
    """Weights along and against each relation; a question's largest in each graph near 2**60.

    A common factor cancels, and this one keeps tiny weights, and what is divided by them, among
    the normal numbers.
    """
    w = weight.new_zeros(graph.num_relations, 2, lanes)
    w[:, 0, : len(weight)], w[:, 1, : len(weight)] = weight.T, inverse.T
    owner = batch_of(graph.relation_ptr, graph.num_relations)
    most = w.new_zeros(graph.num_graphs, lanes)
    most.scatter_reduce_(0, owner[:, None].expand(-1, lanes), w.amax(1), "amax")
    shift = 61 - torch.frexp(most).exponent.long()

    def power_of_2(exponent: Tensor) -> Tensor:  # exact, which torch.exp2 need not be
        return ((exponent + 1023) << 52).view(torch.float64)[owner][:, None]

    half = shift // 2  # the whole may be more than one factor can hold
    return (w.double() * power_of_2(half) * power_of_2(shift - half)).to(w.dtype)


# ---- kernels: offsets are in 64 bits wherever a node or an arc is multiplied or counted ----
# Not type-checked: Triton compiles the source, which a checker's wrapper would hide.


@triton.jit
@no_type_check
def _add_arcs(
    y, w, src, rel, at, size, LANES: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr
):
    """Sum of w y over ``size`` arcs from ``at`` on, in their order, for each row and lane.

    It keeps what rounding takes (Kahan), which for a hub is more than the tolerance.
    """
    lane = tl.arange(0, LANES)[None, :]
    total = tl.zeros([ROWS, LANES], y.dtype.element_ty)
    lost = tl.zeros([ROWS, LANES], y.dtype.element_ty)
    for begin in range(0, tl.max(size, 0), UNROLL):
        for step in tl.static_range(UNROLL):
            inside = begin + step < size
            arc = at + begin + step
            kind = tl.load(rel + arc, mask=inside, other=0).to(tl.int64)[:, None]
            node = tl.load(src + arc, mask=inside, other=0).to(tl.int64)[:, None]
            here = inside[:, None]
            share = tl.load(w + kind * LANES + lane, mask=here, other=0)
            value = tl.load(y + node * LANES + lane, mask=here, other=0)
            part = tl.fma(share, value, -lost)
            grown = total + part
            lost = (grown - total) - part
            total = grown
    return total


@triton.jit(do_not_specialize=["first", "end"])
@no_type_check
def _add_chunks(
    y, w, src, rel, active, parts, chunk_at, chunk_size, chunk_graph, first, end,
    LANES: tl.constexpr, CHUNKS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)[None, :]
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + first + tl.arange(0, CHUNKS)
    here = chunk < end
    graph = tl.load(chunk_graph + chunk, mask=here, other=0).to(tl.int64)[:, None]
    needed = tl.max(tl.load(active + graph * LANES + lane), 1) > 0
    at = tl.load(chunk_at + chunk, mask=here, other=0)
    size = tl.load(chunk_size + chunk, mask=here & needed, other=0)
    total = _add_arcs(y, w, src, rel, at, size, LANES, CHUNKS, UNROLL)
    tl.store(parts + chunk[:, None] * LANES + lane, total, mask=here[:, None])


@triton.jit(do_not_specialize=["first"])
@no_type_check
def _add_rows(
    y, w, src, rel, ptr, active, parts, flow, row, row_chunk, block_graph, first,
    LANES: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)
    block = tl.program_id(0).to(tl.int64) + first
    graph = tl.load(block_graph + block).to(tl.int64)
    if tl.max(tl.load(active + graph * LANES + lane), 0) > 0:
        slot = block * ROWS + tl.arange(0, ROWS)
        node = tl.load(row + slot).to(tl.int64)
        here = node >= 0
        at = tl.load(ptr + node, mask=here, other=0)
        size = (tl.load(ptr + node + 1, mask=here, other=0) - at).to(tl.int64)
        hub = size > CHUNK
        alone = tl.where(hub, 0, size).to(tl.int32)
        total = _add_arcs(y, w, src, rel, at, alone, LANES, ROWS, UNROLL)
        pieces = tl.where(hub, (size + CHUNK - 1) // CHUNK, 0).to(tl.int32)
        chunk = tl.load(row_chunk + slot).to(tl.int64)
        lost = total * 0
        for begin in range(0, tl.max(pieces, 0), UNROLL):
            for step in tl.static_range(UNROLL):
                spot = (chunk + begin + step)[:, None] * LANES + lane[None, :]
                inside = (begin + step < pieces)[:, None]
                part = tl.load(parts + spot, mask=inside, other=0) - lost
                grown = total + part
                lost = (grown - total) - part
                total = grown
        tl.store(flow + node[:, None] * LANES + lane[None, :], total, mask=here[:, None])


@triton.jit(do_not_specialize=["first", "blocks"])
@no_type_check
def _update(
    y, flow, p, s, divisor, active, scale, change, total, stuck, row, block_graph, first, blocks,
    LANES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """New values for a block of rows from its ``flow``, and the block's sums over them."""
    lane = tl.arange(0, LANES)
    block = tl.program_id(0).to(tl.int64) + first
    graph = tl.load(block_graph + block).to(tl.int64)
    moving = tl.load(active + graph * LANES + lane) > 0
    if tl.max(moving.to(tl.int32), 0) > 0:
        node = tl.load(row + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        here = (node >= 0) & (lane >= 0)[None, :]
        at = node * LANES + lane[None, :]
        enters = tl.load(scale + graph * LANES + lane).to(y.dtype.element_ty)[None, :]
        flowing = tl.load(flow + at, mask=here, other=0)
        old = tl.load(y + at, mask=here, other=0)
        size = tl.load(s + at, mask=here, other=1)
        source = tl.load(p + at, mask=here, other=0)
        kept = tl.abs(tl.load(divisor + at, mask=here, other=1))
        now = (flowing + enters * source) / kept
        # A question that has settled stands still, as it would without the others.
        tl.store(y + at, now, mask=here & moving[None, :])
        z = now * tl.abs(size)
        spot = lane.to(tl.int64) * blocks + block
        tl.store(change + spot, _sum(tl.abs(now - old) * tl.abs(size)))
        tl.store(total + spot, _sum(z))
        tl.store(stuck + spot, _sum(tl.where(size < 0, z, 0.0)))


@triton.jit(do_not_specialize=["graphs", "blocks"])
@no_type_check
def _settle(
    change, total, stuck, block_ptr, settings, start, active, scale, mass, residual, steps,
    graphs, blocks,
    LANES: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """After a sweep: what enters a graph next, and whether its question has settled."""
    graph, lane = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = graph * LANES + lane
    if tl.load(active + at) > 0:
        moved = tl.zeros([TILE], tl.float64)
        every = tl.zeros([TILE], tl.float64)
        still = tl.zeros([TILE], tl.float64)
        for group in tl.static_range(GROUPS):
            part = graph + group * graphs
            end = tl.load(block_ptr + part + 1)
            for begin in range(tl.load(block_ptr + part), end, TILE):
                block = begin + tl.arange(0, TILE)
                spot, here = lane * blocks + block, block < end
                moved += tl.load(change + spot, mask=here, other=0)
                every += tl.load(total + spot, mask=here, other=0)
                still += tl.load(stuck + spot, mask=here, other=0)
        whole = _sum(every)
        # The sum of p is near 1, and what is near is not enough here.
        enters = (whole - tl.load(settings) * (whole - _sum(still))) / tl.load(start + at)
        error = tl.maximum(_sum(moved), tl.abs(enters - tl.load(scale + at))) / whole
        tl.store(scale + at, enters)
        tl.store(mass + at, whole)
        tl.store(residual + at, error)
        tl.store(steps + at, tl.load(steps + at) + 1)
        tl.store(active + at, tl.where(error < tl.load(settings + 1), 0, 1))


@triton.jit
@no_type_check
def _sum(x):
    """Sum over the first axis, of values that are not negative: in whole numbers, see above."""
    most = tl.max(x, 0)
    fit = UNIT / tl.where(most > 1e-23, most, 1.0)  # still finite in single precision
    return tl.sum((x * fit).to(tl.int64), 0).to(tl.float64) / fit.to(tl.float64)
