"""``sppr``: one function for every back end, with the checks that all of them share."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors
from bisrqa.walk import native, plain, reference
from bisrqa.walk.graph import WalkGraph

Backend = Literal["auto", "torch", "scipy", "native", "triton"]
MOST_APART = 2.0**-180
BACKENDS = ("torch", "scipy", "native", "triton")


class SPPRResult(NamedTuple):
    """Where the walk came to rest."""

    scores: Float[Tensor, "questions nodes"]
    """Mass per node; sums to 1 for each question and graph."""
    steps: Int[Tensor, "questions graphs"]
    """Passes over the arcs."""
    residual: Float[Tensor, "questions graphs"]
    """L1 change of the last step, or what it left the mass out of balance by, if that is more; not
    below ``tol`` where ``max_steps`` ended the walk."""


def sppr(
    graph: WalkGraph | GraphTensors,
    personalization: Float[Tensor, "questions nodes"],
    relation_weight: Float[Tensor, "questions relations"],
    *,
    inverse_weight: Float[Tensor, "questions relations"] | None = None,
    restart: float | Float[Tensor, " questions"] = 0.15,
    tol: float = 1e-6,
    max_steps: int = 200,
    backend: Backend = "auto",
) -> SPPRResult:
    """Walk a graph from each question's personalization until the mass settles.

    The rest state is ``s = (1 - restart) P^T s + restart p``. P moves the mass on a node over its
    arcs in proportion to their relation's weight; what lies on a node whose arcs all weigh nothing
    goes back to p. The graph is one graph shared by all questions, or a block-diagonal batch in
    which each question has its own block; then there is one row, and mass, steps and convergence
    are counted for each block on its own. A question stops at its own step: its result does not
    depend on what else is in the batch, nor on the number of threads.

    Back ends, all within ``10 * tol / restart`` of the exact solution in L1:

    - ``torch``: power iteration in plain torch, on any device, with gradients.
    - ``scipy``: power iteration in float64 on a CPU, one question at a time.
    - ``native``: Gauss-Seidel in C++ on a CPU, many questions side by side.
    - ``triton``: Gauss-Seidel by groups of nodes, on a CUDA device.
    - ``auto``: ``torch`` where a gradient is asked for, else ``triton`` on CUDA if it is there,
      else ``native`` on a CPU, or ``scipy`` where that was not built.

    Args:
        graph: Prepared with :class:`WalkGraph`, or a :class:`~bisrqa.graph.tensors.GraphTensors`,
            which is prepared first and walked both ways.
        personalization: Non-negative; sums to 1 over each block that has nodes. May be sparse
            (any torch layout). Where any input is float64 the walk is in float64, else in float32.
        relation_weight: Non-negative weight of an arc along an edge of each relation. Only ratios
            matter.
        inverse_weight: The same against the edge; ``relation_weight`` if not given.
        restart: In (0, 1). Larger stays closer to the personalization. A tensor, of backend
            ``torch`` alone, has one for each question, and may ask for a gradient.
        tol: On the L1 change of a block's unit mass. Single precision stalls near 1e-7.
        max_steps: Most steps taken.
        backend: See above.

    Raises:
        ValueError: Values that are negative or not finite, rows that do not sum to 1, shapes that
            do not fit; names question and block.
    """
    for value in [restart] if isinstance(restart, (int, float)) else restart.tolist():
        if not 0.0 < value < 1.0:
            raise ValueError(f"restart must lie in (0, 1), got {value}")
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol}")
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if isinstance(graph, GraphTensors):
        graph = WalkGraph.of(graph)
    p, weight, inverse = _checked(graph, personalization, relation_weight, inverse_weight)
    if isinstance(restart, Tensor):
        if backend not in ("auto", "torch"):
            raise ValueError(f"backend {backend!r} takes one restart for all questions")
        backend = "torch"
    solve = _solver(backend, graph, p, weight, inverse)
    return SPPRResult(
        *solve(graph, p, weight, inverse, restart=restart, tol=tol, max_steps=max_steps)
    )


def _checked(
    graph: WalkGraph, personalization: Tensor, weight: Tensor, inverse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs, dense, contiguous, of one type, and sound."""
    p = personalization
    if p.layout != torch.strided:
        p = p.to_dense()
    check_devices(graph, personalization=p, relation_weight=weight, inverse_weight=inverse)
    if p.ndim != 2 or p.shape[1] != graph.num_nodes:
        raise ValueError(
            f"personalization has shape {list(p.shape)}, but there are {graph.num_nodes} nodes"
        )
    weight, inverse = checked_weights(graph, len(p), weight, inverse)
    kind = torch.float32
    for tensor in (p, weight, inverse):
        kind = torch.promote_types(kind, tensor.dtype)
    p, weight, inverse = (t.to(kind).contiguous() for t in (p, weight, inverse))
    _check_values("personalization", p, graph.node_ptr)
    _check_mass(graph, p)
    return p, weight, inverse


def checked_weights(
    graph: WalkGraph, questions: int, weight: Tensor, inverse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weights along edges and against them, contiguous and sound."""
    inverse = weight if inverse is None else inverse
    for name, value in (("relation_weight", weight), ("inverse_weight", inverse)):
        if value.shape != (questions, graph.num_relations):
            raise ValueError(
                f"{name} has shape {list(value.shape)}, but there are {questions} questions and "
                f"{graph.num_relations} relations"
            )
        _check_values(name, value, graph.relation_ptr)
    _check_span(weight.detach(), inverse.detach())
    return weight.contiguous(), inverse.contiguous()


def _check_span(weight: Tensor, inverse: Tensor) -> None:
    """Refuse single-precision weights of one question so far apart that the small ones vanish."""
    both = torch.cat([weight, inverse], 1)
    if both.dtype != torch.float32 or not both.numel() or both.max() <= 1:
        return  # the smallest numbers that there are lie within reach of 1
    small = torch.where(both > 0, both, torch.inf).amin(1).double()
    bad = small < both.amax(1).double() * MOST_APART
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"relation weights of question {row} lie too far apart for single precision: "
            f"{small[row].item():g} and {both[row].max().item():g}; give them as float64"
        )


def check_devices(graph: WalkGraph, **tensors: Tensor | None) -> None:
    """Refuse inputs that are not where the graph is, by name."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != graph.device:
            raise ValueError(f"{name} is on {tensor.device}, and the graph on {graph.device}")


def _check_values(name: str, value: Tensor, ptr: Tensor) -> None:
    # Without a copy, since a big table is the rule; a NaN fails both comparisons.
    if not value.numel():
        return
    low, high = torch.aminmax(value)
    if low >= 0 and high < torch.inf:
        return
    row, column = (~(torch.isfinite(value) & (value >= 0))).nonzero()[0].tolist()
    block = int(torch.searchsorted(ptr, column, right=True)) - 1
    raise ValueError(
        f"{name} must be finite and not negative, got {value[row, column].item()} "
        f"at question {row}, graph {block}, position {column - int(ptr[block])}"
    )


def _check_mass(graph: WalkGraph, p: Tensor) -> None:
    if not p.numel():
        return
    if graph.num_graphs == 1:
        total = p.detach().sum(1, dtype=torch.float64)[:, None]
    else:
        offsets = graph.node_ptr.expand(len(p), -1).contiguous()
        total = torch.segment_reduce(p.detach().double(), "sum", offsets=offsets, axis=1)
    off = (graph.node_ptr.diff() > 0) & ((total - 1).abs() > 1e-4)
    if off.any():
        row, block = off.nonzero()[0].tolist()
        raise ValueError(
            f"personalization of question {row}, graph {block} must sum to 1, "
            f"got {total[row, block].item():.6f}"
        )


def _solver(
    backend: str, graph: WalkGraph, p: Tensor, weight: Tensor, inverse: Tensor
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {backend!r}")
    gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (p, weight, inverse))
    device = graph.device.type
    if backend == "auto":
        if gradient or device not in ("cpu", "cuda"):
            backend = "torch"
        elif device == "cuda":
            backend = "triton" if _has_triton() else "torch"
        else:
            backend = "native" if native.available() else "scipy"
    if backend == "torch":
        return plain.solve
    if gradient:
        raise ValueError(f"backend {backend!r} gives no gradient; use 'torch' or 'auto'")
    if backend == "triton":
        from bisrqa.walk import on_gpu

        return on_gpu.solve
    if device != "cpu":
        raise ValueError(f"backend {backend!r} works on a CPU, and the graph is on {graph.device}")
    return native.solve if backend == "native" else reference.solve


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None
