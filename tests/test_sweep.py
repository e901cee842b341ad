"""Many runs, resumed and put into one table, with a tiny language model on the quick-start data."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import yaml

from bisrqa import cli, sweep, training
from bisrqa import config as configs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A config that makes every run a matter of seconds."""
    folder = tmp_path_factory.mktemp("sweep")
    tiny.save_llm(folder / "llm")
    settings = configs.to_dict(
        configs.load(ROOT / "configs/quickstart.yaml", [
            f"--generator.model={folder}/llm", f"--output_dir={folder}/runs",
            f"--cache_dir={folder}/cache", "--data.train_limit=4", "--retriever.top_k=3",
            "--generator.max_new_tokens=3", "--prompt.max_prompt_tokens=60",
            "--prompt.max_answer_tokens=8", "--encoder.hidden=16", "--encoder.layers=1",
            "--training.validation_limit=1", "--training.max_steps=1", "--evaluation.limit=4",
        ])
    )  # fmt: skip
    (folder / "base.yaml").write_text(yaml.safe_dump(settings))
    return folder


def write(base: Path, name: str, **content) -> Path:
    file = base / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"config": str(base / "base.yaml"), **content}, sort_keys=False))
    return file


@pytest.fixture(scope="module")
def done(base: Path) -> tuple[Path, Path]:
    """A sweep of three arms and two seeds: its file, and its folder."""
    file = write(
        base,
        "arms",
        seeds=[0, 1],
        arms={
            "BiS-RQA": {},
            "in any order": {"of": "BiS-RQA", "prompt.order": "random"},
            "untrained": {"untrained": True, "seeds": [0]},
        },
    )
    assert cli.main(["sweep", str(file)]) == 0
    return file, base / "runs" / "sweep_arms"


def test_every_arm_and_seed_is_run_and_stands_in_the_table(done, capsys):
    _, folder = done
    rows = json.loads((folder / "results.json").read_text())["runs"]
    assert [(r["arm"], r["seed"]) for r in rows] == [
        ("BiS-RQA", 0), ("in any order", 0), ("untrained", 0), ("BiS-RQA", 1), ("in any order", 1),
    ]  # fmt: skip
    assert all(r["scores"]["n"] == 4 for r in rows)
    table = (folder / "table.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        "BiS-RQA", "in any order", "untrained",
    ]  # fmt: skip
    assert "±" in table
    assert {p.name for p in folder.iterdir() if p.is_dir()} == {
        "BiS-RQA-seed0", "BiS-RQA-seed1", "untrained-seed0",
    }  # fmt: skip  # an arm ``of`` another trains nothing


def test_what_is_done_is_not_done_again_and_what_is_missing_is(done, monkeypatch):
    file, folder = done
    before = (folder / "results.json").read_text()

    def never(*_, **__):
        raise AssertionError("trained again")

    with monkeypatch.context() as patched:
        patched.setattr(training.Trainer, "fit", never)
        assert cli.main(["sweep", str(file)]) == 0
    assert (folder / "results.json").read_text() == before
    shutil.rmtree(folder / "BiS-RQA-seed1")
    assert cli.main(["sweep", str(file)]) == 0
    again = json.loads((folder / "results.json").read_text())["runs"]
    for one, other in zip(json.loads(before)["runs"], again, strict=True):
        assert one["scores"]["strict.f1"] == other["scores"]["strict.f1"]


def test_a_grid_from_the_command_line_is_every_combination_with_a_plot(base, capsys):
    words = ["sweep", "--config", str(base / "base.yaml"), "--name", "grid"]
    words += ["--grid", "retriever.top_k=1,3", "--grid", "prompt.soft_prompt=true,false"]
    assert cli.main(words) == 0
    folder = base / "runs" / "grid"
    rows = json.loads((folder / "results.json").read_text())["runs"]
    assert [list(r["point"].values()) for r in rows] == [
        [1, True], [1, False], [3, True], [3, False],
    ]  # fmt: skip
    shown = capsys.readouterr().out
    assert "run, top_k=3, soft_prompt=False" in shown
    for key in ("retriever.top_k", "prompt.soft_prompt"):
        assert (folder / f"{key}.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_cannot_be_is_written_down_and_the_others_go_on(base, capsys):
    arms = {"good": {}, "bad": {"data.train_split": "nowhere"}}
    assert cli.main(["sweep", str(write(base, "bad", arms=arms))]) == 1
    rows = json.loads((base / "runs/sweep_bad/results.json").read_text())["runs"]
    assert ["scores" in row for row in rows] == [True, False]
    assert "split must be one of" in rows[1]["failed"]
    shown = capsys.readouterr()
    assert "failed: bad, seed 0: split must be" in shown.out
    assert "1 of 2 runs failed" in shown.err.splitlines()[-1]


def test_a_plan_runs_nothing(base, capsys):
    file = write(base, "plan", grid={"retriever.top_k": [1, 2]})
    assert cli.main(["sweep", str(file), "--plan", "--set", "seed=3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert not (base / "runs/sweep_plan").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"arms": {"a": {"retriever.top": 3}}}, "retriever.top"),
        ({"arms": {"a": {"of": "b"}}}, "of 'b', which is no trained arm"),
        ({"arms": {"a": {"untrained": True}, "b": {"of": "a"}}}, "no trained arm"),
        ({"grid": ["retriever.top_k"]}, "grid must be a mapping"),
        ({"seeds": ["x"]}, "seeds must be a list of whole numbers"),
        ({"seed": [1]}, "unknown key 'seed'"),
        ({"grid": {"retriever.top_k": 3}}, "retriever.top_k must have a list of values"),
        ({"grid": {"retriever.top_k": []}}, "retriever.top_k must have a list of values"),
        ({"arms": {"a": 5}}, "arm 'a' must be a mapping"),
        ({"arms": {}}, "has no arms"),
        ({"arms": {"a b": {}, "a/b": {}}}, "would share a folder"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(base, content, message, capsys):
    assert cli.main(["sweep", str(write(base, "mistake", **content))]) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (base / "runs/sweep_mistake").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["--config", "x", "--grid", "retriever.top_k"], "expected KEY=VALUE"),
        (["--config", "x", "--grid", "retriever.top_k="], "must have a list of values"),
        (["--config", "x", "--seeds", ""], "has no seeds"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, message, capsys):
    assert cli.main(["sweep", *words]) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_mean_and_deviation_are_over_seeds():
    assert sweep.spread([1.0, 3.0]) == "2.0 ± 1.4"
    assert sweep.spread([1.25], digits=2) == "1.25"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs/sweeps").glob("*.yaml")), ids=lambda f: f.stem
)
def test_the_sweeps_that_come_along_can_be(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert len(sweep.cells(sweep.read(file))) >= 6
