"""The commands as a user types them, with a tiny language model over the real quick-start data."""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tiny
import yaml

from bisrqa import checkpoint, cli, partial, waterfall
from bisrqa.data import quickstart
from bisrqa.model import BiSRQA

ROOT = Path(__file__).parent.parent
SCRIPT = re.compile(r"\b(train|evaluate)\.py --")
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
RECIPES = sorted((ROOT / "configs/recipes").glob("*.yaml"))


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """Command-line words that make the quick-start config tiny."""
    folder = tmp_path_factory.mktemp("cli")
    tiny.save_llm(folder / "llm")
    return [
        f"--config={ROOT}/configs/quickstart.yaml", f"--generator.model={folder}/llm",
        f"--output_dir={folder}/runs", f"--cache_dir={folder}/cache", "--name=tiny",
        "--data.train_limit=8", "--retriever.top_k=3", "--prompt.max_prompt_tokens=100",
        "--generator.max_new_tokens=3", "--encoder.hidden=16", "--training.validation_limit=2",
        "--training.epochs=2", "--training.eval_every=1", "--evaluation.limit=6",
        "--evaluation.batch_tokens=400",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(words) -> Path:
    """A run trained and compared once by ``train``."""
    assert cli.main(["train", *words]) == 0
    return Path(words[2].split("=")[1]) / "tiny"


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf8").splitlines()]


def test_train_leaves_a_whole_run_and_one_table(run_dir, words, capsys):
    assert {p.name for p in run_dir.iterdir() if "step" not in p.name} == {
        "config.yaml", "run.json", "metrics.jsonl", "metrics.json", "best.txt", "eval-test",
    }  # fmt: skip
    assert checkpoint.best(run_dir).is_dir()
    table = json.loads((run_dir / "metrics.json").read_text())
    assert list(table) == ["untrained, question only", "untrained, with triples", "trained"]
    for row in table.values():
        assert row["n"] == 6
        assert {"rog.hit", "strict.f1", "seconds", "peak_memory_bytes"} <= row.keys()
        stages = ["link", "retrieve", "encode", "prefill", "decode"]
        assert list(row["latency"]) == stages
        assert all(seconds > 0 for seconds in row["latency"].values())
        assert row["prefill_tokens_per_second"] > row["decode_tokens_per_second"] > 0
    assert cli.main(["train", *words]) == 0  # finished: the same table, and nothing is done again
    shown = capsys.readouterr().out
    assert "  from    " in shown
    assert re.search(
        r"^\| trained +\| unseen entity \| +6 \|( +[\d.]+ \|){6}$", shown, re.MULTILINE
    )


def test_predictions_have_what_others_read_and_the_evidence(run_dir):
    asked = quickstart.load("test")[:6]
    rows = lines(run_dir / "eval-test/trained/predictions.jsonl")
    assert [r["id"] for r in rows] == [q.id for q in asked]
    for row, question in zip(rows, asked, strict=True):
        assert row["question"] == question.question
        assert row["ground_truth"] == list(question.answers)
        assert isinstance(row["prediction"], str)
        assert row["seconds"] > 0
        graph = {tuple(t) for t in question.graph}
        assert {tuple(e["triple"]) for e in row["evidence"]} <= graph
        scores = [e["score"] for e in row["evidence"]]
        assert scores == sorted(scores, reverse=True)
        assert any(e["in_prompt"] for e in row["evidence"])
        counts = [row["golds"][stage] for stage in ("all", *waterfall.STAGES)]
        assert counts == sorted(counts, reverse=True)


def test_answers_can_be_held_to_what_was_retrieved(run_dir, tmp_path):
    out = f"--out={tmp_path / 'held'}"
    held = ["--decode", "entities", "--generator.max_new_tokens=40", "--limit=4"]
    assert cli.main(["evaluate", "--checkpoint", str(run_dir), out, *held]) == 0
    rows = lines(tmp_path / "held/predictions.jsonl")
    assert len(rows) == 4
    for row, question in zip(rows, quickstart.load("test"), strict=False):
        names = {end for triple in question.graph for end in (triple.head, triple.tail)}
        assert row["prediction"]
        assert names.issuperset(row["prediction"].split("\n"))


def test_an_evaluation_shows_where_its_questions_are_lost(run_dir):
    folder = run_dir / "eval-test/trained"
    result = json.loads((folder / "metrics.json").read_text())
    assert sum(result["waterfall"].values()) == result["n"] == 6
    assert result["intervals"].keys() >= {"strict.f1", "rog.hit"}
    picture = folder / "waterfall.svg"
    assert "n = 6" in picture.read_text("utf8")
    picture.unlink()
    assert cli.main(["evaluate", "--checkpoint", str(run_dir)]) == 0  # complete, but for this
    assert picture.exists()


def test_score_prints_the_panel_of_any_predictions_file(run_dir, tmp_path, capsys):
    file = run_dir / "eval-test/trained/predictions.jsonl"
    assert cli.main(["score", str(file)]) == 0
    panel = json.loads(capsys.readouterr().out)
    expected = json.loads((run_dir / "metrics.json").read_text())["trained"]
    for name, part in panel.get(
        "by_hops", {}
    ).items():  # with where they were lost, in metrics.json
        assert part == {key: expected["by_hops"][name][key] for key in part}
    for name, part in panel["by_group"].items():
        assert part == {key: expected["groups"][name][key] for key in part}
    assert panel == panel | {k: expected[k] for k in panel if k not in ("by_hops", "by_group")}
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert cli.main(["score", str(tmp_path / "p.jsonl.gz")]) == 0
    assert json.loads(capsys.readouterr().out) == panel
    assert cli.main(["score", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err


def test_an_interrupted_evaluation_goes_on_and_answers_nothing_twice(
    run_dir, tmp_path, monkeypatch
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = ["evaluate", "--checkpoint", str(run_dir), "--limit", "5", "--out"]
    assert cli.main([*command, str(whole)]) == 0
    generate, asked = BiSRQA.generate, []

    def dying(model, batch):
        if asked:
            raise KeyboardInterrupt
        asked.extend(p.example.question.id for p in batch)
        return generate(model, batch)

    monkeypatch.setattr(BiSRQA, "generate", dying)
    assert cli.main([*command, str(broken)]) == 130
    assert not (broken / "predictions.jsonl").exists()
    with partial.file_of(broken).open("a") as stream:
        # A line that was cut off inside a character, and before it one whole line whose text
        # holds what other programs take for a line end.
        stream.write('{"id": "other", "prediction": "a\u2028b"}\n{"id": "quick-te')
    with partial.file_of(broken).open("ab") as raw:
        raw.write("é".encode()[:1])

    def recording(model, batch):
        asked.extend(p.example.question.id for p in batch)
        return generate(model, batch)

    monkeypatch.setattr(BiSRQA, "generate", recording)
    assert cli.main([*command, str(broken)]) == 0
    assert len(asked) == len(set(asked)) == 5

    def answers(folder):
        return [{**r, "seconds": 0, "latency": 0} for r in lines(folder / "predictions.jsonl")]

    assert answers(broken) == answers(whole)
    assert not partial.file_of(broken).exists()
    assert cli.main([*command, str(broken)]) == 0  # complete: not answered again
    assert len(asked) == 5


def test_other_choices_go_to_other_folders(run_dir):
    command = ["evaluate", "--checkpoint", str(run_dir)]
    assert cli.main([*command, "--limit", "1"]) == 0
    assert cli.main([*command, "--limit", "1", "--retriever.top_k", "2"]) == 0
    names = {folder.name for folder in run_dir.glob("eval-*")}
    assert {"eval-test", "eval-test-first-1"} < names
    assert any(name.startswith("eval-test-first-1-") for name in names)


def test_results_are_never_overwritten_by_another_evaluation(run_dir, tmp_path, capsys):
    command = ["evaluate", "--checkpoint", str(run_dir), "--out", str(tmp_path / "out"), "--limit"]
    assert cli.main([*command, "2"]) == 0
    before = (tmp_path / "out/predictions.jsonl").read_bytes()
    assert cli.main([*command, "3"]) == 1
    assert "results of another evaluation; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "out/predictions.jsonl").read_bytes() == before


def test_answers_do_not_depend_on_the_batches(run_dir, tmp_path):
    texts = []
    for size in ("1", "6"):
        command = ["evaluate", "--checkpoint", str(run_dir), "--out", str(tmp_path / size)]
        assert cli.main([*command, "--evaluation.batch_tokens", size]) == 0
        texts.append([r["prediction"] for r in lines(tmp_path / size / "predictions.jsonl")])
    assert texts[0] == texts[1]


def test_two_processes_answer_as_one_and_go_on_with_what_one_has_left(run_dir, tmp_path):
    words = ["--checkpoint", str(run_dir), "--limit", "5", "--evaluation.batch_tokens", "400"]
    assert cli.main(["evaluate", *words, "--out", str(tmp_path / "one")]) == 0
    one = lines(tmp_path / "one/predictions.jsonl")

    def without_times(records):
        return [{**r, "seconds": 0, "latency": 0} for r in records]

    identity = json.loads((tmp_path / "one/metrics.json").read_text())["identity"]
    (tmp_path / "broken").mkdir()
    for process, some in ((0, one[1:2]), (3, one[4:])):  # of a run in at least four processes
        partial.append(partial.file_of(tmp_path / "broken", process), identity, some)
    partial.file_of(tmp_path / "broken", 5).touch()  # died before it wrote anything
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("two", "broken"):
        out = tmp_path / name
        command = [*launch, str(ROOT / "evaluate.py"), *words, "--out", str(out)]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
        )
        assert done.stdout.count("results are in") == 1
        assert without_times(lines(out / "predictions.jsonl")) == without_times(one)
        assert {p.name for p in out.iterdir()} >= {"predictions.jsonl", "metrics.json"}
        assert not list(partial.files_in(out))
        scores = json.loads((out / "metrics.json").read_text())
        assert scores["processes"] == 2
        assert scores["identity"] == identity
    assert lines(out / "predictions.jsonl")[1] == one[1]  # not answered again


def test_the_command_line_overrides_the_checkpoints_config(run_dir, tmp_path):
    command = ["evaluate", "--checkpoint", str(run_dir), "--split", "validation", "--limit", "1"]
    assert cli.main([*command, "--retriever.top_k", "1", "--out", str(tmp_path / "o")]) == 0
    row = lines(tmp_path / "o/predictions.jsonl")[0]
    nodes = {name for e in row["evidence"] for name in (e["triple"][0], e["triple"][2])}
    assert row["id"] == quickstart.load("validation")[0].id
    assert len(nodes) <= 2


def test_training_and_validation_must_not_share_questions(words, tmp_path, capsys):
    row = {
        "id": "a",
        "question": "who",
        "answer": ["b"],
        "q_entity": ["c"],
        "graph": [["c", "r", "b"]],
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "all.parquet")
    settings = ["--data.source=rog", f"--data.path={tmp_path}/all.parquet", "--name=leak"]
    assert cli.main(["train", *words, *settings]) == 1
    assert "1 questions are both in train and in validation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "--checkpoint", "nowhere"], "--checkpoint nowhere does not exist"),
        (["evaluate", "--checkpoint", str(ROOT / "docs")], "is no checkpoint folder"),
        (["evaluate"], "give either --checkpoint DIR, or --untrained"),
        (["train", "--data.path", "no_such_folder"], "no_such_folder does not exist"),
        (["train"], "data.path is empty"),
        (["train", "--generator.model", "./no_such_model", "--data.source", "quickstart"],
         "./no_such_model"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(
    command, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    extra = ["--cache_dir", str(tmp_path / "cache"), "--data.train_limit", "2"]
    extra += ["--training.validation_limit", "2"]
    assert cli.main([*command, *extra]) == 1
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bisrqa:")]
    assert len(error) == 1
    assert message in error[0]
    assert not list(tmp_path.rglob("config.yaml"))  # nothing half-begun is left


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "--retriever.top", "5"], "retriever.top"),
        (["train", "--seed", "abc"], "seed"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["score"], "file"),
    ],
)
def test_unknown_and_ill_typed_settings_are_named(command, message, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(command)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_value_that_makes_no_sense_is_named(capsys):
    assert cli.main(["train", "--retriever.top_k", "0"]) == 1
    assert "retriever.top_k must be positive, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("file", [*CONFIGS, *RECIPES], ids=lambda file: file.stem)
def test_every_config_prints_its_plan(file, capsys):
    assert cli.main(["train", "--config", str(file), "--plan"]) == 0
    plan = capsys.readouterr().out
    assert plan.startswith(f"run       {file.stem} -> checkpoints/{file.stem}")


def test_there_are_the_configs_that_the_readme_names():
    text = (ROOT / "README.md").read_text("utf8")
    for name in {file.stem for file in CONFIGS}:
        assert f"`{name}`" in text
    text = (ROOT / "docs/recipes.md").read_text("utf8")
    for name in {file.stem for file in RECIPES}:
        assert f"`{name}`" in text


def commands_in(file: Path, pattern: re.Pattern[str] = SCRIPT) -> list[list[str]]:
    """Commands of blocks without a language; ``text`` marks those that need data of one's own."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", file.read_text("utf8"), re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if pattern.search(line)]


def test_commands_in_the_documents_are_understood(run_dir, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = set()
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for command in commands_in(document):
            program = "train.py" if "train.py" in command else "evaluate.py"
            rest = command[command.index(program) + 1 :]
            if program == "train.py":
                assert cli.train([*rest, "--plan"]) == 0, command
            else:
                capsys.readouterr()
                # --print_config parses everything and runs nothing.
                with pytest.raises(SystemExit) as caught:
                    cli.evaluate([*rest, "--print_config"])
                assert caught.value.code == 0, command
                assert yaml.safe_load(capsys.readouterr().out)
            found.add(program)
    assert {"train.py", "evaluate.py"} <= found


def test_a_limit_of_null_overrides_the_config_s(run_dir, tmp_path):
    command = ["evaluate", "--checkpoint", str(run_dir), "--evaluation.limit", "2"]
    assert cli.main([*command, "--out", str(tmp_path / "two")]) == 0
    assert len(lines(tmp_path / "two/predictions.jsonl")) == 2
    parser_words = [*command, "--limit", "null", "--topics", "off", "--print_config"]
    with pytest.raises(SystemExit):
        cli.main(parser_words)


def test_a_run_of_a_version_with_fewer_settings_is_recognised(run_dir, words, monkeypatch):
    """A setting that came later has its default there."""
    file = run_dir / "config.yaml"
    whole = file.read_text("utf8")
    known = yaml.safe_load(whole)
    del known["encoder"]["kind"], known["data"]["topics"]
    file.write_text(yaml.safe_dump(known, sort_keys=False))
    try:
        assert cli.main(["train", *words]) == 0
        assert cli.main(["train", *words, "--data.topics=off"]) == 1
    finally:
        file.write_text(whole)


def test_subcommands_in_the_documents_are_understood(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = set()
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for command in commands_in(document, re.compile(r"^(\.venv/bin/)?bisrqa ")):
            name, *rest = command[1:]
            found.add(name)
            capsys.readouterr()
            if name == "sweep":
                assert cli.main([name, *rest, "--plan"]) == 0, command
            elif name in ("retrieve", "train-retriever", "train-reranker", "plan", "prepare"):
                with pytest.raises(SystemExit) as caught:
                    cli.main([name, *rest, "--print_config"])
                assert caught.value.code == 0, command
            else:  # the words are right; whoever has trained has the files, but not there
                monkeypatch.chdir(tmp_path)
                assert cli.main([name, *rest]) == 1, command
                monkeypatch.chdir(ROOT)
                assert "No such file" in capsys.readouterr().err, command
    assert found == {
        "score", "compare", "retrieve", "sweep", "train-retriever", "train-reranker", "plan",
        "prepare",
    }  # fmt: skip
