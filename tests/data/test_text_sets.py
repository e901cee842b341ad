"""Readers of HotpotQA, 2WikiMultihopQA and MuSiQue."""

import gzip
import json
import logging
from pathlib import Path

import pytest

from bisrqa import data
from bisrqa.config import DataConfig
from bisrqa.data.records import Triple
from bisrqa.data.tally import BadRow


def hotpot(number: int = 0, **changes) -> dict:
    return {
        "_id": f"h{number}",
        "question": "Where was the maker of Kodachrome born?",
        "answer": "Paris",
        "type": "bridge",
        "supporting_facts": [["Kodachrome", 0], ["Leopold", 1]],
        "context": [
            ["Kodachrome", ["Kodachrome was made by Leopold.", " It is a film."]],
            ["Leopold", ["Leopold was a musician.", "He was born in Paris."]],
        ],
    } | changes


def musique(number: int = 0, **changes) -> dict:
    paragraphs = [
        {"idx": 0, "title": "A", "paragraph_text": "A is here. It is old.", "is_supporting": True},
        {"idx": 1, "title": "A", "paragraph_text": "Another A.", "is_supporting": False},
    ]
    return {
        "id": f"m{number}", "question": "Where?", "answer": "here", "answer_aliases": ["there"],
        "answerable": True, "paragraphs": paragraphs, "question_decomposition": [{}, {}],
    } | changes  # fmt: skip


def write(folder: Path, name: str, rows: list) -> None:
    folder.mkdir(exist_ok=True)
    if name.removesuffix(".gz").endswith(".json"):
        text = json.dumps(rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    raw = text.encode()
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)


def config(folder: Path, source: str = "hotpotqa", **settings) -> DataConfig:
    return DataConfig(source=source, path=str(folder), **settings)


@pytest.mark.parametrize("name", ["dev.jsonl.gz", "dev.jsonl", "dev.json", "dev.json.gz"])
def test_every_kind_of_file_gives_the_same_question(tmp_path: Path, name):
    write(tmp_path, name, [hotpot()])
    (question,) = data.read(config(tmp_path), "dev")
    assert [c.words for c in question.chunks] == [
        "Kodachrome: Kodachrome was made by Leopold.", "Kodachrome: It is a film.",
        "Leopold: Leopold was a musician.", "Leopold: He was born in Paris.",
    ]  # fmt: skip
    assert question.support == (("Kodachrome", 0), ("Leopold", 1))
    assert (question.id, question.answers, question.group) == ("h0", ("Paris",), "bridge")
    (again,) = data.read(config(tmp_path / name), "whatever")
    assert again == question


def test_musique_is_marked_by_paragraph(tmp_path: Path, caplog):
    write(tmp_path, "dev.jsonl", [musique(), musique(1, answerable=False)])
    (question,) = data.read(config(tmp_path, "musique"), "dev")
    assert question.support == (("A", 0),)
    assert question.support_unit == "paragraph"
    assert question.aliases == ("there",)
    assert question.group == "2 hops"
    assert [(c.text, c.paragraph, c.start) for c in question.chunks] == [
        ("A is here.", 0, 0), ("It is old.", 0, 1), ("Another A.", 1, 0),
    ]  # fmt: skip
    assert "not answerable (left out): 1" in caplog.text


def test_windows(tmp_path: Path):
    write(tmp_path, "dev.jsonl", [hotpot()])
    (question,) = data.read(config(tmp_path, chunks="window", window=50), "dev")
    assert [(c.start, c.stop) for c in question.chunks] == [(0, 2), (0, 2)]


def test_parts_of_a_split(tmp_path: Path):
    write(tmp_path, "train.jsonl", [hotpot(i) for i in range(6)])
    ids = {
        part: [q.id for q in data.read(config(tmp_path), part, limit=limit)]
        for part, limit in (("train[:2]", None), ("train[4:]", None), ("train[1:5]", 2))
    }
    assert ids == {
        "train[:2]": ["h0", "h1"], "train[4:]": ["h4", "h5"], "train[1:5]": ["h1", "h2"]
    }  # fmt: skip


def test_gold_triples_of_2wiki_are_given_only_when_asked_for(tmp_path: Path):
    row = hotpot(
        evidences=[["Leopold", "born in", "Paris"], ["Kodachrome", "maker", "Leopold"],
                   ["X", "y", "Z"]]
    )  # fmt: skip
    write(tmp_path, "dev.jsonl", [row])
    assert next(data.read(config(tmp_path), "dev")).graph == ()
    question = next(data.read(config(tmp_path, evidences=True), "dev"))
    assert question.graph[0] == Triple("Leopold", "born in", "Paris")
    # by the supporting sentence about the head; of an unknown head by the first
    assert question.sources == (3, 0, 0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (hotpot(context="x"), "field context: expected a list"),
        (hotpot(context=[["T"]]), r"field context: paragraph 0: expected \[title"),
        (hotpot(context=[["T", ["s", 3]]]), "field context: paragraph 0"),
        (hotpot(supporting_facts=[["T", "0"]]), "field supporting_facts"),
        (hotpot(answer=" "), "field answer: expected text"),
        (hotpot(question=None), "field question: expected text"),
        (hotpot(_id=3), "field _id"),
        (hotpot(1, context=[]), "no texts"),
        ([1], "expected an object, got list"),
    ],
)
def test_a_bad_row_is_named_or_left_out(tmp_path: Path, caplog, row, said):
    write(tmp_path, "dev.jsonl", [hotpot(), row])
    with pytest.raises(BadRow, match=rf"dev\.jsonl:2: {said}"):
        list(data.read(config(tmp_path), "dev"))
    lenient = config(tmp_path, on_bad_row="skip", on_empty_graph="skip")
    assert [q.id for q in data.read(lenient, "dev")] == ["h0"]
    assert "dev.jsonl:2" in caplog.text


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (musique(paragraphs=3), "field paragraphs: expected a list"),
        (musique(paragraphs=[{"title": "A"}]), "field paragraphs: 0: expected title"),
        (musique(answer_aliases=[1]), "field answer_aliases"),
    ],
)
def test_a_bad_row_of_musique_is_named(tmp_path: Path, row, said):
    write(tmp_path, "dev.jsonl", [row])
    with pytest.raises(BadRow, match=said):
        list(data.read(config(tmp_path, "musique"), "dev"))


def test_what_is_odd_is_counted(tmp_path: Path, caplog):
    twice = [["A", ["x."]], ["A", ["y."]]]
    write(tmp_path, "dev.jsonl", [hotpot(context=twice)])
    caplog.set_level(logging.WARNING)
    list(data.read(config(tmp_path), "dev"))
    assert "title that repeats: 1" in caplog.text
    assert "without all of their supporting paragraphs: 1" in caplog.text


def test_files_that_cannot_be_read(tmp_path: Path):
    write(tmp_path, "dev.jsonl", [hotpot(), hotpot()])
    with pytest.raises(BadRow, match="already used by"):
        list(data.read(config(tmp_path), "dev"))
    with pytest.raises(ValueError, match=r"no split 'test' \(it holds dev.jsonl\)"):
        list(data.read(config(tmp_path), "test"))
    with pytest.raises(ValueError, match="does not exist"):
        list(data.read(config(tmp_path / "absent"), "test"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 9)[:-9])
    (tmp_path / "broken.jsonl").write_text('{"a": 1\n')
    (tmp_path / "object.json").write_text('{"a": 1}')
    for split, said in (("cut", "not readable"), ("broken", "broken JSON"),
                        ("object", "expected a list of rows")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            list(data.read(config(tmp_path, on_bad_row="skip", on_empty_graph="keep"), split))


@pytest.mark.parametrize(
    ("folder", "source", "split", "rows"),
    [("hotpotqa_mini", "hotpotqa", "dev_distractor", 300), ("musique_mini", "musique", "dev", 150),
     ("2wiki_mini", "hotpotqa", "dev", 400), ("hotpotqa_mini", "hotpotqa", "dev_fullwiki", 920)],
)  # fmt: skip
def test_real_samples(sample_data: Path, folder, source, split, rows):
    questions = list(data.read(config(sample_data / folder, source), split))
    assert len(questions) == rows
    for question in questions:
        paragraphs = {(c.title, c.paragraph) for c in question.chunks}
        sentences = {(c.title, s) for c in question.chunks for s in range(c.start, c.stop)}
        known = paragraphs if source == "musique" else sentences
        if split != "dev_fullwiki":  # whose paragraphs were retrieved
            assert set(question.support) <= known, question.id
        assert question.support
