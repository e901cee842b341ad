"""Tables of retrieval over texts: ``texts.py --data FOLDER [--cross_encoder FOLDER]``.

Every question of the development samples of HotpotQA, MuSiQue and 2WikiMultihopQA in FOLDER, and
apart those of HotpotQA whose paragraphs all have triples. The ranker is trained here, on the
training rows of HotpotQA and MuSiQue; a cross-encoder is made by
``bisrqa train-reranker --config configs/hotpotqa_mini.yaml --data.train_split train
--kind cross_encoder --out FOLDER``.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bisrqa import config as configs
from bisrqa import ranker_training, recall, report
from bisrqa.data.hotpotqa import supporting_facts

COLUMNS = {
    "P@5": "support_precision@5", "R@5": "support_recall@5", "F1@5": "support_f1@5",
    "F1@3": "support_f1@3", "F1@8": "support_f1@8", "paragraphs@5": "passage_recall@5",
    "answer in 4": "answer_in_passages@4", "gold in prompt": "golds_in_prompt",
}  # fmt: skip
METHODS: dict[str, list[str]] = {
    "dense": ["--head", "dense"],
    "BM25": ["--head", "bm25"],
    "dense and BM25 (`hybrid`)": ["--head", "hybrid"],
    "SPPR (`bisrqa`)": ["--head", "bisrqa"],
    "KG2RAG, literal": ["--kg2rag.form", "literal"],
    "KG2RAG": [],
}
CROSS_ENCODER: dict[str, list[str]] = {
    "dense, cross-encoder": ["--head", "dense"],
    "KG2RAG, literal, cross-encoder": ["--kg2rag.form", "literal"],
    "KG2RAG, cross-encoder": [],
}
SETS = {"HotpotQA": "hotpotqa", "MuSiQue": "musique", "2WikiMultihopQA": "2wiki"}


def main() -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", required=True, help="Folder with hotpotqa_mini, musique_mini, ..."
    )
    parser.add_argument("--cross_encoder", help="A trained cross-encoder.")
    parser.add_argument("--seeds", type=int, default=3, help="Rankers that are trained.")
    parser.add_argument("--best_sentence", default="0.5", help="As ranker.best_sentence.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rankers = [_ranker(options, seed, Path(folder)) for seed in range(options.seeds)]
        for title, name in SETS.items():
            _table(title, name, ["--data.path", f"{options.data}/{name}_mini"], rankers, options)
        subset, triples = _with_triples(Path(options.data) / "hotpotqa_mini", Path(folder))
        _table(
            "HotpotQA, triples for every paragraph", "hotpotqa",
            ["--data.path", str(subset), "--extraction.method", "precomputed",
             "--extraction.path", str(triples)],
            rankers, options,
        )  # fmt: skip


def _ranker(options: argparse.Namespace, seed: int, folder: Path) -> str:
    where = options.data
    own = ["--data.path", f"{where}/hotpotqa_mini", "--data.train_split", "train",
           "--ranker.data", json.dumps([f"musique:{where}/musique_mini"]),
           "--ranker.best_sentence", options.best_sentence, "--seed", str(seed)]  # fmt: skip
    out = folder / f"ranker-{seed}"
    found = ranker_training.run(configs.load("configs/hotpotqa_mini.yaml", own), out)
    print(f"ranker, seed {seed}: {found}", file=sys.stderr)
    return str(out)


def _table(
    title: str, name: str, own: list[str], rankers: list[str], options: argparse.Namespace
) -> None:
    rows = {label: [words] for label, words in METHODS.items()}
    if options.cross_encoder:
        looking = ["--cross_encoder.model", options.cross_encoder]
        rows |= {label: [[*words, *looking]] for label, words in CROSS_ENCODER.items()}
    rows["KG2RAG, trained ranker"] = [["--kg2rag.ranker", ranker] for ranker in rankers]
    lines = [["method", *COLUMNS, "ms/question"]]
    count = 0
    for label, runs in rows.items():
        found = [
            recall.evaluate(configs.load(f"configs/{name}_mini.yaml", [*own, *words]))
            for words in runs
        ]
        count = found[0]["n"]
        cells = [_cell([one[key] for one in found]) for key in COLUMNS.values()]
        spent = statistics.mean(1000 * one["seconds_per_question"] for one in found)
        lines.append([label, *cells, f"{spent:.1f}"])
        print(title, *lines[-1], file=sys.stderr)
    print(f"\n**{title}** ({count} questions)\n")
    print(report.grid(lines, texts=1))


def _cell(values: list[float]) -> str:
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def _with_triples(source: Path, folder: Path) -> tuple[Path, Path]:
    """The rows of the development sample whose titles all have triples, in a file of their own."""
    triples = source / "kg2rag_llama3_triples.jsonl.gz"
    with gzip.open(triples, "rt", encoding="utf8") as stream:
        known = {row["title"] for row in map(json.loads, stream) if row["triples"]}
    out = folder / "dev_distractor.jsonl"
    with gzip.open(source / "dev_distractor.jsonl.gz", "rt", encoding="utf8") as stream:
        rows = [json.loads(line) for line in stream]
    rows = [row for row in rows if {title for title, _ in row["context"]} <= known]
    assert all(supporting_facts(row, str(out)) for row in rows)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf8")
    return out, triples


if __name__ == "__main__":
    main()
