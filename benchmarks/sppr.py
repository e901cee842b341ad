"""How fast the walk is, beside what people use instead; writes ``docs/benchmarks.md``.

    .venv/bin/pip install igraph rustworkx pcst_fast
    .venv/bin/python benchmarks/sppr.py [--part shared-small] [--rounds 5] [--before CHECKOUT]

Everything that is compared runs in this process, in turns: one round times each method once, and
a ratio is the median over rounds of the ratio within a round, with its smallest and largest.
Before anything is timed, every method's scores are compared with a float64 solution. With
``--part`` one part is run and printed, and the page stays as it is; ``--before`` names a checkout
of an earlier version, whose retrieval is timed in turns with this one's.
"""

import argparse
import importlib.metadata
import logging
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from retrieval import retrieval
from timing import BEST, HEAD, Method, bandwidth, measure, peak_memory
from walk_graphs import QUESTIONS, Case, neighbourhoods, power_law
from walk_others import (
    RESTART,
    TOL,
    Rescaled,
    hops,
    igraph_walk,
    networkx_walk,
    pcst,
    rebuilt,
    rustworkx_walk,
)

from bisrqa.graph.tensors import GraphTensors
from bisrqa.report import grid
from bisrqa.walk import WalkGraph, native, push, sppr
from bisrqa.walk.solve import Backend

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def ours(graph: WalkGraph, case: Case, questions: int) -> Callable[[], torch.Tensor]:
    """The native back end with the first questions of a case."""
    p = torch.from_numpy(case.p[:questions]).float()
    weight = torch.from_numpy(case.weight[:questions]).float()
    return lambda: sppr(graph, p, weight, restart=RESTART, tol=TOL, backend="native").scores


def shared(nodes: int, edges: int, rounds: int, *, small: bool) -> list[str]:
    """One graph, many questions."""
    case = power_law(nodes, edges)
    start = time.perf_counter()
    with peak_memory() as build_memory:
        graph = case.prepared()
    build_s = time.perf_counter() - start
    exact = [rebuilt(case, question, 1e-12) for question in range(2)]

    def first_two(result: torch.Tensor) -> list[np.ndarray]:
        return list(result[:2].double().numpy())

    methods = [
        Method(f"**native, {label}**", ours(graph, case, n), n, first_two)
        for n, label in (
            (QUESTIONS, f"{QUESTIONS} questions at once"),
            (8, "8 at once"),
            (1, "one"),
        )
    ]
    methods += [
        Method("igraph (PRPACK, to 1e-10)", igraph_walk(case)),
        Method("scipy CSR float32, values rescaled", Rescaled(case, np.float32)),
        Method("scipy CSR float64, values rescaled", Rescaled(case, np.float64)),
        Method("scipy CSR float64, rebuilt", lambda: rebuilt(case)),
    ]
    if small:
        p, weight = (torch.from_numpy(v[:8]).float() for v in (case.p, case.weight))
        methods += [
            Method(
                "torch back end, 8 questions at once",
                lambda: sppr(graph, p, weight, backend="torch").scores,
                8,
                first_two,
            ),
            Method("rustworkx (graph given)", rustworkx_walk(case, given=True)),
            Method("networkx (graph given)", networkx_walk(case, given=True)),
        ]
    rows = measure(methods, exact, rounds)

    p, weight = (torch.from_numpy(v).float() for v in (case.p, case.weight))
    with peak_memory() as walk_memory:
        found = sppr(graph, p, weight, backend="native")
    steps = sppr(graph, p[:4], weight[:4], backend="scipy").steps.double().mean().item()
    sweeps = found.steps.double().mean().item()
    width = min(16, QUESTIONS // torch.get_num_threads())
    arcs = graph.num_arcs
    moved = (6 * arcs / width + 4 * arcs + 16 * nodes) * found.steps.double().mean().item()
    rate = moved / (float(rows[0][1]) / 1000) / 1e9
    lines = [
        f"## One graph for all questions: {nodes:,} nodes, {arcs + len(graph.loop_node):,} edges",
        "",
        f"Dense personalization, {case.relations:,} relations, no graph building in the times "
        f"(preparing the `WalkGraph` takes {build_s:.2f} s"
        + (f" and {build_memory[0]:.0f} MB at most" if build_memory and nodes > 10**5 else "")
        + f"; it holds {graph.num_bytes / 2**20:.0f} MB).",
        "",
        grid([HEAD, *rows], texts=1),
        "",
        f"Sweeps: {sweeps:.1f} on average, against {steps:.1f} steps of power iteration to the "
        f"same tolerance: {sweeps / steps:.2f}. "
        + (
            f"The batch of {QUESTIONS} needs {walk_memory[0]:.0f} MB. "
            if walk_memory and nodes > 10**5  # smaller ones find room in what was freed before
            else ""
        )
        + f"By the model of {6}/{width} + 4 bytes an arc and 16 a node and sweep it moves "
        f"{rate:.1f} GB/s.",
        "",
    ]
    lines += pushed(case, graph, rounds)
    return lines


def both_ways(nodes: int, edges: int, rounds: int) -> list[str]:
    """The same graph walked both ways, as retrieval does: the sweeps are over-relaxed then."""
    case = power_law(nodes, edges)
    graph, arcs = case.prepared(both_ways=True), case.doubled()
    exact = [rebuilt(arcs, question, 1e-12) for question in range(2)]

    def first_two(result: torch.Tensor) -> list[np.ndarray]:
        return list(result[:2].double().numpy())

    methods = [
        Method(f"**native, {label}**", ours(graph, case, n), n, first_two)
        for n, label in ((QUESTIONS, f"{QUESTIONS} questions at once"), (1, "one"))
    ]
    methods += [
        Method("igraph (PRPACK, to 1e-10)", igraph_walk(arcs)),
        Method("scipy CSR float32, values rescaled", Rescaled(arcs, np.float32)),
    ]
    rows = measure(methods, exact, rounds)
    p, weight = (torch.from_numpy(v[:4]).float() for v in (case.p, case.weight))
    steps, sweeps = (
        sppr(graph, p, weight, backend=backend).steps.double().mean().item()
        for backend in ("scipy", "native")
    )
    return [
        f"## The same, walked both ways: {nodes:,} nodes, {graph.num_arcs:,} arcs",
        "",
        grid([HEAD, *rows], texts=1),
        "",
        f"Sweeps: {sweeps:.1f} on average of 4 questions, against {steps:.1f} steps of power "
        f"iteration: {sweeps / steps:.2f}.",
        "",
    ]


def pushed(case: Case, graph: WalkGraph, rounds: int) -> list[str]:
    """Forward push from 50 seeds beside the whole walk for the same seeds."""
    asked = 8
    top = np.argsort(-case.p[:asked], axis=1)[:, :50]
    p = np.zeros_like(case.p[:asked])
    np.put_along_axis(p, top, np.take_along_axis(case.p[:asked], top, 1), 1)
    p /= p.sum(1, keepdims=True)
    dense, weight = torch.from_numpy(p).float(), torch.from_numpy(case.weight[:asked]).float()
    sparse = torch.from_numpy(p).to_sparse()
    alone = [torch.from_numpy(p[[q]]).to_sparse() for q in range(asked)]
    seeded = case._replace(p=p)
    exact = [rebuilt(seeded, question, 1e-12) for question in range(asked)]
    best = [set(np.argsort(-v, kind="stable")[:BEST].tolist()) for v in exact]
    thresholds = (1e-6, 3e-7, 1e-7, 1e-8)

    def one(threshold: float) -> Callable[[], Any]:
        return lambda: [
            push(graph, alone[q], weight[[q]], threshold=threshold) for q in range(asked)
        ]

    def walk() -> Any:
        return [sppr(graph, dense[[q]], weight[[q]], backend="native") for q in range(asked)]

    methods = [Method("whole walk", walk, asked, None)]
    methods += [Method(f"push, threshold {t:g}", one(t), asked, None) for t in thresholds]
    times: list[list[float]] = [[] for _ in methods]
    for _ in range(rounds):
        for method, spent in zip(methods, times, strict=True):
            start = time.perf_counter()
            method.run()
            spent.append(1000 * (time.perf_counter() - start) / asked)
    rows = [["whole walk", f"{statistics.median(times[0]):.3g}", "1", "", "", "1"]]
    for threshold, spent in zip(thresholds, times[1:], strict=True):
        found = push(graph, sparse, weight, threshold=threshold)
        scores = found.scores.to_dense().numpy()
        errors = [float(np.abs(a - b).sum()) for a, b in zip(scores, exact, strict=True)]
        kept = [
            len(good & set(np.argsort(-row, kind="stable")[:BEST].tolist())) / BEST
            for row, good in zip(scores, best, strict=True)
        ]
        faster = sorted(a / b for a, b in zip(times[0], spent, strict=True))
        rows.append(
            [
                f"push, threshold {threshold:g}",
                f"{statistics.median(spent):.3g}",
                f"{statistics.median(faster):.3g} ({faster[0]:.3g} to {faster[-1]:.3g})",
                f"{max(errors):.1e}",
                f"{found.error.max().item():.1e}",
                f"{statistics.mean(kept):.3f}",
            ]
        )
    columns = ["method", "ms a question", "times faster (range)", "L1 error", "error reported"]
    return [
        f"Forward push from the 50 best seeds, one question at a time ({asked} questions; the "
        "largest error, the mean agreement of the best 100):",
        "",
        grid([[*columns, "best 100"], *rows], texts=1),
        "",
    ]


def block_diagonal(cases: list[Case], backend: Backend) -> Callable[[], torch.Tensor]:
    """A batch as retrieval sees it: triples in, scores out."""
    count, nodes, kinds = len(cases), cases[0].nodes, cases[0].relations // 2
    halves = [slice(0, len(case.src) // 2) for case in cases]
    edges = [
        np.stack([case.src[h], case.dst[h]]) + i * nodes
        for i, (case, h) in enumerate(zip(cases, halves, strict=True))
    ]
    types = [case.rel[h] + i * kinds for i, (case, h) in enumerate(zip(cases, halves, strict=True))]
    edge_index, edge_type = (torch.from_numpy(np.concatenate(v, -1)) for v in (edges, types))
    p = torch.from_numpy(np.concatenate([case.p for case in cases], 1)).float()
    weight = np.concatenate([case.weight[:, :kinds] for case in cases], 1)
    weight = torch.from_numpy(weight).float()
    sizes = torch.tensor([0] + [len(t) for t in types]).cumsum(0)
    ptr = torch.arange(count + 1)
    batch = GraphTensors(
        x=torch.empty(count * nodes, 0),
        node_text=("",) * (count * nodes),
        node_kind=torch.zeros(count * nodes, dtype=torch.int8),
        edge_index=edge_index,
        edge_type=edge_type,
        edge_passage=torch.full_like(edge_type, -1),
        relation_x=torch.empty(count * kinds, 0),
        relation_text=("",) * (count * kinds),
        node_ptr=ptr * nodes,
        edge_ptr=sizes,
        relation_ptr=ptr * kinds,
    )

    def run() -> torch.Tensor:
        return sppr(batch, p, weight, backend=backend).scores.view(count, nodes)

    return run


def small(rounds: int) -> list[str]:
    """Many graphs, one question each: what a WebQSP batch is."""
    import pcst_fast

    cases = neighbourhoods(256)
    exact = [rebuilt(case, 0, 1e-12) for case in cases]
    few = 32

    def every(result: torch.Tensor) -> list[np.ndarray]:
        return list(result.double().numpy())

    given = [pcst(case) for case in cases[:few]]
    methods = [
        Method("**native**", block_diagonal(cases, "native"), len(cases), every),
        Method("torch back end, block-diagonal", block_diagonal(cases, "torch"), len(cases), every),
        Method(
            "scipy CSR float64, graph by graph",
            lambda: [rebuilt(case) for case in cases[:few]],
            few,
            lambda result: result,
        ),
    ]
    walks = [igraph_walk(case) for case in cases[:few]]
    methods.append(
        Method("igraph (PRPACK)", lambda: [w() for w in walks], few, lambda result: result)
    )
    for name, make, count in (("rustworkx", rustworkx_walk, 8), ("networkx", networkx_walk, 4)):
        several = [make(case, given=False) for case in cases[:count]]
        methods.append(
            Method(name, lambda s=several: [w() for w in s], count, lambda result: result)
        )
    methods.append(
        Method(
            "PCST as in G-Retriever, the `pcst_fast` call alone",
            lambda: [pcst_fast.pcst_fast(e, p, c, -1, 1, "gw", 0) for e, p, c in given],
            few,
            None,
        )
    )
    methods.append(Method("two hops from the 3 best nodes (PyG)", hops(cases[:few]), few, None))
    rows = measure(methods, exact, rounds)
    return [
        f"## A graph for each question: {len(cases)} of {cases[0].nodes:,} nodes, about "
        f"{len(cases[0].src):,} arcs",
        "",
        "Building and solving, from triples to scores.",
        "",
        grid([HEAD, *rows], texts=1),
        "",
        "PCST and k-hop select nodes without scoring all of them: another answer, not the same one "
        "faster or slower.",
        "",
    ]


def machine() -> str:
    """The processor and the versions of what is compared."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    packages = ("torch", "scipy", "igraph", "rustworkx", "networkx", "pcst_fast")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"{model}, {torch.get_num_threads()} threads, {native.instruction_set()}; "
        f"Python {platform.python_version()}, {versions}."
    )


def main() -> None:
    """Run the parts and write the page."""
    parts = {
        "shared-large": lambda: shared(1_000_000, 10_000_000, args.rounds, small=False),
        "shared-small": lambda: shared(100_000, 1_000_000, args.rounds, small=True),
        "both-ways": lambda: both_ways(1_000_000, 10_000_000, args.rounds),
        "own": lambda: small(args.rounds),
        "retrieval": lambda: retrieval(args.rounds, args.before),
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=parts)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    rates = bandwidth()
    intro = [
        "# Benchmarks of the walk",
        "",
        "Written by `.venv/bin/python benchmarks/sppr.py"
        + (" --before CHECKOUT" if args.before else "")
        + f"` (rounds: {args.rounds}). {machine()} "
        f"This machine reads {rates['read']:.0f} GB/s in a row and {rates['random lines']:.1f} "
        "GB/s in random lines of 64 bytes from a table of 64 MB.",
        "",
        f"Restart {RESTART}, L1 step below {TOL:g}; all methods but igraph, whose tolerance is "
        "fixed, stop by the same rule. Methods took turns in one process; a ratio is the median "
        "over rounds, with its range. The error is against float64 iterated to 1e-12.",
        "",
    ]
    if args.part:
        print("\n".join([*intro, *parts[args.part]()]))
        return
    lines = [*intro]
    for name, part in parts.items():
        print(f"part {name}", file=sys.stderr)
        lines += part()
    PAGE.write_text("\n".join(lines).rstrip() + "\n", "utf8")


if __name__ == "__main__":
    main()
