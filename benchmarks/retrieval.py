"""Retrieval from question to evidence: what it keeps, how long it takes, and where."""

import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bisrqa import config as configs
from bisrqa import examples
from bisrqa.heads import base as common
from bisrqa.heads import bisrqa as head
from bisrqa.packaged import default_cache_dir
from bisrqa.report import grid

ROOT = Path(__file__).resolve().parent.parent
ENCODING = "encoding questions"
PHASES: dict[str, list[tuple[Any, str]]] = {
    "reading rows": [(examples.data, "read")],
    ENCODING: [],  # timed apart: the store would only look them up
    "building graphs": [(examples, "graph_of")],
    "similarities, restart": [
        *((head, name) for name in ("similarity", "nearest", "personalization")),
        (common, "topic_mask"),
    ],
    "preparing arcs": [(head.WalkGraph, "of")],
    "walk": [(head, "sppr"), (head, "push")],
    "selection": [(common, "rank"), (common, "select"), (common, "select_shared")],
    "cutting": [(common, "_evidence")],
    "ways to golds": [(examples, "_ways"), (examples, "_gold_places")],
}
"""Parts of retrieval, and the functions in which each spends its time."""


def recall_at(config: Any, retriever: examples.Retriever, limit: int | None) -> tuple[float, int]:
    """Mean share of the golds in a graph that are kept, and over how many questions."""
    found = examples.load(config, config.evaluation.split, retriever, limit=limit)
    share = [e.golds_in_evidence / e.golds_in_graph for e in found if e.golds_in_graph]
    return statistics.mean(share), len(share)


def retrieval(rounds: int, before: Path | None) -> list[str]:
    """From questions to evidence, on real data."""
    data = Path(os.environ.get("BISRQA_DATA", ROOT.parent / "shared" / "data"))
    if not (data / "freebase_mini.parquet").exists():
        return [f"## Retrieval\n\nNot measured: no sample data at {data}.\n"]
    base = ["--data.path", str(data / "webqsp_mini")]
    whole = ["--data.graph", "shared", "--data.graph_path", str(data / "freebase_mini.parquet")]
    push_words = "--retriever.seeds 50 --retriever.walk push --retriever.push_threshold 1e-6"
    ways = {
        "each question's own graph": [],
        "whole graph": whole,
        "whole graph, 50 seeds": [*whole, "--retriever.seeds", "50"],
        "whole graph, 50 seeds, push": [*whole, *push_words.split()],
    }
    lines = ["## Retrieval, from question to evidence", ""]
    recalls, timings = [], []
    for name, words in ways.items():
        row = [name]
        for top_k in (20, 50, 100):
            config = configs.load(
                ROOT / "configs" / "webqsp_mini.yaml",
                [*base, *words, "--retriever.top_k", str(top_k)],
            )
            retriever = examples.Retriever(config, default_cache_dir())
            value, count = recall_at(config, retriever, None)
            row.append(f"{value:.3f}")
        recalls.append([*row, f"{count:,}"])
        config = configs.load(ROOT / "configs" / "webqsp_mini.yaml", [*base, *words])
        timings.append([name, *phases(config, rounds)])
    lines += [
        "Share of gold answers kept, on the test questions of `webqsp_mini` with a gold in the "
        "graph, over each question's own graph (some hundred triples) and over the whole of "
        "`freebase_mini` (744,264 triples):",
        "",
        grid([["graph", "K = 20", "50", "100", "n"], *recalls], texts=1),
        "",
        "Milliseconds a question and where they go, K = 20, with the texts of graphs embedded "
        "before, questions encoded anew:",
        "",
        grid([["graph", "in all", *PHASES, "rest"], *timings], texts=1),
        "",
    ]
    if before is not None:
        lines += earlier(before, base, rounds)
    return lines


def phases(config: Any, rounds: int) -> list[str]:
    """Milliseconds a question in all and in each phase; medians over rounds."""
    questions = 400
    retriever = examples.Retriever(config, default_cache_dir())
    recall_at(config, retriever, questions)
    texts = [q.question for q in examples.data.read(config.data, "test", limit=questions)]
    embedder, size = retriever.questions._embedder, config.embedder.batch_size
    spent: dict[str, list[float]] = {name: [] for name in ("in all", *PHASES)}
    for _ in range(rounds):
        clock = dict.fromkeys(PHASES, 0.0)
        with contextlib.ExitStack() as stack:
            for name, places in PHASES.items():
                for place in places:
                    stack.enter_context(timed(*place, name, clock))
            start = time.perf_counter()
            recall_at(config, retriever, questions)
            total = time.perf_counter() - start
        start = time.perf_counter()
        for first in range(0, len(texts), size):  # the store would only look them up
            embedder.encode(texts[first : first + size], size)
        clock[ENCODING] = time.perf_counter() - start
        spent["in all"].append(total + clock[ENCODING])
        for name, value in clock.items():
            spent[name].append(value)
    medians = {name: 1000 * statistics.median(v) / questions for name, v in spent.items()}
    rest = medians["in all"] - sum(medians[name] for name in PHASES)
    return [f"{medians[name]:.2f}" for name in ("in all", *PHASES)] + [f"{rest:.2f}"]


@contextlib.contextmanager
def timed(owner: Any, name: str, label: str, clock: dict[str, float]) -> Iterator[None]:
    """Add up the time that a function takes, generators included."""
    original = getattr(owner, name)

    def run(*given: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = original(*given, **options)
        clock[label] += time.perf_counter() - start
        return drained(result) if isinstance(result, Iterator) else result

    def drained(rows: Iterator[Any]) -> Iterator[Any]:
        while True:
            start = time.perf_counter()
            try:
                row = next(rows)
            except StopIteration:
                return
            finally:
                clock[label] += time.perf_counter() - start
            yield row

    setattr(owner, name, run)
    try:
        yield
    finally:
        setattr(owner, name, original)


def earlier(before: Path, base: list[str], rounds: int) -> list[str]:
    """Retrieval of an earlier checkout and of this one, in turns."""

    def once(root: Path) -> float:
        command = [
            sys.executable, "benchmarks/recall.py", "--config", "configs/webqsp_mini.yaml", *base,
            "--evaluation.limit", "null"
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True,
            capture_output=True, text=True
        )  # fmt: skip
        return float(re.search(r"([\d.]+) ms a question", done.stdout)[1])

    pairs = [(once(before), once(ROOT)) for _ in range(rounds)]
    ratio = sorted(old / new for old, new in pairs)
    old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
    commit = subprocess.run(
        ["git", "-C", str(before), "rev-parse", "--short", "HEAD"], check=True,
        capture_output=True, text=True
    ).stdout.strip()  # fmt: skip
    return [
        f"Before (commit {commit}) and after, `benchmarks/recall.py` in turns, embeddings cached: "
        f"{old:.2f} and {new:.2f} ms a question, {statistics.median(ratio):.2f} times faster "
        f"({ratio[0]:.2f} to {ratio[-1]:.2f}).",
        "",
    ]
