"""The reader of RoG's rows: where they may come from, and what is said of rows that are odd."""

import json
import logging
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from bisrqa import data
from bisrqa.config import DataConfig
from bisrqa.data import quickstart, rog
from bisrqa.data.records import Question, Triple, is_bare_id
from bisrqa.data.rog import read
from bisrqa.data.tally import BadRow, Tally

LONG = [[f"n{i}", "next", f"n{i + 1}"] for i in range(10_000)]


def row(number: int = 0, **changes) -> dict:
    """A sound row, with some columns changed."""
    return {
        "id": f"q{number}",
        "question": "where is a?",
        "answer": ["b"],
        "q_entity": ["a"],
        "graph": [["a", "in", "b"], ["b", "in", "m.0x1"]],
        "choices": [],  # RoG's own sets have it
    } | changes


def write(file: Path, *rows: dict, **options) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file, **options)
    return file


def config(path: Path | str, **changes) -> DataConfig:
    return DataConfig(path=str(path), **changes)


def ids(path: Path | str, split: str = "test", **changes) -> list[str]:
    return [question.id for question in read(config(path, **changes), split)]


def findings(path: Path | str, **changes) -> dict[str, int]:
    tally = Tally()
    list(read(config(path, **changes), "test", tally))
    return dict(tally.counts)


@pytest.fixture
def hub(monkeypatch) -> SimpleNamespace:
    """Stands in for the hub: gives ``hub.rows`` and notes what was asked of it."""
    hub = SimpleNamespace(rows=[], asked=[])

    def load_dataset(*args, **kwargs):
        hub.asked.append((args, kwargs))
        return datasets.Dataset.from_list(hub.rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return hub


def test_a_row_becomes_a_question(tmp_path):
    changes = {"question": " Wo? ", "answer": ["b", "Zoë", "b"], "q_entity": ["a", "中国"]}
    (question,) = read(config(write(tmp_path / "test.parquet", row(**changes))), "test")
    assert question == Question(
        id="q0",
        question=" Wo? ",
        answers=("b", "Zoë", "b"),
        topics=("a", "中国"),
        graph=(Triple("a", "in", "b"), Triple("b", "in", "m.0x1")),
    )


def test_folder_file_shards_and_hub_give_the_same_records(tmp_path, hub):
    hub.rows = [row(i, graph=[["a", f"r{i}", "b"]]) for i in range(150)]
    folder = write(tmp_path / "folder" / "test.parquet", *hub.rows).parent
    write(folder / "test_unchecked.parquet", row(-1))  # another split
    shards = tmp_path / "shards"
    for part in range(3):
        name = f"test-{part:05d}-of-00003.parquet"
        write(shards / "data" / name, *hub.rows[part * 50 : part * 50 + 50])
    write(shards / "data" / "train-00000-of-00001.parquet", row(-1))
    sources = folder, folder / "test.parquet", shards, "rmanluo/RoG-webqsp"
    records = [list(read(config(source), "test")) for source in sources]
    assert [question.id for question in records[0]] == [f"q{i}" for i in range(150)]
    assert records[0][7].graph == (Triple("a", "r7", "b"),)
    assert records[1:] == records[:1] * 3


def test_what_is_asked_of_the_hub(tmp_path, hub):
    hub.rows = [row(0), row(1)]
    assert ids("owner/name", "train", revision="abc") == ["q0", "q1"]
    resplit = tmp_path / "resplit.json"
    resplit.write_text('{"train": ["q1"]}')
    assert ids("owner/name", "train", resplit=str(resplit)) == ["q1"]
    assert hub.asked == [
        (("owner/name",), {"split": "train", "revision": "abc"}),
        (("owner/name",), {"split": "all", "revision": None}),
    ]
    hub.rows = [row(0), row(1, answer=[])]
    with pytest.raises(BadRow, match=r"^owner/name test row 1: field answer: no answers"):
        ids("owner/name")
    hub.rows = [{"id": "q0", "question": "who?"}]
    with pytest.raises(ValueError, match=r"^owner/name: missing column answer, q_entity, graph"):
        ids("owner/name")


def test_a_hub_that_does_not_answer(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match=r"data\.path: no folder owner/name here.* no route"):
        ids("owner/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"owner/name is no folder here.*'bisrqa\[hub\]'"):
        ids("owner/name")


def test_resplit_takes_rows_from_all_files_in_file_order(tmp_path):
    write(tmp_path / "a.parquet", row(0), row(1))
    write(tmp_path / "b.parquet", row(2), row(3, answer=[]))
    resplit = tmp_path / "resplit.json"
    splits = {"train": ["q2", "q0"], "test": ["q1"], "lost": ["q1", "q8", "q9"], "bad": ["q3"]}
    resplit.write_text(json.dumps(splits))
    assert ids(tmp_path, "train", resplit=str(resplit)) == ["q0", "q2"]
    assert ids(tmp_path, "test", resplit=str(resplit)) == ["q1"]
    # Left out as asked, so not lacking.
    assert ids(tmp_path, "bad", resplit=str(resplit), on_bad_row="skip") == []
    with pytest.raises(ValueError, match=r"'lost' names 2 ids that the data lacks, e\.g\. 'q8'"):
        ids(tmp_path, "lost", resplit=str(resplit))
    with pytest.raises(ValueError, match=r"data\.resplit: .*resplit\.json has no split 'dev'"):
        ids(tmp_path, "dev", resplit=str(resplit))
    # A row whose id is no text is in no split.
    listed = write(tmp_path / "listed.parquet", row(id=["q0"]))
    with pytest.raises(ValueError, match="names 1 ids that the data lacks"):
        ids(listed, "test", resplit=str(resplit))


@pytest.mark.parametrize("text", [None, "{", '["q0"]', '{"test": 3}', '{"test": [3]}'])
def test_a_resplit_file_that_is_none(text, tmp_path):
    write(tmp_path / "test.parquet", row())
    resplit = tmp_path / "resplit.json"
    if text is not None:
        resplit.write_text(text)
    with pytest.raises(ValueError, match=r"data\.resplit: .*resplit\.json"):
        ids(tmp_path, resplit=str(resplit))


def test_rows_are_streamed(tmp_path):
    rows = [row(i, answer=["b"] * (i != 150)) for i in range(151)]
    questions = read(config(write(tmp_path / "test.parquet", *rows)), "test")
    assert [question.id for question in islice(questions, 150)] == [f"q{i}" for i in range(150)]
    with pytest.raises(BadRow, match=r"test\.parquet row 150: field answer"):
        next(questions)


def test_limit_reads_no_further_and_findings_are_logged_once(tmp_path, caplog):
    file = write(tmp_path / "test.parquet", *(row(i, q_entity=["x"]) for i in range(3)), row(0))
    with caplog.at_level(logging.WARNING):
        assert [q.id for q in data.read(config(file), "test", limit=3)] == ["q0", "q1", "q2"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} test: topic entities that are not in the graph: 3 "
        f"(first: {file} row 0: field q_entity: 'x')"
    ]
    everything = quickstart.load("validation")
    found = data.read(DataConfig(source="quickstart"), "validation", limit=2)
    assert list(found) == everything[:2]


def test_size_is_the_number_of_rows_where_headers_tell(tmp_path):
    write(tmp_path / "test-0.parquet", row(0), row(1, answer=[]))
    write(tmp_path / "test-1.parquet", row(2))
    write(tmp_path / "train.parquet", row(3))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    resplit = tmp_path / "resplit.json"
    resplit.write_text('{"test": ["q0"]}')
    assert data.size(config(tmp_path), "test") == 3
    assert data.size(config(tmp_path), "test", limit=2) == 2
    assert data.size(config(tmp_path), "test", limit=9) == 3
    assert data.size(DataConfig(source="quickstart"), "validation") == 100
    for place in ("owner/name", "", tmp_path / "bad.parquet", tmp_path / "nowhere"):
        assert data.size(config(place), "test") is None
    assert data.size(config(tmp_path), "dev") is None
    assert data.size(config(tmp_path, resplit=str(resplit)), "test", limit=5) == 5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("id", "", "expected text, got ''"),
        ("id", 7, "expected text, got 7"),
        ("id", None, "expected text, got None"),
        ("id", ["q"], r"expected text, got \['q'\]"),
        ("question", " \n", "expected text"),
        ("question", ["who?"], r"expected text, got \['who\?'\]"),
        ("answer", [], "no answers"),
        ("answer", "b", "expected a list of text, got 'b'"),
        ("answer", None, "expected a list of text, got None"),
        ("answer", ["b", ""], "expected text, got ''"),
        ("answer", [3], "expected text, got 3"),
        ("q_entity", None, "expected a list of text, got None"),
        ("q_entity", [" "], "expected text, got ' '"),
        ("graph", None, "expected a list of triples, got None"),
        ("graph", "a in b", "expected a list of triples, got 'a in b'"),
        ("graph", ["a in b"], "triple 0: expected three texts, got 'a in b'"),
        ("graph", [["a", "in", "b"], ["a", "b"]], r"triple 1: expected three texts, got \['a', 'b"),
        ("graph", [["a", "in", "b"], ["a", "", "b"]], "triple 1: expected three texts"),
        ("graph", [["a", "in", None]], "triple 0: expected three texts"),
        ("graph", [[1, 2, 3]], "triple 0: expected three texts"),
        ("graph", [], "no triples"),
    ],
)
def test_a_bad_row_is_named(field, value, message, tmp_path):
    file = write(tmp_path / "test.parquet", row(**{field: value}))
    with pytest.raises(BadRow, match=rf"^{file} row 0: field {field}: {message}"):
        ids(tmp_path)


def test_bad_rows_and_triples_can_be_left_out(tmp_path):
    rows = [row(0), row(1, id=""), row(2, graph=[["a", "in", "b"], ["a", "", "b"]]), row(0), row(4)]
    file = write(tmp_path / "test.parquet", *rows)
    with pytest.raises(BadRow, match=r"--data\.on_bad_row skip"):
        ids(file)
    tally = Tally()
    questions = list(read(config(file, on_bad_row="skip"), "test", tally))
    assert [question.id for question in questions] == ["q0", "q2", "q4"]
    assert questions[1].graph == (Triple("a", "in", "b"),)
    assert tally.counts == {"rows left out": 2, "triples left out": 1}
    assert "row 1: field id" in tally.first["rows left out"]
    assert "row 2: field graph: triple 1" in tally.first["triples left out"]


def test_an_id_that_is_used_twice(tmp_path):
    first = write(tmp_path / "test-0.parquet", row(0), row(1))
    second = write(tmp_path / "test-1.parquet", row(1))
    message = rf"^{second} row 0: field id: 'q1' was already used by {first} row 1"
    with pytest.raises(BadRow, match=message):
        ids(tmp_path)
    assert ids(tmp_path, on_bad_row="skip") == ["q0", "q1"]


def test_a_row_without_triples(tmp_path):
    write(tmp_path / "test.parquet", row(0), row(1, graph=[]), row(2, graph=[["", "", ""]]))
    with pytest.raises(BadRow, match=r"row 1: field graph: no triples .*--data\.on_empty_graph"):
        ids(tmp_path)
    lenient = {"on_bad_row": "skip"}
    with pytest.raises(BadRow, match="row 1: field graph: no triples"):
        ids(tmp_path, **lenient)
    assert ids(tmp_path, on_empty_graph="skip", **lenient) == ["q0"]
    kept = list(read(config(tmp_path, on_empty_graph="keep", **lenient), "test"))
    assert [len(question.graph) for question in kept] == [2, 0, 0]
    # Of a graph that is not there nothing is said to be missing.
    for choice in ("skip", "keep"):
        assert findings(tmp_path, on_empty_graph=choice, **lenient) == {
            "rows without triples": 2,
            "triples left out": 1,
        }


def test_oddities_are_counted_and_kept(tmp_path):
    twice, loop = ["a", "in", "b"], ["a", "is", "a"]
    rows = [
        row(0, q_entity=[]),
        row(1, q_entity=["a", "nowhere", "nobody"]),
        row(2, answer=["nothing", "m.0x1"]),
        row(3, answer=["nothing"]),
        row(4, graph=[twice, loop, twice, ["b", "in", "a"], ["a", "of", "b"], loop, twice]),
    ]
    tally = Tally()
    questions = list(read(config(write(tmp_path / "test.parquet", *rows)), "test", tally))
    assert [question.id for question in questions] == ["q0", "q1", "q2", "q3", "q4"]
    assert questions[0].topics == ()
    assert questions[1].topics == ("a", "nowhere", "nobody")
    assert questions[2].answers == ("nothing", "m.0x1")
    # Direction and parallel relations make other triples.
    assert questions[4].graph == tuple(
        Triple(*parts) for parts in (twice, loop, ("b", "in", "a"), ("a", "of", "b"))
    )
    assert tally.counts == {
        "questions without a topic entity": 1,
        "topic entities that are not in the graph": 2,
        "questions without any gold in the graph": 1,
        "golds that are bare ids": 1,
        "repeated triples (counted once)": 3,
        "self-loops": 1,
    }
    assert all("test.parquet row " in where for where in tally.first.values())
    assert tally.lines()[0].startswith("repeated triples (counted once): 3 (first: ")


def test_bare_ids():
    assert is_bare_id("m.0h0zs8c")
    assert is_bare_id("g.121wt37c")
    assert is_bare_id("m.cvt_12")
    for name in ("m", "m.", "M.0x", "m.0x y", "am.0x", "n.0x", "m.A", "Dr. m.0x"):
        assert not is_bare_id(name), name


def test_a_row_of_ten_thousand_edges(tmp_path):
    (question,) = read(config(write(tmp_path / "test.parquet", row(graph=LONG))), "test")
    assert question.graph == tuple(Triple(*parts) for parts in LONG)


def test_places_that_hold_no_such_split(tmp_path):
    with pytest.raises(ValueError, match=r"^data\.path is empty"):
        ids("")
    for name in (tmp_path / "nowhere", "./owner/name", "nowhere", "../x", "~/x"):
        with pytest.raises(ValueError, match=r"^data\.path: .* does not exist"):
            ids(name)
    with pytest.raises(ValueError, match=r"has no split 'test' \(it holds no parquet files\)"):
        ids(tmp_path)
    write(tmp_path / "train.parquet", row())
    with pytest.raises(ValueError, match=r"has no split 'test' \(it holds train\.parquet\)"):
        ids(tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    narrow = {key: value for key, value in row().items() if key not in ("q_entity", "graph")}
    file = write(tmp_path / "narrow.parquet", narrow)
    with pytest.raises(
        ValueError, match=rf"^{file}: missing column q_entity, graph \(it has id, question, answer"
    ):
        ids(file)
    options = {"compression": "none", "use_dictionary": False, "row_group_size": 64}
    whole = write(tmp_path / "whole.parquet", *(row(i) for i in range(300)), **options)
    content = whole.read_bytes()
    for size in (0, 3, len(content) // 2, len(content) - 1):
        cut = tmp_path / "cut.parquet"
        cut.write_bytes(content[:size])
        with pytest.raises(ValueError, match=rf"^{cut}: not a readable parquet file"):
            ids(cut)
    # The footer is whole, some rows are not.
    holed = tmp_path / "holed.parquet"
    start = len(content) // 2
    holed.write_bytes(content[:start] + b"\xff" * 3000 + content[start + 3000 :])
    questions = read(config(holed), "test")
    assert next(questions).id == "q0"
    with pytest.raises(ValueError, match=rf"^{holed}: not a readable parquet file"):
        list(questions)


def test_the_sample_data_holds_what_its_readme_says(sample_data):
    path = config(sample_data / "webqsp_mini")
    tally = Tally()
    questions = list(read(path, "validation", tally))
    triples = [triple for question in questions for triple in question.graph]
    assert (len(questions), len(triples), len(set(triples))) == (243, 116_278, 85_549)
    assert len({name for h, _, t in triples for name in (h, t)}) == 48_074
    assert len({triple.relation for triple in triples}) == 1991
    assert tally.counts == {
        "questions without any gold in the graph": 38,  # 84.4 % have one
        "golds that are bare ids": 2,
        "topic entities that are not in the graph": 1,
    }
    assert all(question.id.startswith("WebQTrn-") for question in questions)


def test_the_sample_data_split_anew(sample_data):
    folder = sample_data / "cwq_mini"
    splits = json.loads((folder / "resplit.json").read_text())
    found = rog.read(config(folder, resplit=str(folder / "resplit.json")), "validation")
    assert {question.id for question in islice(found, 30)} <= set(splits["validation"])
