"""Print Markdown tables of evaluated runs: ``table.py "name=checkpoints/run" ...``.

A folder is a run's (its test evaluation is taken) or an evaluation's own.
"""

import json
import sys
from pathlib import Path

from bisrqa import report


def main(words: list[str]) -> None:
    """Scores, then what they cost."""
    rows, costs = {}, [["", "trained weights", "steps", "training", "answering", "peak memory"]]
    for word in words:
        name, _, path = word.partition("=")
        run = Path(path)
        trained = (run / "run.json").is_file()
        folder = run / "eval-test" / "trained" if trained else run
        rows[name] = row = json.loads((folder / "metrics.json").read_text("utf8"))
        weights, steps, minutes = "-", "-", "-"
        if trained:
            log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            seconds = [entry["seconds"] for entry in log if "seconds" in entry]
            files = (run / (run / "best.txt").read_text().strip()).rglob("*.safetensors")
            weights = f"{sum(file.stat().st_size for file in files) / 2**20:.1f} MB"
            steps, minutes = str(len(seconds)), f"{sum(seconds) / 60:.1f} min"
        memory = f"{row['peak_memory_bytes'] / 2**30:.1f} GiB"
        costs.append([name, weights, steps, minutes, f"{row['seconds'] / 60:.1f} min", memory])
    print(report.table(rows), "\n")
    for number, cells in enumerate(costs):
        print(f"| {' | '.join(cells)} |")
        if number == 0:
            print("|" + " --- |" * len(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
