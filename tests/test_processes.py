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
config = tiny.config(
    output_dir=sys.argv[1],
    training={"batch_size": 5, "batch_tokens": 400, "max_steps": 3, "epochs": 9,
              "eval_every": 2, "patience": None},
)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model, examples = tiny.model(config), tiny.examples()
if accelerator.is_main_process:
    runs.start(config, model.generator.fingerprint, examples, examples)
accelerator.wait_for_everyone()
prepared = model.prepare(examples)
trainer = Trainer(config, accelerator, model, prepared, prepared[:3])
if int(sys.argv[2]) < 3:  # stops behind a step that is saved
    class Stopped(Exception):
        pass

    update = trainer._update

    def stop():
        if trainer.step == int(sys.argv[2]):
            raise Stopped
        return update()

    trainer._update = stop
    try:
        trainer.fit()
    except Stopped:
        pass
else:
    trainer.fit()
del trainer
leave(accelerator)
"""


def train(script, out, processes, steps):
    """The log of a run, begun or gone on with in that many processes."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc_per_node={processes}", str(script), str(out), str(steps),
    ]  # fmt: skip
    subprocess.run(command, env=environment, check=True, timeout=300)
    lines = (out / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_two_processes_equal_one_also_when_they_go_on_with_its_run(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    one = train(script, tmp_path / "one", 1, 3)
    others = [train(script, tmp_path / "two", 2, 3)]
    assert len(train(script, tmp_path / "mixed", 1, 2)) < len(one)
    others.append(train(script, tmp_path / "mixed", 2, 3))  # its optimizer's state is of one
    for log in others:
        for row, other in zip(one, log, strict=True):
            assert row.keys() == other.keys()
            for key in row.keys() - {"seconds"}:
                assert other[key] == pytest.approx(row[key], rel=1e-4), key
