"""Timing methods in turns, after their results were checked; and what the machine can do."""

import contextlib
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

BEST = 100
"""So many of the best nodes are compared."""
HEAD = ["method", "ms a question", "times the first (range)", "L1 error"]


class Method(NamedTuple):
    """Something to time."""

    name: str
    run: Callable[[], Any]
    per: int = 1
    """How many questions one run answers."""
    scores: Callable[[Any], list[np.ndarray]] | None = lambda result: [result]
    """The scores of the first questions in its result, to be checked; None if it has none."""


def check(method: Method, exact: list[np.ndarray]) -> str:
    """Compare with the exact scores.

    Raises:
        SystemExit: The method solves something else.
    """
    result = method.run()
    if method.scores is None:
        return ""
    worst, shared = 0.0, 1.0
    for found, right in zip(method.scores(result), exact, strict=False):
        worst = max(worst, float(np.abs(found - right).sum()))
        best = [set(np.argsort(-v, kind="stable")[:BEST].tolist()) for v in (found, right)]
        shared = min(shared, len(best[0] & best[1]) / BEST)
    if worst > 1e-4 or shared < 0.98:
        sys.exit(f"{method.name}: {worst:.1e} away in L1, {shared:.2f} of the best {BEST}")
    return f"{worst:.0e}"


def measure(methods: list[Method], exact: list[np.ndarray], rounds: int) -> list[list[str]]:
    """A row for each method: milliseconds a question, ratio to the first, error."""
    errors = [check(method, exact) for method in methods]
    times: list[list[float]] = [[] for _ in methods]
    for number in range(rounds):
        for method, spent in zip(methods, times, strict=True):
            start = time.perf_counter()
            method.run()
            spent.append(1000 * (time.perf_counter() - start) / method.per)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    rows = []
    for method, spent, error in zip(methods, times, errors, strict=True):
        ratio = sorted(b / a for a, b in zip(times[0], spent, strict=True))
        low, middle, high = ratio[0], statistics.median(ratio), ratio[-1]
        beside = "1" if method is methods[0] else f"{middle:.3g} ({low:.3g} to {high:.3g})"
        rows.append([method.name, f"{statistics.median(spent):.3g}", beside, error])
    return rows


def bandwidth() -> dict[str, float]:
    """Gigabytes a second that this machine reads in a row, and in random lines of 64 bytes."""
    rows = 1_000_000
    lines = torch.ones(rows, 16)
    order = torch.randint(rows, (8_000_000,), generator=torch.Generator().manual_seed(0))
    out = torch.empty(len(order), 16)

    def best(run: Callable[[], Any], size: int) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return size / statistics.median(times) / 1e9

    big = torch.ones(64_000_000)
    found = {"read": best(big.sum, big.numel() * 4)}
    # The lines are written out as well; that part is taken off at the rate of a plain copy.
    copied = torch.empty_like(out)
    copy_s = out.numel() * 4 / (1e9 * best(lambda: copied.copy_(out), out.numel() * 4))
    rate = best(lambda: torch.index_select(lines, 0, order, out=out), out.numel() * 4)
    gather_s = out.numel() * 4 / (1e9 * rate) - copy_s / 2
    found["random lines"] = out.numel() * 4 / gather_s / 1e9
    return found


@contextlib.contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Megabytes that the block needs at most beyond what was there; empty where unknown."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def read(name: str) -> float:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read_text())[1]) / 1024

    found: list[float] = []
    if not clear.exists():
        yield found
        return
    clear.write_text("5")
    before = read("VmRSS")
    yield found
    found.append(read("VmHWM") - before)
