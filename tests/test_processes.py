"""Two processes that share a batch give the numbers of one process with the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = """
import sys
import tiny
import torch
from accelerate import Accelerator
from bisrqa import runs
from bisrqa.training import Trainer, leave

torch.set_num_threads(1)
accumulation = int(sys.argv[2])
config = tiny.config(
    output_dir=sys.argv[1],
    training={"batch_size": 2, "accumulation": accumulation, "max_steps": 3, "epochs": 9,
              "eval_every": 2, "patience": None},
)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model, examples = tiny.model(config), tiny.examples()
if accelerator.is_main_process:
    runs.start(config, model.generator.fingerprint, examples, examples)
accelerator.wait_for_everyone()
prepared = model.prepare(examples)
Trainer(config, accelerator, model, prepared, prepared[:3]).fit()
leave(accelerator)
"""


def test_two_processes_equal_one(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    logs = []
    for processes, accumulation in ((1, 2), (2, 1)):
        out = tmp_path / str(processes)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc_per_node={processes}", str(tmp_path / "script.py"), str(out),
            str(accumulation),
        ]  # fmt: skip
        subprocess.run(command, env=environment, check=True, timeout=300)
        lines = (out / "run" / "metrics.jsonl").read_text().splitlines()
        logs.append([json.loads(line) for line in lines])
    for one, two in zip(*logs, strict=True):
        assert one.keys() == two.keys()
        for key in one.keys() - {"seconds"}:
            assert two[key] == pytest.approx(one[key], rel=1e-4), key
