"""A table of all retrievers on one split: ``retrievers.py --config FILE [--setting value ...]``.

Every question of ``evaluation.split``, without a language model; texts are embedded beforehand.
``gold`` and ``random`` show what the best and no retrieval would be.
"""

import sys

from bisrqa import config as configs
from bisrqa import recall, report
from bisrqa.heads import HEADS

COLUMNS = {
    **{f"R@{k}": f"answer_recall@{k}" for k in recall.DEPTHS},
    "hit@20": "answer_hit@20",
    "triple R": "triple_recall",
    "triple P": "triple_precision",
    "gold in prompt": "golds_in_prompt",
}


def main(words: list[str]) -> None:
    """Score each head in turn; a line is printed to stderr as soon as it is there."""
    lines = [["head", *COLUMNS, "tokens", "ms/question", "n"]]
    for name in HEADS:
        config = configs.load(_option(words), [*_rest(words), "--head", name])
        found = recall.evaluate(config, progress=True)
        lines.append([
            name,
            *(f"{found.get(key, float('nan')):.3f}" for key in COLUMNS.values()),
            f"{found['prompt_tokens']:.0f}",
            f"{1000 * found['seconds_per_question']:.1f}",
            str(found["n"]),
        ])  # fmt: skip
        print(" ".join(lines[-1]), file=sys.stderr)
    print(report.grid(lines, texts=1))


def _option(words: list[str]) -> str:
    return words[words.index("--config") + 1]


def _rest(words: list[str]) -> list[str]:
    at = words.index("--config")
    return [*words[:at], *words[at + 2 :], "--evaluation.limit", "null"]


if __name__ == "__main__":
    main(sys.argv[1:])
