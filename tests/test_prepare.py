"""Prepared shards: equal to what was made, read one by one, never stale, never silently broken."""

import ast
import dataclasses
import itertools
import json
import pickle
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tiny
import torch
from test_sharding import RAY
from torch import Tensor

from bisrqa import data, prepare, provenance, shards
from bisrqa.data.records import Chunk, Event, Question, Triple
from bisrqa.examples import Example, Retriever
from bisrqa.graph import embed
from bisrqa.graph.events import Decision
from bisrqa.graph.texts import Merge
from bisrqa.prepare import Chosen, Preparation
from bisrqa.prompt import PromptBuilder
from bisrqa.sharding import ShardsFailed

ROOT = Path(__file__).parent.parent


class Fake:
    """Stands in for the sentence encoder; a vector for each text."""

    identity = "fake"
    dim = 16

    def __init__(self, *args):
        pass

    def encode(self, texts, batch_size):
        seeds = [zlib.crc32(text.encode()) for text in texts]
        rows = np.stack([np.random.default_rng(s).standard_normal(self.dim) for s in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(embed, "SentenceEmbedder", Fake)


def assert_equal(one, other, where="example"):
    """Equal, of the same types, to the last bit."""
    assert type(one) is type(other), where
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif dataclasses.is_dataclass(one):
        for f in dataclasses.fields(one):
            assert_equal(getattr(one, f.name), getattr(other, f.name), f"{where}.{f.name}")
    elif isinstance(one, Mapping):
        assert list(one) == list(other), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, tuple | list):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{where}[{number}]")
    else:
        assert one == other, where


def rows(count: int, first: int = 0) -> list[dict]:
    return [
        {
            "id": f"q{n}",
            "question": f"where was {n} born",
            "answer": [f"town {n}"],
            "q_entity": [f"person {n}"],
            "graph": [
                [f"person {n}", "people.born", f"town {n}"],
                [f"town {n}", "location.in", "the land"],
                [f"person {n}", "people.works_at", "m.0x1"],
            ],
        }
        for n in range(first, first + count)
    ]


def write(folder: Path, split: str, some: list[dict]) -> None:
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(some), folder / f"{split}.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data", "train", rows(10))
    return tmp_path / "data"


def config(folder: Path, **changes):
    return tiny.config(**{"data": {"path": str(folder)}, "head": "ppr", **changes})


def prepared(settings, tmp_path, split="train", limit=None, **options):
    options = {"shard_questions": 4, **options}
    return Preparation(settings, tmp_path / "cache", **options).examples(split, limit)


def builder(settings):
    return PromptBuilder(tiny.tokenizer(), settings.prompt, settings.encoder.num_soft_tokens)


def test_questions_over_a_graph_come_back_as_they_were(folder, tmp_path):
    settings = config(folder)
    made = list(Retriever(settings, tmp_path / "other")(data.read(settings.data, "train")))
    found = prepared(settings, tmp_path)
    assert len(found) == len(made) == 10
    for one, other in zip(found, made, strict=True):
        assert_equal(one, other)
        one.evidence.graph.check()
    for heading, example in zip(found.headings, made, strict=True):
        assert heading.id == example.question.id
        assert heading.source_digest == example.source_digest
        assert heading.golds_in_evidence == example.golds_in_evidence
    assert [e.question.id for e in found[8:]] == ["q8", "q9"]
    assert found[-1].question.id == "q9"
    with pytest.raises(IndexError):
        found[10]


def test_questions_over_a_shared_graph_come_back_as_they_were(folder, tmp_path, caplog):
    triples = [t for row in rows(9) for t in row["graph"]]
    columns = dict(zip(("head", "relation", "tail"), zip(*triples, strict=True), strict=True))
    file = tmp_path / "triples.parquet"
    pyarrow.parquet.write_table(pyarrow.table({k: list(v) for k, v in columns.items()}), file)
    settings = config(
        folder, data={"path": str(folder), "graph": "shared", "graph_path": str(file)}
    )
    made = list(Retriever(settings, tmp_path / "other")(data.read(settings.data, "train")))
    caplog.clear()
    for one, other in zip(prepared(settings, tmp_path), made, strict=True):
        assert_equal(one, other)
    told = [r.getMessage() for r in caplog.records if "not in the graph" in r.getMessage()]
    assert len(told) == 1  # once for all shards: question 9 is not there
    assert told[0].endswith(": 1")


def article(title: str, *sentences: str) -> list:
    return [title, list(sentences)]


@pytest.mark.parametrize("head", ["kg2rag", "dense"])
def test_questions_over_texts_come_back_as_they_were(tmp_path, head):
    lines = [
        {
            "_id": f"q{n}", "question": f"Where was the director of Lamp {n} born?",
            "answer": "Bergen", "type": "bridge", "supporting_facts": [[f"Lamp {n}", 0]],
            "context": [
                article("Oslo (city)", "Oslo is a city.", "It has a harbour."),
                article(f"Nora {n}", f"Nora {n} makes films in Oslo.", "She was born in Bergen."),
                article(f"Lamp {n}", f"Lamp {n} is a film directed by Nora {n}."),
            ],
        }
        for n in range(5)
    ]  # fmt: skip
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    settings = config(
        tmp_path, data={"path": str(tmp_path / "train.jsonl"), "source": "hotpotqa"}, head=head,
        kg2rag={"lexical": 0.0},
    )  # fmt: skip
    made = list(Retriever(settings, tmp_path / "other")(data.read(settings.data, "train")))
    assert any(e.evidence.passages for e in made)
    for one, other in zip(prepared(settings, tmp_path), made, strict=True):
        assert_equal(one, other)


CHUNKS = (
    Chunk("", "青禾公司7月5日在泰州启用新码头。", 0, 0, 1, "a"),
    Chunk("", "青禾公司启用新码头。", 1, 0, 1, "b", "2023-07-06"),
    Chunk("", "白鹭集团8月在南京招聘。", 2, 0, 1, "c"),
)


def test_questions_over_events_come_back_as_they_were(tmp_path):
    settings = tiny.config(
        head="edrag",
        edrag={"words": 0.0},
        fusion={"threshold": 0.0, "overlap": 0.0},
        alignment={"embedding": 0.99},
    )
    events = (
        (0, Event("青禾公司启用新码头", "7月5日", "泰州", ("青禾公司",), "2023-07-05")),
        (1, Event("青禾公司启用新码头", "7月5日", "泰州", ("青禾公司 (公司)",), "2023-07-05")),
        (2, Event("白鹭集团招聘", "8月", "南京", ("白鹭集团",), "2023-08-01/2023-08-31")),
    )
    asked = Question(
        id="e", question="青禾公司启用了什么？", answers=("新码头",), topics=(), graph=(),
        chunks=CHUNKS, named=((0, "青禾公司"), (2, "白鹭集团")), events=events,
    )  # fmt: skip
    (made,) = list(Retriever(settings, tmp_path / "cache")([asked]))
    assert made.decisions
    assert made.evidence.signals
    assert made.evidence.found_by
    more = dataclasses.replace(
        made,
        merges=(Merge("a", "b", "wh\ny \u2028 \ud800"),),
        decisions=(*made.decisions, Decision("x", "y", "unsure", "", float("nan"))),
        question=dataclasses.replace(made.question, evidences=(Triple("a", "b", "c"),)),
    )
    for example in (made, more):
        shards.write(tmp_path / "shard", [example])
        again = shards.Shard(tmp_path / "shard")[0]
        if example is more:
            assert str(again.decisions[-1].similarity) == "nan"
            again, example = (dataclasses.replace(e, decisions=()) for e in (again, example))
        assert_equal(again, example)


def test_what_a_shard_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"cannot hold a .*complex"):
        shards.write(tmp_path / "shard", [{"a": 1j}])
    assert not (tmp_path / "shard").exists()


def test_one_question_is_read_alone(folder, tmp_path):
    found = prepared(config(folder), tmp_path)
    rows_file = found.folder / "shard-00001" / shards.ROWS
    content = bytearray(rows_file.read_bytes())
    last = found.shards[1]._offsets[3]
    content[last:] = bytes(len(content) - last)  # the other records are spoilt
    rows_file.write_bytes(content)
    again = prepared(config(folder), tmp_path)
    assert again[4].question.id == "q4"
    assert all(shard._rows is None for n, shard in enumerate(again.shards) if n != 1)
    with pytest.raises(ValueError, match=r"shard-00001/rows.bin: damaged .record 3.*delete .*anew"):
        again[7]


@pytest.mark.parametrize("name", [shards.ROWS, shards.HEADER])
def test_a_cut_shard_is_noticed_when_it_is_opened(folder, tmp_path, name):
    found = prepared(config(folder), tmp_path)
    file = found.folder / "shard-00002" / name
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=rf"shard-00002/{name}: damaged .*; delete .*shard-00002"):
        prepared(config(folder), tmp_path)


def counting(monkeypatch):
    """Names of the shards that are written from now on."""
    written, write_shard = [], shards.write

    def write(folder, *args, **facts):
        written.append(folder.name)
        write_shard(folder, *args, **facts)

    monkeypatch.setattr(shards, "write", write)
    return written


def test_what_is_there_is_used_and_what_is_missing_is_made(folder, tmp_path, monkeypatch):
    settings = config(folder)
    preparation = Preparation(settings, tmp_path / "cache", shard_questions=4)
    found = preparation.examples("train")
    first = preparation.tokenised(found, builder(settings))
    written = counting(monkeypatch)
    again = preparation.tokenised(preparation.examples("train"), builder(settings))
    assert written == []
    for part in (found.folder, next(f for f in found.folder.glob("words-*") if f.is_dir())):
        for file in (part / "shard-00001").iterdir():
            file.unlink()
        (part / "shard-00001").rmdir()
    third = preparation.tokenised(preparation.examples("train"), builder(settings))
    assert written == ["shard-00001", "shard-00001"]
    expected = builder(settings).words(list(found))
    for split in (first, again, third):
        for one, words in zip(split, expected, strict=True):
            assert_equal(one.words, words)


def test_a_shard_that_fails_is_named_and_made_by_the_same_command(folder, tmp_path, monkeypatch):
    settings, call = config(folder), prepare._MakeExamples.__call__

    def failing(self, content):
        if content[0] == 1:
            raise OSError("no space left")
        return call(self, content)

    with monkeypatch.context() as patched:
        patched.setattr(prepare._MakeExamples, "__call__", failing)
        expected = r"1 of 3 shards.*\n  shard-00001 .questions 4 to 7, q4 to q7.: OSError: no space"
        with pytest.raises(ShardsFailed, match=expected):
            prepared(settings, tmp_path)
    written = counting(monkeypatch)
    assert len(prepared(settings, tmp_path)) == 10
    assert written == ["shard-00001"]


@pytest.mark.parametrize("engine", ["processes", RAY])
def test_several_processes_make_what_one_makes(folder, tmp_path, monkeypatch, engine):
    monkeypatch.undo()  # workers know nothing of the fake encoder
    settings = config(folder)
    one = prepared(settings, tmp_path / "one")
    several = prepared(settings, tmp_path / "several", engine=engine, workers=2)
    assert one.folder.name == several.folder.name
    assert [h.id for h in one.headings] == [h.id for h in several.headings]
    for ours, theirs in zip(one, several, strict=True):
        assert ours.question == theirs.question
        assert ours.evidence.graph.node_text == theirs.evidence.graph.node_text
        # Which texts share a batch of the encoder may change last bits.
        assert torch.allclose(ours.evidence.graph.x, theirs.evidence.graph.x, atol=1e-3)
        assert torch.allclose(ours.evidence.node_score, theirs.evidence.node_score, atol=1e-3)


def test_two_that_prepare_at_once_make_everything_once(folder, tmp_path, monkeypatch):
    written, found = counting(monkeypatch), []
    some = [
        threading.Thread(target=lambda: found.append(prepared(config(folder), tmp_path)))
        for _ in range(2)
    ]
    for one in some:
        one.start()
    for one in some:
        one.join()
    assert written == ["shard-00000", "shard-00001", "shard-00002"]
    for one, other in zip(*found, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"retriever": {"top_k": 1}}, {"head": "k_hop"}, {"embedder": {"text_prompt": "x"}},
        {"cross_encoder": {"weight": 2.0}}, {"edrag": {"ranker": "nowhere"}},
    ],
)  # fmt: skip
def test_another_setting_is_another_split(folder, tmp_path, change):
    one = provenance.of_examples(config(folder), "train", None, tmp_path)
    other = provenance.of_examples(config(folder, **change), "train", None, tmp_path)
    assert provenance.digest(one) != provenance.digest(other)


def test_what_examples_do_not_depend_on_changes_nothing(folder, tmp_path):
    one = provenance.of_examples(config(folder), "train", None, tmp_path)
    settings = config(
        folder, seed=3, name="b", training={"epochs": 9}, prompt={"max_prompt_tokens": 5},
        encoder={"hidden": 64}, evaluation={"limit": 3}, tracker={"wandb": "offline"},
    )  # fmt: skip
    assert provenance.of_examples(settings, "train", None, tmp_path) == one


def test_other_data_are_never_taken_for_these(folder, tmp_path):
    before = prepared(config(folder), tmp_path)
    write(folder, "train", [{**row, "answer": ["town 0"]} for row in rows(10)])
    after = prepared(config(folder), tmp_path)
    assert before.folder != after.folder
    assert {e.question.answers for e in after} == {("town 0",)}
    assert len(prepared(config(folder), tmp_path, limit=3)) == 3


def test_files_and_weights_that_a_config_names_count(folder, tmp_path, monkeypatch):
    aliases = tmp_path / "aliases.tsv"
    settings = config(folder, alignment={"aliases": str(aliases)})
    seen = set()
    for content in ("a\tb\n", "a\tc\n"):
        aliases.write_text(content)
        seen.add(provenance.digest(provenance.of_examples(settings, "train", None, tmp_path)))
    monkeypatch.setattr(Fake, "identity", "other weights")
    seen.add(provenance.digest(provenance.of_examples(settings, "train", None, tmp_path)))
    monkeypatch.setattr(provenance, "_source", lambda names: "other code")
    seen.add(provenance.digest(provenance.of_examples(settings, "train", None, tmp_path)))
    assert len(seen) == 4


def test_tokens_depend_on_tokenizer_and_lines_alone():
    one = provenance.of_words(tiny.tokenizer(), tiny.config().prompt)
    same = tiny.config(prompt={"soft_prompt": False, "max_prompt_tokens": 5}).prompt
    assert provenance.of_words(tiny.tokenizer(), same) == one
    for tokenizer, settings in (
        (tiny.tokenizer(eos="<|im_end|>"), tiny.config().prompt),
        (tiny.tokenizer(), tiny.config(prompt={"relation_names": "full"}).prompt),
        (tiny.tokenizer(), tiny.config(prompt={"hard_prompt": False}).prompt),
    ):
        assert provenance.of_words(tokenizer, settings) != one


def test_all_code_that_makes_examples_counts():
    """The closure of what ``bisrqa.examples`` imports, and of what puts examples into words."""

    def closure(module: str) -> set[str]:
        found, waiting = set(), [module]
        while waiting:
            name = waiting.pop()
            path = ROOT / "bisrqa" / name
            files = [path.with_suffix(".py")] if not path.is_dir() else sorted(path.rglob("*.py"))
            found.add(name if path.is_dir() else f"{name}.py")
            for file in files:
                for node in ast.walk(ast.parse(file.read_text("utf8"))):
                    if not isinstance(node, ast.ImportFrom) or not node.module:
                        continue
                    parts = node.module.split(".")
                    if parts[0] != "bisrqa":
                        continue
                    named = parts[1:2] or [alias.name for alias in node.names]
                    waiting += [n for n in named if n not in found and f"{n}.py" not in found]
        return found

    assert closure("examples") <= {*provenance.EXAMPLE_CODE}
    assert closure("prompt") <= {*provenance.EXAMPLE_CODE, *provenance.WORDS_CODE}
    assert all((ROOT / "bisrqa" / name).exists() for name in provenance.EXAMPLE_CODE)


def test_what_is_opened_can_be_sent_to_another_process(folder, tmp_path):
    settings = config(folder)
    preparation = Preparation(settings, tmp_path / "cache", shard_questions=4)
    found = preparation.tokenised(preparation.examples("train"), builder(settings))
    assert found[3].example.question.id == "q3"  # mapped here
    raw = pickle.dumps(Chosen(found, [3, 9]))
    assert len(raw) < 100 * sum(s.folder.joinpath(shards.ROWS).stat().st_size for s in
                                found.examples.shards)  # fmt: skip
    assert [p.example.question.id for p in pickle.loads(raw)] == ["q3", "q9"]


def test_which_splits_a_run_reads():
    settings = tiny.config(
        data={"train_limit": 6}, training={"validation_limit": 3}, evaluation={"limit": 9}
    )
    every = [("train", 6), ("validation", 3), ("test", 9)]
    assert prepare.asked_for(settings, None) == every
    assert prepare.asked_for(settings, ["validation", "train[:3]"]) == [
        ("validation", 3), ("train[:3]", 9)
    ]  # fmt: skip
    settings = tiny.config(evaluation={"split": "validation", "limit": 9})
    assert ("validation", 9) in prepare.asked_for(settings, ["validation"])


def test_a_bad_reply_is_asked_again_where_the_config_says_so(folder, tmp_path, monkeypatch):
    replies = itertools.count(1)
    monkeypatch.setattr(Retriever, "bad_replies", property(lambda self: next(replies)))
    settings = config(folder)
    prepared(settings, tmp_path)
    written = counting(monkeypatch)
    prepared(settings, tmp_path)
    assert written == []
    extraction = dataclasses.replace(settings.extraction, retry_bad=True)
    again = dataclasses.replace(settings, extraction=extraction)
    prepared(again, tmp_path)
    assert len(written) == 3


def test_examples_are_not_held(folder, tmp_path):
    found = prepared(config(folder), tmp_path)
    assert found[0] is not found[0]
    assert isinstance(found[0], Example)
