"""Peak memory of a training step beside PyG's GRetriever: ``memory.py --config FILE``.

Each contender has a process of its own, whose peak is read after three steps of equal rows,
optimizer included: model, libraries and everything else that it holds.
"""

import json
import subprocess
import sys
from pathlib import Path

import jsonargparse
import rivals
import torch

from bisrqa import config as configs
from bisrqa import memory, report


def main() -> None:
    """Print the table, or as a child the peak of one contender."""
    parser = jsonargparse.ArgumentParser()
    configs.add_arguments(parser)
    parser.add_argument("--batch", type=int, default=4, help="Questions a step.")
    parser.add_argument("--tokens", type=int, default=256, help="Length of the rows.")
    parser.add_argument("--budget", type=int, default=640, help="training.batch_tokens of bisrqa.")
    parser.add_argument("--json", type=str | None, default=None, help="A file for the numbers.")
    parser.add_argument("--only", type=str | None, default=None, help="This contender, here.")
    given = parser.parse_args()
    config = rivals.configured(configs.from_namespace(parser, given))
    contenders = rivals.contenders(config, given.budget)
    if given.only:
        one = contenders[given.only]()
        builder = one.model.builder if isinstance(one, rivals.Ours) else one.builder
        real = rivals.real_rows(config, builder, config.data.train_split, given.batch + 8)
        rows = rivals.equal_rows(real[: given.batch], builder, given.tokens, 8)
        weights = [w for m in one.modules() for w in m.parameters() if w.requires_grad]
        optimizer = torch.optim.AdamW(weights, 1e-4)
        for _ in range(3):
            one.step(rows, keep=True)
            optimizer.step()
            optimizer.zero_grad()
        print(memory.peak_bytes(rivals.CPU))
        return
    found = {}
    for name in contenders:
        command = [sys.executable, *sys.argv, "--only", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[name] = int(done.stdout)
    first = next(iter(found.values()))
    lines = [["system", "peak, GB", "times PyG"]]
    lines += [[name, f"{peak / 1e9:.2f}", f"{peak / first:.2f}"] for name, peak in found.items()]
    print(report.grid(lines, texts=1))
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
