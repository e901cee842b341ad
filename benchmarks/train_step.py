"""Training steps a second beside PyG's GRetriever: ``train_step.py --config FILE``.

Contenders take turns in one process, each with the same rows; a ratio is the median over rounds,
with its range. A step is forward and backward of one batch, without the optimizer, which is the
same for all.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import jsonargparse
import rivals

from bisrqa import config as configs
from bisrqa import report

HEAD = ["rows", "system", "s a step", "steps a second, times PyG (range)", "loss"]


def main() -> None:
    """Print the table."""
    parser = jsonargparse.ArgumentParser()
    configs.add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="Questions a step.")
    parser.add_argument("--tokens", type=int, default=256, help="Length of equal rows.")
    parser.add_argument("--steps", type=int, default=6, help="Steps a round on real rows.")
    parser.add_argument("--budget", type=int, default=640, help="training.batch_tokens of bisrqa.")
    parser.add_argument("--json", type=str | None, default=None, help="A file for the numbers.")
    given = parser.parse_args()
    config = rivals.configured(configs.from_namespace(parser, given))
    made = {name: make() for name, make in rivals.contenders(config, given.budget).items()}
    model = made["bisrqa"].model
    real = rivals.real_rows(
        config, model.builder, config.data.train_split, given.batch * given.steps + 8
    )
    equal = rivals.equal_rows(real[: given.batch], model.builder, given.tokens, 8)
    steps = [real[at * given.batch :][: given.batch] for at in range(given.steps)]
    lines, found = [HEAD], {}
    for kind, work in ((f"{given.batch} x {given.tokens} tokens", [equal]), ("real", steps)):
        times: dict[str, list[float]] = {name: [] for name in made}
        losses = {name: one.step(work[0]) for name, one in made.items()}  # and warm up
        for number in range(given.rounds):
            for name, one in made.items():
                started = time.perf_counter()
                for rows in work:
                    one.step(rows)
                times[name].append((time.perf_counter() - started) / len(work))
            print(f"{kind}: round {number + 1} of {given.rounds}", file=sys.stderr)
        first = next(iter(times))
        for name, spent in times.items():
            ratio = sorted(a / b for a, b in zip(times[first], spent, strict=True))
            found[f"{kind}/{name}"] = {"seconds": spent, "ratio": ratio, "loss": losses[name]}
            cell = f"{statistics.median(ratio):.2f} ({ratio[0]:.2f} to {ratio[-1]:.2f})"
            seconds = f"{statistics.median(spent):.2f}"
            lines.append([kind, name, seconds, cell, f"{losses[name]:.2f}"])
    lengths = sorted(model.lengths(*map(list, zip(*real, strict=True))))
    print(report.grid(lines))
    print(f"\nreal rows: {lengths[0]} to {lengths[-1]} tokens, half of them at most "
          f"{statistics.median(lengths):.0f}")  # fmt: skip
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
