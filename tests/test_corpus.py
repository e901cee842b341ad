"""A corpus of texts: changes leave no trace, nothing is paid twice, and questions are answered."""

import dataclasses
import json
from pathlib import Path

import pytest

from bisrqa import cli
from bisrqa.config import (
    AlignmentConfig,
    CorpusConfig,
    DataConfig,
    ExtractionConfig,
    RunConfig,
)
from bisrqa.corpus import Corpus, passages_of, update
from bisrqa.data.passages import Passage, read_passages
from bisrqa.examples import Retriever, load
from bisrqa.graph.embed import EmbeddingStore, SentenceEmbedder
from bisrqa.packaged import default_cache_dir

CONFIG = RunConfig(
    extraction=ExtractionConfig(method="syntax"), alignment=AlignmentConfig(fuzzy=0.9)
)
TEXTS = [
    Passage("Ada Lovelace", ("Ada Lovelace was a mathematician.", "She met Charles Babage."), "a"),
    Passage("Charles Babbage", ("Charles Babbage was born in London.",), "b"),
    Passage("London", ("London is the capital of England.",), "c"),
    Passage("Paris", ("Paris is the capital of France.", "Ada Lovelace went there."), "d"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    embedder = SentenceEmbedder(CONFIG.embedder, default_cache_dir())
    return EmbeddingStore(embedder, tmp_path_factory.mktemp("embeddings"))


@pytest.fixture
def change(store: EmbeddingStore, tmp_path: Path):
    def call(name: str, config: RunConfig = CONFIG, **what):
        return update(tmp_path / name, config, store, tmp_path / "cache", **what)

    return call


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_what_was_removed_was_never_there(change, tmp_path: Path):
    change("one", put=TEXTS)
    change("one", remove=["a"])
    change("other", put=[TEXTS[3], TEXTS[1]])  # in another order, and in two steps
    change("other", put=[TEXTS[2]])
    assert content(tmp_path / "one") == content(tmp_path / "other")
    change("one", put=[TEXTS[0]])
    change("whole", put=TEXTS)
    assert content(tmp_path / "one") == content(tmp_path / "whole")


def test_replacing_is_removing_and_adding(change, tmp_path: Path):
    new = TEXTS[1]._replace(sentences=("Charles Babbage was born in Walworth.",))
    change("one", put=TEXTS)
    done = change("one", put=[new, TEXTS[0]])
    assert (done.added, done.replaced, done.unchanged, done.removed) == (0, 1, 1, 0)
    change("other", put=[TEXTS[0], new, *TEXTS[2:]])
    assert content(tmp_path / "one") == content(tmp_path / "other")


def test_counts_and_merges(change, tmp_path: Path):
    done = change("one", put=TEXTS)
    assert (done.added, done.passages, done.chunks) == (4, 4, 6)
    assert done.triples
    assert done.merges
    found = Corpus.open(tmp_path / "one")
    assert found.ids == ("a", "b", "c", "d")
    assert ("Charles Babage", "Charles Babbage") in {m[:2] for m in found.merges}
    assert found.graph.node_text[found.first :] == tuple(chunk.words for chunk in found.chunks)


def test_only_new_texts_are_extracted(change, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    from bisrqa.extraction.syntax import Syntax

    whole = Syntax.__call__

    def counted(self, chunks):
        seen.extend(chunk.words for chunk in chunks)
        return whole(self, chunks)

    monkeypatch.setattr(Syntax, "__call__", counted)
    change("one", put=TEXTS[:3])
    before = len(seen)
    change("one", put=TEXTS)
    assert sorted(seen[before:]) == sorted(f"Paris: {text}" for text in TEXTS[3].sentences)


def test_an_empty_corpus_may_come_back(change, tmp_path: Path):
    change("one", put=TEXTS[:1])
    assert change("one", remove=["a"]).passages == 0
    assert passages_of(tmp_path / "one") == []
    assert change("one", put=TEXTS[:1]).passages == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"remove": ["z"]}, "no passage 'z'"),
        ({"put": [TEXTS[0], TEXTS[0]]}, "two of the passages have the id 'a'"),
        ({"put": [TEXTS[0]._replace(id="")]}, "'Ada Lovelace' has no id"),
        ({"config": dataclasses.replace(CONFIG, alignment=AlignmentConfig())}, "with alignment"),
        ({"config": dataclasses.replace(CONFIG, data=DataConfig(chunks="window"))},
         "made with data.chunks 'sentence', the config says 'window'"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_changes_nothing(change, tmp_path: Path, what, says: str):
    change("one", put=TEXTS)
    before = content(tmp_path / "one")
    with pytest.raises(ValueError, match=says):
        change("one", **what)
    assert content(tmp_path / "one") == before


@pytest.mark.parametrize("name", ["corpus.json", "passages.jsonl", "graph/graph.json",
                                  "graph/tensors.safetensors", "merges.jsonl"])  # fmt: skip
def test_a_damaged_corpus_is_refused(change, tmp_path: Path, name: str):
    change("one", put=TEXTS)
    file = tmp_path / "one" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"one.*(damaged|not a whole)"):
        Corpus.open(tmp_path / "one")


def test_another_encoder_is_refused(change, tmp_path: Path):
    change("one", put=TEXTS)
    with pytest.raises(ValueError, match="embedded by"):
        Corpus.open(tmp_path / "one", "another-encoder")


@pytest.fixture
def asked(change, tmp_path: Path) -> RunConfig:
    change("one", put=TEXTS)
    rows = [{"question": "Where was the man born whom Ada Lovelace met?", "answers": ["London"],
             "supporting_facts": [["Ada Lovelace", 1], ["Charles Babbage", 0]]},
            {"id": "own", "question": "Which is the capital of France?", "answer": "Paris"},
            {"question": "Nobody knows?"}]  # fmt: skip
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf8")
    return dataclasses.replace(
        CONFIG, head="kg2rag", cache_dir=str(tmp_path / "cache"),
        data=DataConfig(source="questions", path=str(tmp_path / "q.jsonl"), graph="corpus",
                        graph_path=str(tmp_path / "one")),
    )  # fmt: skip


@pytest.mark.parametrize("search", ["torch", "faiss"])
@pytest.mark.parametrize("head", ["kg2rag", "dense", "bisrqa", "hybrid"])
def test_questions_over_it(asked: RunConfig, search, head: str):
    config = dataclasses.replace(asked, head=head, corpus=CorpusConfig(search=search, seeds=3))
    found = load(config, "q", Retriever(config, Path(asked.cache_dir or "")))
    assert [e.question.id for e in found] == ["q1", "own", "q3"]
    best = [[e.question.chunks[n].words for n in e.chunks_found] for e in found]
    assert best[1][0] == "Paris: Paris is the capital of France."
    if head != "bisrqa":
        assert "Charles Babbage: Charles Babbage was born in London." in best[0][:4]
    assert (found[0].golds_in_graph, found[2].golds_in_graph) == (1, 0)
    assert ("Charles Babage", "Charles Babbage") in {m[:2] for m in found[0].merges}


def test_all_candidates_is_as_if_the_question_had_brought_the_texts(asked: RunConfig):
    retriever = Retriever(asked, Path(asked.cache_dir or ""))
    corpus = retriever._corpus
    assert corpus is not None
    for example in load(asked, "q", retriever):
        assert example.question.chunks == corpus.chunks  # few enough: all are reached
    alone = [next(iter(retriever([dataclasses.replace(e.question, chunks=())])))
             for e in load(asked, "q", retriever)]  # fmt: skip
    for one, other in zip(alone, load(asked, "q", retriever), strict=True):
        assert one.chunks_found == other.chunks_found


def test_candidates_are_so_many_for_each_question_in_any_company(asked: RunConfig):
    config = dataclasses.replace(asked, corpus=CorpusConfig(seeds=1, candidates=3))
    retriever = Retriever(config, Path(asked.cache_dir or ""))
    together = load(config, "q", retriever)
    for example in together:
        assert len(example.question.chunks) <= 3
        bare = dataclasses.replace(example.question, chunks=())
        (alone,) = retriever([bare])
        assert alone.question.chunks == example.question.chunks
    assert any(len(example.question.chunks) == 3 for example in together)  # more were reached


def test_an_empty_corpus_answers_nothing(change, asked: RunConfig, tmp_path: Path):
    change("one", remove=["a", "b", "c", "d"])
    found = load(asked, "q", Retriever(asked, Path(asked.cache_dir or "")))
    assert [example.chunks_found for example in found] == [()] * 3


def test_paragraph_numbers_are_refused(asked: RunConfig):
    retriever = Retriever(asked, Path(asked.cache_dir or ""))
    (example, *_) = load(asked, "q", retriever)
    question = dataclasses.replace(example.question, support_unit="paragraph")
    with pytest.raises(ValueError, match=r"question q1: .*paragraphs"):
        list(retriever([question]))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("Ada met Bob.", "utf8")
    (texts / "b.md").write_text("# Bob\nBob lives in Bern.\n# Bern\nBern is a town.\n", "utf8")
    (texts / "c.jsonl").write_text('{"id": 7, "title": "Cy", "sentences": ["Cy is.", "So."]}\n')
    own = ["--cache_dir", str(tmp_path / "cache")]
    mine = str(tmp_path / "mine")
    assert cli.main(["corpus", "add", mine, str(texts), *own]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 4
    assert cli.main(["corpus", "remove", mine, "--id", "b.md:3", "--id", "7", *own]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 2
    assert cli.main(["corpus", "list", mine]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"id": "a.txt", "title": "a"}, {"id": "b.md:1", "title": "Bob"}]
    assert cli.main(["corpus", "remove", mine, *own]) != 0
    assert cli.main(["corpus", "list", str(tmp_path / "none")]) != 0
    assert "no corpus there" in capsys.readouterr().err


def test_questions_alone_have_nothing_to_be_asked_over():
    with pytest.raises(ValueError, match=r"data\.graph must be corpus or shared .* 'question'"):
        DataConfig(source="questions", path="q.jsonl")


def test_ids_of_passages(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("One. Two.", "utf8")
    (tmp_path / "y.jsonl").write_text('{"text": "A."}\n{"text": "B.", "id": "b"}\n', "utf8")
    assert [p.id for p in read_passages(tmp_path)] == ["in/x.txt", "y.jsonl:1", "b"]
