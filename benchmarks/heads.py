"""Heads on data sets, one table: ``heads.py --configs FILE ... [--heads NAME ...] [--limit N]``.

Every head on the same questions of each config, without a language model. A set's own score is
the answer recall of its 20 best nodes (knowledge graphs), the F1 of its 5 best sentences or
paragraphs (texts with supporting facts), or the share of answers in its 4 best chunks (CRUD-RAG);
a gold in the prompt is the score that all of them share. ED-RAG is given events by rules.
"""

import argparse
import sys

from bisrqa import config as configs
from bisrqa import recall, report
from bisrqa.config import RunConfig

HEADS = ("bisrqa", "kg2rag", "edrag", "hybrid", "dense", "bm25", "ppr")
OWN = {
    "rog": ("answer recall@20", "answer_recall@20"),
    "hotpotqa": ("support F1@5", "support_f1@5"),
    "musique": ("support F1@5", "support_f1@5"),
    "crud": ("answer in 4 chunks", "answer_in_passages@4"),
}
EVENTS = ["--extraction.what", "events", "--extraction.method", "syntax"]


def main() -> None:
    """Print two lines for each set; every score goes to stderr as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", nargs="+", required=True)
    parser.add_argument("--heads", nargs="+", default=HEADS)
    parser.add_argument("--limit", type=int, default=300, help="Questions of each set.")
    options = parser.parse_args()
    lines = [["set", "n", "score", *options.heads]]
    for file in options.configs:
        config = configs.load(file)
        found = {head: _scores(file, config, head, options.limit) for head in options.heads}
        own = OWN.get(config.data.source, OWN["rog"])
        for title, key in (own, ("gold in prompt", "golds_in_prompt")):
            cells = [f"{100 * scores[key]:.1f}" for scores in found.values()]
            questions = str(next(iter(found.values()))["questions"])
            lines.append([config.name, questions, title, *cells])
            print(*lines[-1], file=sys.stderr, flush=True)
    print(report.grid(lines, texts=3))


def _scores(file: str, config: RunConfig, head: str, limit: int) -> dict[str, float]:
    words = ["--head", head, "--evaluation.limit", str(limit)]
    if head == "edrag" and config.data.source in ("hotpotqa", "musique"):
        words += EVENTS
    found = recall.evaluate(configs.load(file, words))
    print(file, head, found, file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
