"""The C++ kernel, if it was built: loading it, and calling it with tensors.

``native.cpp`` is compiled when the package is installed. Where no compiler was there, or it failed,
:func:`available` says no and the other back ends do the work.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bisrqa.graph.tensors import ragged_range

if TYPE_CHECKING:  # the graph is built here
    from bisrqa.walk.graph import WalkGraph

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).with_name("_native.so")
ABI = 2
"""Raised, here and in native.cpp, whenever what the two hand each other changes."""
INSTRUCTION_SETS = ("plain", "avx2", "avx512")

_pointer, _int64, _int32, _double = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_double,
)


class _Layout(ctypes.Structure):
    _fields_ = (
        *((name, _int64) for name in "nodes graphs relations loops".split()),
        *(
            (name, _pointer)
            for name in "ptr src rel loop_node loop_rel node_ptr relation_ptr".split()
        ),
        ("wide_rel", _int32),
        ("both_ways", _int32),
    )


class _Problem(ctypes.Structure):
    _fields_ = (
        ("questions", _int64),
        *((name, _pointer) for name in "p weight inverse scores steps residual".split()),
        ("restart", _double),
        ("tol", _double),
        ("max_steps", _int64),
        *((name, _int32) for name in "float64 threads width".split()),
    )


class _Push(ctypes.Structure):
    _fields_ = (
        ("questions", _int64),
        *((name, _pointer) for name in "seed_ptr seed mass weight inverse".split()),
        ("restart", _double),
        ("threshold", _double),
        *((name, _pointer) for name in "node score reached arcs error".split()),
        ("threads", _int32),
    )


def available() -> bool:
    """Whether the kernel was built; if not, the log says so once."""
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        if library.walk_abi() != ABI:
            raise OSError(f"{LIBRARY} is of another version of this package")
        library.walk_build.restype = _int64
        library.walk_build.argtypes = (
            *(_pointer, _pointer, _pointer, _int64, _pointer, _pointer, _pointer),
            *(_int32, _int32, _int32, _pointer, _pointer, _pointer),
        )
    except (OSError, AttributeError) as error:
        logger.warning(
            "the walk's C++ kernel is not there, so the slower scipy back end does the work; "
            "install the package with a C++ compiler (g++ or clang++) to have it (%s)",
            error,
        )
        return None
    return library


def instruction_set() -> str:
    """The best of ``INSTRUCTION_SETS`` that this machine runs."""
    return INSTRUCTION_SETS[_loaded().walk_isa()]


def build(
    edge_index: Tensor,
    edge_type: Tensor,
    edge_ptr: Tensor,
    node_ptr: Tensor,
    relation_ptr: Tensor,
    wide: bool,
    both_ways: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """``ptr``, ``src`` and ``rel`` of a :class:`~bisrqa.walk.graph.WalkGraph`.

    All must be int64 and contiguous, edges grouped by graph.

    Raises:
        ValueError: An edge has a node or a relation that is not of its graph.
    """
    nodes, edges = int(node_ptr[-1]), edge_index.shape[1]
    arcs = edges * (2 if both_ways else 1)
    ptr = torch.empty(nodes + 1, dtype=torch.int64)
    src = torch.empty(arcs, dtype=torch.int32)
    rel = torch.empty(arcs, dtype=torch.int32 if wide else torch.uint16)
    found = _loaded().walk_build(
        *(_at(t) for t in (edge_index[0], edge_index[1], edge_type)),
        len(node_ptr) - 1,
        *(_at(t) for t in (edge_ptr, node_ptr, relation_ptr)),
        both_ways,
        wide,
        torch.get_num_threads(),
        *(_at(t) for t in (ptr, src, rel)),
    )
    if found < -1:
        raise ValueError(f"edge {-2 - found} leaves its graph")
    if found < 0:
        raise MemoryError(f"no memory to prepare a graph of {edges} edges")
    if found < arcs:  # self-loops and repeated edges
        src, rel = src[:found].clone(), rel[:found].clone()
    return ptr, src, rel


def solve(
    graph: "WalkGraph",
    personalization: Tensor,
    weight: Tensor,
    inverse: Tensor,
    *,
    restart: float,
    tol: float,
    max_steps: int,
    isa: str | None = None,
    width: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, steps and residual, as :func:`bisrqa.walk.sppr` gives them.

    Args:
        graph: On the CPU.
        personalization: float32 or float64, contiguous, as the weights are.
        weight: Of arcs along their edge.
        inverse: Of arcs against it.
        restart: As there.
        tol: As there.
        max_steps: As there.
        isa: One of ``INSTRUCTION_SETS``; the best there is if not given.
        width: Most questions side by side; as many as fit if 0. Changes the time alone.
    """
    questions = len(personalization)
    scores = torch.empty_like(personalization)
    steps = torch.zeros(questions, graph.num_graphs, dtype=torch.int64)
    residual = torch.zeros(questions, graph.num_graphs, dtype=torch.float64)
    problem = _Problem(
        questions,
        *(_at(t) for t in (personalization, weight, inverse, scores, steps, residual)),
        restart,
        tol,
        max_steps,
        personalization.dtype == torch.float64,
        torch.get_num_threads(),
        width,
    )
    level = _loaded().walk_isa() if isa is None else INSTRUCTION_SETS.index(isa)
    layout = _layout(graph)
    if _loaded().walk_solve(ctypes.byref(layout), ctypes.byref(problem), level):
        raise MemoryError(f"no memory to walk a graph of {graph.num_nodes} nodes")
    return scores, steps, residual.to(scores.dtype)


def push(
    graph: "WalkGraph",
    seeds: Tensor,
    weight: Tensor,
    inverse: Tensor,
    *,
    restart: float,
    threshold: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward push: sparse scores (COO), error bound and arcs walked for each question.

    Args:
        graph: On the CPU.
        seeds: Sparse COO, coalesced, [questions, nodes], float64.
        weight: Of arcs along their edge, float64, contiguous.
        inverse: Of arcs against it.
        restart: As in :func:`bisrqa.walk.sppr`.
        threshold: As in :func:`bisrqa.walk.push`.
    """
    questions, nodes = seeds.shape
    (row, seed), mass = seeds.indices(), seeds.values()
    seed_ptr = torch.searchsorted(row.contiguous(), torch.arange(questions + 1))
    seed = seed.contiguous()
    # Room for every node, of which only what is written takes memory.
    node = torch.empty(questions, nodes, dtype=torch.int32)
    score = torch.empty(questions, nodes, dtype=torch.float64)
    reached, arcs = torch.zeros(2, questions, dtype=torch.int64)
    error = torch.zeros(questions, dtype=torch.float64)
    job = _Push(
        questions,
        *(_at(t) for t in (seed_ptr, seed, mass, weight, inverse)),
        restart,
        threshold,
        *(_at(t) for t in (node, score, reached, arcs, error)),
        torch.get_num_threads(),
    )
    layout = _layout(graph.outward)
    if _loaded().walk_push(ctypes.byref(layout), ctypes.byref(job)):
        raise MemoryError(f"no memory to walk a graph of {nodes} nodes")
    starts = torch.arange(questions) * nodes
    row, place = ragged_range(starts, starts + reached)
    sparse = torch.sparse_coo_tensor(
        torch.stack([row, node.view(-1)[place].long()]),
        score.view(-1)[place],
        size=(questions, nodes),
        check_invariants=False,
        is_coalesced=True,
    )
    return sparse, error, arcs


def _layout(graph: "WalkGraph") -> _Layout:
    tensors = "ptr src rel loop_node loop_rel node_ptr relation_ptr".split()
    return _Layout(
        graph.num_nodes,
        graph.num_graphs,
        graph.num_relations,
        len(graph.loop_node),
        *(_at(getattr(graph, name)) for name in tensors),
        graph.rel.dtype == torch.int32,
        graph.both_ways,
    )


def _at(tensor: Tensor) -> int:
    assert tensor.is_contiguous(), "the kernel reads plain arrays"
    return tensor.data_ptr()


def _loaded() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise RuntimeError(f"the walk's C++ kernel was not built: {LIBRARY} is not there")
    return library
