"""Two processes that share a batch give the numbers of one, with a whole model each or with shards.

Processes start slowly: each launch below trains many small runs, one after the other.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from bisrqa import checkpoint

ROOT = Path(__file__).parent.parent
SCRIPT = """
import os, sys, warnings
import tiny
import torch
from accelerate import Accelerator
from bisrqa import checkpoint, runs, training
from bisrqa.training import Trainer, leave

warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
torch.set_num_threads(1)
out, *jobs = sys.argv[1:]
accelerator = Accelerator(cpu=True)


class Stopped(Exception):
    pass


for job in jobs:
    name, steps, *words = job.split(",")
    # What `accelerate launch` makes of a file such as configs/accelerate/fsdp2.yaml.
    os.environ |= {"FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
                   "ACCELERATE_USE_FSDP": str("sharded" in words).lower()}
    config = tiny.config(
        name=name,
        output_dir=out,
        training={"batch_size": 5, "batch_tokens": 400, "max_steps": 3, "epochs": 9,
                  "eval_every": 2, "patience": None, "gradient_checkpointing": "again" in words},
        generator={"num_beams": 2 if "beams" in words else 1,
                   "mode": "full" if "full" in words else "lora"},
    )
    torch.manual_seed(0)
    model, examples = tiny.model(config), tiny.examples()
    if "mixed" in words:  # as on a GPU: the frozen base is narrower than what is trained
        for weight in model.generator.parameters():
            weight.data = weight.data if weight.requires_grad else weight.data.bfloat16()
    if "again" in words:
        model.generator.checkpoint_activations()
    if accelerator.is_main_process:
        runs.start(config, model.generator.fingerprint, examples, examples)
    accelerator.wait_for_everyone()
    prepared = model.prepare(examples)
    # With one question to validate on, a second process has none.
    valid = prepared[: 1 if "beams" in words else 3]
    trainer = Trainer(config, accelerator, model, prepared, valid)
    assert trainer.spread.sharded == ("sharded" in words)
    if "nan" in words and accelerator.process_index == 1:
        model.encoder.register_forward_hook(
            lambda _, __, fusion: fusion._replace(soft_tokens=fusion.soft_tokens * torch.nan)
        )
    update = trainer._update

    def stop():
        if trainer.step == int(steps):
            raise Stopped
        return update()

    trainer._update = stop
    try:
        trainer.fit()
    except Stopped:
        pass
    except FloatingPointError as error:
        assert "nan" in words
        if accelerator.is_main_process:
            (config.run_dir / "error.txt").write_text(str(error))
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    del trainer
leave(accelerator)
"""
KINDS = {
    "adapters": "",
    "all_weights": ",full,again",
    "two_types": ",mixed,beams",
}  # activations made again; adapters in float32 in a bfloat16 base; beams, one question to validate


def launch(folder, processes, jobs):
    """Train runs, each as ``name,steps,words``, in that many processes."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc_per_node={processes}", str(script), str(folder), *jobs,
    ]  # fmt: skip
    subprocess.run(command, env=environment, check=True, timeout=300)


def log(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of one process, of two, and begun by the one and gone on with by the other."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = KINDS.items()
    begun = [f"{kind}-begun_by_one,2{words}" for kind, words in kinds]
    launch(folder, 1, [*(f"{k}-one,3{w}" for k, w in kinds), *begun, "copies-begun_by_one,2"])
    assert len(log(folder / "adapters-begun_by_one")) < len(log(folder / "adapters-one"))
    launch(folder, 2, [
        "copies-two,3", "copies-begun_by_one,3",
        *(f"{k}-two,3{w},sharded" for k, w in kinds),
        *(f"{k}-begun_by_one,3{w},sharded" for k, w in kinds),
        *(f"{k}-begun_by_two,2{w},sharded" for k, w in kinds),
        "broken,3,nan,sharded",
    ])  # fmt: skip
    launch(folder, 1, [f"{k}-begun_by_two,3{w}" for k, w in kinds])
    return folder


def alike(one, other, rel):
    for row, like in zip(log(one), log(other), strict=True):
        assert row.keys() == like.keys()
        for key in row.keys() - {"seconds"}:
            assert like[key] == pytest.approx(row[key], rel=rel), (key, row["step"])


@pytest.mark.parametrize("how", ["two", "begun_by_one"])
def test_two_processes_equal_one_also_when_they_go_on_with_its_run(trained, how):
    alike(trained / "adapters-one", trained / f"copies-{how}", 1e-4)


@pytest.mark.parametrize("how", ["two", "begun_by_one", "begun_by_two"])
@pytest.mark.parametrize("kind", KINDS)
def test_shards_equal_one_process_whoever_begins_and_goes_on(trained, kind, how):
    alike(trained / f"{kind}-one", trained / f"{kind}-{how}", 2e-2 if kind == "two_types" else 1e-4)


@pytest.mark.parametrize("kind", ["adapters", "all_weights"])
def test_a_checkpoint_of_shards_is_as_any_other(trained, kind):
    settings = tiny.config(generator={"mode": "full" if kind == "all_weights" else "lora"})
    saved = [checkpoint.steps(trained / f"{kind}-{how}")[-1] for how in ("one", "two")]
    one, other = (sorted(p.relative_to(f) for p in f.rglob("*")) for f in saved)
    assert one == other
    losses, replies = [], []
    for folder in saved:
        model = tiny.model(settings)
        batch = model.prepare(tiny.examples())
        before = model(batch, model.targets(batch)).item()
        assert checkpoint.load(folder, model, base_name="tiny") == 3
        losses.append(model(batch, model.targets(batch)).item())
        replies.append(model.generate(batch).texts)
        assert losses[-1] < before
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert replies[0] == replies[1]


def test_a_loss_that_is_not_finite_in_one_process_stops_all_with_their_weights(trained):
    error = (trained / "broken" / "error.txt").read_text()
    assert error.startswith("the loss of step 1 is nan (questions q")
    (saved,) = checkpoint.steps(trained / "broken" / "failed")
    model = tiny.model(tiny.config())
    checkpoint.load(saved, model, base_name="tiny")
    assert all(torch.isfinite(p).all() for p in model.parameters())
