"""What a run will need, beside what it took."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from bisrqa import cli, planning
from bisrqa.config import load

ROOT = Path(__file__).parent.parent
QUICK = str(ROOT / "configs/quickstart.yaml")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[str]:
    """Words for a tiny language model over the quick-start data."""
    folder = tmp_path_factory.mktemp("plan")
    tiny.save_llm(folder / "llm")
    return [f"--generator.model={folder}/llm", f"--cache_dir={folder}/cache"]


def test_parameters_are_counted_and_no_weights_are_read(small) -> None:
    folder = Path(small[0].split("=")[1])
    (folder / "model.safetensors").rename(folder / "away")
    try:
        found = planning.plan(load(QUICK, small))
    finally:
        (folder / "away").rename(folder / "model.safetensors")
    assert found.parameters == sum(p.numel() for p in tiny.llm().parameters())
    assert found.weights == 4 * found.parameters
    frozen = planning.plan(load(QUICK, [*small, "--generator.mode=frozen"]))
    assert 0 < frozen.trained < found.trained
    assert found.steps == 50


@pytest.mark.parametrize(
    "change",
    [
        "--training.gradient_checkpointing=true",
        "--training.batch_tokens=64",
        "--evaluation.batch_tokens=512",
        "--generator.mode=frozen",
    ],
)
def test_what_takes_less_is_said_to_take_less(small, change: str) -> None:
    words = [*small, "--training.batch_tokens=4096", "--training.batch_size=64"]
    words += ["--training.validation_limit=1", "--evaluation.batch_tokens=65536"]
    more, less = (planning.plan(load(QUICK, [*words, *some])) for some in ([], [change]))
    assert (less.training, less.answering) <= (more.training, more.answering)
    assert (less.training, less.answering) != (more.training, more.answering)


def test_advice_is_what_one_gets_by_following_it() -> None:
    words = ["--training.batch_tokens=8192", "--training.batch_size=64"]
    found = planning.plan(load(QUICK, words))
    assert found.advice
    assert all(step.memory < found.memory for step in found.advice)
    for step in found.advice:
        key, value = step.change.split(" ")
        followed = planning.plan(load(QUICK, [*words, f"--{key}={value}"]))
        assert followed.memory == pytest.approx(step.memory)


def test_a_gpu_has_room_or_not(capsys: pytest.CaptureFixture[str], small) -> None:
    assert cli.main(["plan", "--config", QUICK, "--gpu", "t4", *small]) == 0
    assert "of 15 GB at most  fits" in capsys.readouterr().out
    assert cli.main(["plan", "--config", QUICK, "--gpu", "t4", "--json", *small]) == 0
    assert json.loads(capsys.readouterr().out)["room"] == 15e9
    assert cli.main(["plan", "--config", QUICK, "--gpu", "abacus", *small]) == 1
    assert "--gpu abacus: unknown; one of t4, " in capsys.readouterr().err


def test_memory_is_within_a_fifth_of_what_a_run_with_a_real_model_takes(tmp_path: Path) -> None:
    words = [
        "--training.max_steps=2", "--training.eval_every=2", "--training.validation_limit=8",
        "--data.train_limit=40", "--evaluation.after_training=none",
    ]  # fmt: skip
    command = [sys.executable, str(ROOT / "train.py"), "--config", QUICK, *words]
    subprocess.run(
        [*command, "--output_dir", str(tmp_path), "--name", "run"], check=True, cwd=ROOT,
        capture_output=True,
    )  # fmt: skip
    took = json.loads((tmp_path / "run/run.json").read_text())["finished"]
    found = planning.plan(load(QUICK, words))
    assert found.steps == took["steps"]
    assert found.training == pytest.approx(took["peak_memory_bytes"], rel=0.2)
    step = next((tmp_path / "run").glob("step-*"))
    size = sum(file.stat().st_size for file in step.rglob("*") if file.is_file())
    assert found.disk == pytest.approx(2 * size, rel=0.2)


def test_adapters_on_all_linear_layers_are_counted(small) -> None:
    """Of this model the usual targets are all its linear layers; fewer are fewer."""
    usual, everywhere, fewer = (
        planning.plan(load(QUICK, [*small, *some]))
        for some in (
            [],
            ["--generator.lora_targets=all-linear"],
            ["--generator.lora_targets=[q_proj]"],
        )
    )
    assert everywhere.trained == usual.trained > fewer.trained
