"""Questions answered a second beside PyG's: ``generate.py --config FILE --checkpoint RUN``.

The adapters of a run trained with the config are given to both (without a run the base model
answers, which writes longer), greedy, with the same tokens to stop at. PyG's batches are of fixed
size, in the order of the data, at several sizes; bisrqa's go by tokens. Contenders take turns; a
ratio is to PyG's best size of the same round.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import jsonargparse
import rivals

from bisrqa import checkpoint, report
from bisrqa import config as configs

HEAD = ["system", "batch", "questions a second", "times PyG's best (range)", "replies as PyG's"]


def main() -> None:
    """Print the table."""
    parser = jsonargparse.ArgumentParser()
    configs.add_arguments(parser)
    parser.add_argument("--checkpoint", type=str | None, default=None, help="A trained run.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--sizes", type=str, default="4,8,16,32", help="Batches of PyG.")
    parser.add_argument("--budgets", type=str, default="4096,16384", help="Tokens of bisrqa.")
    parser.add_argument("--json", type=str | None, default=None, help="A file for the numbers.")
    given = parser.parse_args()
    config = configs.from_namespace(parser, given)
    rivals.LORA.update({k: getattr(config.generator, k) for k in rivals.LORA})
    config, dim = rivals.configured(config), rivals.dim_of(config)
    ours = rivals.Ours(config, rivals.bisrqa_model(config, dim), 0)
    theirs = rivals.PyG(config, dim)
    if given.checkpoint:
        step = checkpoint.best(Path(given.checkpoint))
        checkpoint.load(step, ours.model, base_name=config.generator.model)
        theirs.take_adapters(ours.model)
    ours.merge()
    rows = rivals.real_rows(config, ours.model.builder, config.evaluation.split, given.questions)
    longest = config.generator.max_new_tokens
    times: dict[tuple[str, int], list[float]] = {}
    texts: dict[tuple[str, int], list[str]] = {}
    sizes, budgets = (list(map(int, given_.split(","))) for given_ in (given.sizes, given.budgets))
    for number in range(given.rounds):
        for size in sizes:
            started = time.perf_counter()
            parts = [rows[at : at + size] for at in range(0, len(rows), size)]
            texts["PyG GRetriever", size] = [t for p in parts for t in theirs.answer(p, longest)]
            spent = times.setdefault(("PyG GRetriever", size), [])
            spent.append(time.perf_counter() - started)
        for budget in budgets:
            ours.budget = budget
            started = time.perf_counter()
            texts["bisrqa", budget] = ours.answer(rows, longest)
            times.setdefault(("bisrqa", budget), []).append(time.perf_counter() - started)
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    best = [min(times["PyG GRetriever", size][n] for size in sizes) for n in range(given.rounds)]
    expected = texts["PyG GRetriever", sizes[0]]
    lines, found = [HEAD], {}
    for (name, size), spent in times.items():
        ratio = sorted(a / b for a, b in zip(best, spent, strict=True))
        rate = len(rows) / statistics.median(spent)
        same = sum(a == b for a, b in zip(texts[name, size], expected, strict=True))
        batch = f"{size} questions" if name.startswith("PyG") else f"{size} tokens"
        cell = f"{statistics.median(ratio):.2f} ({ratio[0]:.2f} to {ratio[-1]:.2f})"
        lines.append([name, batch, f"{rate:.2f}", cell, f"{same} of {len(rows)}"])
        found[f"{name}/{size}"] = {"seconds": spent, "ratio": ratio, "same": same}
    print(report.grid(lines))
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
