"""Questions over texts, from file to score, with the real encoder and a tiny language model."""

import json
from pathlib import Path

import pytest
import tiny

from bisrqa import cli
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.events import SIGNALS


def article(title: str, *sentences: str) -> list:
    return [title, list(sentences)]


def row(number: int, town: str, **changes) -> dict:
    person, film = f"Nora Blix {number}", f"The Lamp {number}"
    return {
        "_id": f"q{number}",
        "question": f"Where was the director of {film} born?",
        "answer": town,
        "type": "bridge",
        "supporting_facts": [[film, 0], [person, 1]],
        "context": [
            article("Oslo", "Oslo is a city.", "It has a harbour."),
            article(person, f"{person} makes films.", f"She was born in {town}."),
            article(film, f"{film} is a film directed by {person}.", "It was shot in winter."),
        ],
    } | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    towns = ["Bergen", "Turku", "Malmö", "Odense", "Narva", "Tartu"]
    rows = [row(number, town) for number, town in enumerate(towns)]
    for split in ("train", "test"):
        text = "".join(json.dumps(r) + "\n" for r in rows)
        (tmp_path / f"{split}.jsonl").write_text(text, "utf8")
    return tmp_path


def words(folder: Path, *more: str) -> list[str]:
    return [
        f"--cache_dir={default_cache_dir()}", "--data.source=hotpotqa", f"--data.path={folder}",
        "--head=kg2rag", *more,
    ]  # fmt: skip


def retrieved(folder: Path, capsys, *more: str) -> dict:
    assert cli.main(["retrieve", *words(folder, *more)]) == 0
    return json.loads(capsys.readouterr().out)


def test_retrieve_then_train_a_ranker_then_retrieve_better(folder: Path, capsys, tmp_path):
    plain = retrieved(folder, capsys)
    assert (plain["n"], plain["support_ceiling"], plain["head"]) == (6, 1, "kg2rag")
    ranker = str(tmp_path / "ranker")
    assert cli.main(["train-reranker", *words(folder), "--out", ranker]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["questions"], report["passages"]) == (6, 36)
    assert report["loss"] < report["loss_before"]
    better = retrieved(folder, capsys, f"--kg2rag.ranker={ranker}")
    assert better["support_f1@2"] == 1 >= plain["support_f1@2"]
    again = str(tmp_path / "again")
    cli.main(["train-reranker", *words(folder), "--out", again])
    same = [Path(ranker), Path(again)]
    assert (
        same[0].joinpath("ranker.safetensors").read_bytes()
        == same[1].joinpath("ranker.safetensors").read_bytes()
    )


def test_train_answer_and_score(folder: Path, capsys, tmp_path):
    llm = tiny.save_llm(tmp_path / "llm")
    out = tmp_path / "runs"
    settings = [
        f"--generator.model={llm}", f"--output_dir={out}", "--name=texts",
        "--data.train_split=train[:4]", "--data.validation_split=train[4:]",
        "--training.max_steps=2", "--prompt.max_prompt_tokens=120", "--encoder.hidden=16",
        "--encoder.num_heads=2", "--generator.max_new_tokens=8", "--prompt.evidence=both",
    ]  # fmt: skip
    assert cli.main(["train", *words(folder, *settings)]) == 0
    assert cli.main(["evaluate", f"--checkpoint={out}/texts", "--limit=3"]) == 0
    predictions = next((out / "texts").rglob("predictions.jsonl"))
    records = [json.loads(line) for line in predictions.read_text("utf8").splitlines()]
    assert len(records) == 3
    for record in records:
        assert record["gold_supporting_facts"] == [
            [f"The Lamp {record['id'][1:]}", 0], [f"Nora Blix {record['id'][1:]}", 1]
        ]  # fmt: skip
        assert len(record["supporting_facts"]) == 3
        stated = [p for p in record["passages"] if p["in_prompt"]]
        assert record["passages"][0]["in_prompt"]  # the best
        assert 0 < len(stated) < len(record["passages"])
        assert not any(t["triple"][1] in ("titled", "mentions") for t in record["evidence"])
        assert record["golds"]["in_graph"] == 1
    capsys.readouterr()
    assert cli.main(["score", str(predictions)]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["hotpotqa.sp_recall"] > 0
    assert "hotpotqa.joint_f1" in score


def test_without_supporting_facts_there_is_nothing_to_learn(folder: Path, tmp_path, caplog):
    bare = row(9, "Oslo", supporting_facts=[])
    (folder / "train.jsonl").write_text(json.dumps(bare) + "\n", "utf8")
    out = ["--out", str(tmp_path / "r")]
    assert cli.main(["train-reranker", *words(folder), *out]) != 0
    assert not (tmp_path / "r").exists()


def test_gold_triples_are_scored_where_a_set_has_them(folder: Path, capsys, tmp_path):
    rows = [row(n, "Bergen", evidences=[[f"The Lamp {n}", "director", f"Nora Blix {n}"]])
            for n in range(2)]  # fmt: skip
    (folder / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf8")
    settings = [
        f"--generator.model={tiny.save_llm(tmp_path / 'llm')}", "--prompt.max_prompt_tokens=120",
        "--encoder.hidden=16", "--encoder.num_heads=2", "--generator.max_new_tokens=8",
        "--data.evidences=true",
    ]  # fmt: skip
    out = f"--out={tmp_path / 'out'}"
    assert cli.main(["evaluate", "--untrained", out, *words(folder, *settings)]) == 0
    capsys.readouterr()
    assert cli.main(["score", str(tmp_path / "out" / "predictions.jsonl")]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["2wiki.evi_f1"] == 100  # the gold triples are all that the graph has
    assert "2wiki.joint_f1" in score


def test_kg2rag_on_a_knowledge_graph(capsys, tmp_path):
    settings = [
        f"--cache_dir={default_cache_dir()}", "--data.source=quickstart", "--head=kg2rag",
        f"--generator.model={tiny.save_llm(tmp_path / 'llm')}", f"--output_dir={tmp_path}",
        "--name=graph", "--data.train_limit=4", "--training.max_steps=2", "--encoder.hidden=16",
        "--encoder.num_heads=2", "--generator.max_new_tokens=8", "--evaluation.limit=4",
        "--prompt.max_prompt_tokens=200",
    ]  # fmt: skip
    assert cli.main(["train", *settings]) == 0
    assert cli.main(["evaluate", f"--checkpoint={tmp_path}/graph", "--limit=3"]) == 0
    predictions = next((tmp_path / "graph").rglob("predictions.jsonl"))
    records = [json.loads(line) for line in predictions.read_text("utf8").splitlines()]
    assert len(records) == 3
    for record in records:
        best = [triple["score"] for triple in record["evidence"]]
        assert best
        assert all(0 < score <= 1 for score in best)
        assert any(triple["in_prompt"] for triple in record["evidence"])


def test_edrag_says_how_it_found_what_it_found(folder: Path, capsys, tmp_path):
    events = ["--head=edrag", "--extraction.what=events", "--extraction.method=syntax"]
    found = retrieved(folder, capsys, *events)
    assert found["found_by_graph"] == 1  # every film is named, and takes part in an event
    ranker = str(tmp_path / "ranker")
    assert cli.main(["train-reranker", *words(folder, *events), "--out", ranker]) == 0
    capsys.readouterr()
    better = retrieved(folder, capsys, *events, f"--edrag.ranker={ranker}")
    assert better["support_f1@2"] >= found["support_f1@2"]
    settings = [
        f"--generator.model={tiny.save_llm(tmp_path / 'llm')}", "--prompt.max_prompt_tokens=120",
        "--encoder.hidden=16", "--encoder.num_heads=2", "--generator.max_new_tokens=8",
    ]  # fmt: skip
    out = f"--out={tmp_path / 'out'}"
    assert cli.main(["evaluate", "--untrained", out, *words(folder, *events, *settings)]) == 0
    lines = (tmp_path / "out" / "predictions.jsonl").read_text("utf8").splitlines()
    assert len(lines) == 6
    for record in map(json.loads, lines):
        assert record["found_by"] == "graph"
        film = f"The Lamp {record['id'][1:]}"
        assert record["named"][film][1] == "exact"
        assert all(passage["signals"].keys() == {*SIGNALS} for passage in record["passages"])


def test_files_of_ones_own_become_a_corpus_in_the_cache(tmp_path, capsys):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "码头.txt").write_text(
        "7月5日，青禾公司在泰州启用新码头，市长周远出席了仪式。\n", "utf8"
    )
    (texts / "notes.md").write_text("# Weather\nIt rains in Bergen.\n", "utf8")
    asked = tmp_path / "q.jsonl"
    asked.write_text('{"question": "谁出席了青禾公司的仪式？", "answers": ["周远"]}\n', "utf8")
    command = [
        "retrieve", "--head=edrag", "--extraction.what=events", "--extraction.method=syntax",
        "--data.source=questions", f"--data.path={asked}", "--data.graph=corpus",
        f"--data.graph_path={texts}", f"--cache_dir={tmp_path / 'cache'}",
    ]  # fmt: skip
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["answer_in_passages@1"] == 1
    (made,) = (tmp_path / "cache" / "corpora").glob("texts-*")
    before = {f: f.stat().st_mtime_ns for f in made.rglob("*") if f.is_file()}
    assert cli.main(command) == 0  # and is not made again
    assert {f: f.stat().st_mtime_ns for f in made.rglob("*") if f.is_file()} == before
    (texts / "notes.md").write_text("# Weather\nThe sun shines.\n", "utf8")
    assert cli.main(command) == 0
    assert len(list((tmp_path / "cache" / "corpora").glob("texts-*"))) == 2
