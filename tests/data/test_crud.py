"""CRUD-RAG's files: articles, near-copies, questions."""

import gzip
import json
from pathlib import Path

import pytest

from bisrqa import config as configs
from bisrqa import data
from bisrqa.config import DataConfig
from bisrqa.data import crud
from bisrqa.data.tally import Tally

LONG = "青禾公司七月五日在泰州启用新码头，市长周远出席了仪式并且讲话，会上发放了纪念品五百份。"


def write(folder: Path, name: str, rows: list[dict]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress(lines.encode()))
    else:
        (folder / name).write_text(lines, "utf8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "events.jsonl.gz", [
        {"ID": "a", "title": "t", "text": f"2023-07-06 10:02，正文：{LONG}"},
        {"ID": "b", "title": "t", "text": "记者：李四，正文：白鹭集团在南京招聘，今天开始报名。"},
    ])  # fmt: skip
    write(tmp_path, "corpus.jsonl", [
        {"doc_id": "copy", "text": f"2023-07-07，正文：本报讯 {LONG}特此报道。"},
        {"doc_id": "new", "text": "没有开头标记的另一篇完全不同的文章，讲的是天气。"},
        {"doc_id": "empty", "text": "2023-07-07，正文： "},
    ])  # fmt: skip
    write(tmp_path, "questeval.jsonl", [
        {"ID": "a", "task": "questanswer_1doc", "question": ["谁出席？", "几份？", "为何？", "多"],
         "answers": ["周远", "六百份", "无法推断"]},
        {"ID": "b", "task": "questanswer_2docs", "question": ["在哪里招聘？"], "answers": ["南京"]},
        {"ID": "gone", "task": "questanswer_2docs", "question": ["?"], "answers": ["x"]},
    ])  # fmt: skip
    return tmp_path


def test_near_copies_are_left_out_and_counted(folder):
    tally = Tally()
    found = list(crud.passages(folder, tally))
    assert [p.id for p in found] == ["a", "b", "new"]
    assert [p.written for p in found] == ["2023-07-06", "", ""]
    assert found[0].sentences == (LONG,)
    assert tally.counts["near-copies of another article (left out)"] == 1
    assert tally.counts["articles without text (left out)"] == 1
    assert "copy of a" in str(tally.lines())


def config(folder: Path, **changes) -> DataConfig:
    values = {"source": "crud", "path": str(folder), "graph": "corpus", "graph_path": str(folder)}
    return DataConfig(**(values | changes))


def test_questions_are_those_whose_answer_stands_in_their_article(folder, caplog):
    found = list(data.read(config(folder), "test"))
    assert [(q.id, q.answers, q.group) for q in found] == [
        ("1doc/a/0", ("周远",), "questanswer_1doc"),
        ("2docs/b/0", ("南京",), "questanswer_2docs"),
    ]
    assert found[0].support == (("a", 0),)
    assert found[0].support_unit == "passage"
    for said in ("article is not there", "does not stand", "more questions than answers"):
        assert said in caplog.text
    assert [q.id for q in data.read(config(folder), "2docs")] == ["2docs/b/0"]


def test_a_file_of_questions_is_asked_over_the_texts_of_the_config(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(other, "hidden.jsonl", [
        {"ID": "a", "task": "questanswer_3docs", "question": ["谁出席？"], "answers": ["周远"]},
    ])  # fmt: skip
    found = list(data.read(config(folder, path=str(other / "hidden.jsonl")), "test"))
    assert [q.id for q in found] == ["3docs/a/0"]


def test_the_official_layout(tmp_path):
    merged = {
        "questanswer_2docs": [
            {"ID": "a", "event": "e", "news1": f"正文：{LONG}", "news2": "另一篇文章，说的是南京。",
             "questions": "谁出席？", "answers": "周远"},
        ],
        "event_summary": [{"ID": "z", "text": "x"}],
    }  # fmt: skip
    (tmp_path / "split_merged.json").write_text(json.dumps(merged, ensure_ascii=False), "utf8")
    docs = tmp_path / "documents_dup"
    docs.mkdir()
    (docs / "part_1").write_text("2023-08-01，正文：天气很好，适合外出。\n\n今天下雨了。\n", "utf8")
    stored = {"a": {"question": ["谁出席？"], "answers": ["周远"]}}
    (tmp_path / "QuestAnswer2Docs_quest_gt_save.json").write_text(json.dumps(stored), "utf8")
    found = [p.id for p in crud.passages(tmp_path, Tally())]
    assert found == ["a", "a/2", "part_1#1", "part_1#3"]
    asked = list(data.read(config(tmp_path), "test"))
    assert [(q.id, q.answers) for q in asked] == [("2docs/a/0", ("周远",))]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("events.jsonl.gz", {"ID": "a"}, r"events\.jsonl\.gz:1: field text"),
        ("corpus.jsonl", {"doc_id": 3, "text": "x"}, r"corpus\.jsonl:1: field doc_id"),
        ("questeval.jsonl", {"ID": "a", "task": "questanswer_1doc", "question": "?",
                             "answers": []}, r"questeval\.jsonl:1: fields question"),
        ("questeval.jsonl", {"ID": "a", "task": "questanswer_1doc", "question": [1],
                             "answers": [2]}, r"questeval\.jsonl:1: question 0"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named(folder, name, row, message):
    write(folder, name, [row])
    with pytest.raises(ValueError, match=message):
        list(data.read(config(folder), "test"))


def test_broken_files_and_splits_are_named(folder):
    (folder / "questeval.jsonl").write_text("{\n", "utf8")
    with pytest.raises(ValueError, match=r"questeval\.jsonl:1: broken JSON"):
        list(data.read(config(folder), "test"))
    with pytest.raises(ValueError, match="no split 'train'"):
        list(data.read(config(folder), "train"))
    (folder / "questeval.jsonl").unlink()
    with pytest.raises(ValueError, match="has neither questeval"):
        list(data.read(config(folder), "test"))


def test_crud_is_asked_over_a_corpus():
    with pytest.raises(ValueError, match=r"data\.graph must be corpus"):
        configs.DataConfig(source="crud", path="x")


def test_the_sample_has_what_its_page_says(sample_data):
    found = list(data.read(config(sample_data / "crud_mini"), "test"))
    counts = {g: sum(q.group == g for q in found) for g in {q.group for q in found}}
    assert counts == {"questanswer_1doc": 687, "questanswer_2docs": 303, "questanswer_3docs": 314}
