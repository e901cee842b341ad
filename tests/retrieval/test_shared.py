"""One graph for all questions: from a file of triples, through the cache, to evidence."""

import dataclasses
import random
import zlib

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from bisrqa import examples
from bisrqa.config import DataConfig, RetrieverConfig, RunConfig
from bisrqa.data.records import Question, Triple
from bisrqa.examples import Retriever
from bisrqa.graph import embed
from bisrqa.graph.embed import EmbeddingStore
from bisrqa.graph.tensors import NodeKind
from bisrqa.heads import bisrqa as bisrqa_head
from bisrqa.retrieval.learned import LearnedWalk
from bisrqa.retrieval.shared import SharedGraph

DIM = 12


class Fake:
    """Stands in for the sentence encoder; a vector for each text."""

    identity = "fake"
    dim = DIM
    encoded = 0

    def __init__(self, *args):
        pass

    def encode(self, texts, batch_size):
        Fake.encoded += len(texts)
        seeds = [zlib.crc32(text.encode()) for text in texts]
        rows = np.stack([np.random.default_rng(s).standard_normal(DIM) for s in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def write(file, triples, **changes):
    columns = dict(zip(("head", "relation", "tail"), zip(*triples, strict=True), strict=True))
    columns |= changes
    pyarrow.parquet.write_table(pyarrow.table({k: list(v) for k, v in columns.items()}), file)
    return file


def random_triples(seed: int, nodes: int = 40) -> list[Triple]:
    """Parallel relations, self-loops, mediators, and one triple twice."""
    rng = random.Random(seed)
    names = [f"m.0{i}" if i % 4 == 3 else f"name {i}" for i in range(nodes)]
    triples = [
        Triple(rng.choice(names), f"r{rng.randrange(5)}", rng.choice(names))
        for _ in range(3 * nodes)
    ]
    return [*triples, triples[0], Triple("name 0", "r1", "name 0")]


def question(number: int, topics=(), graph=()) -> Question:
    return Question(
        id=f"q{number}",
        question=f"what {number}?",
        answers=("name 1", "nobody"),
        topics=tuple(topics),
        graph=tuple(graph),
    )


@pytest.fixture
def store(tmp_path) -> EmbeddingStore:
    return EmbeddingStore(Fake(), tmp_path / "embeddings")


def test_by_hand(tmp_path, store):
    triples = [("b", "r", "m.0x"), ("m.0x", "s", "a"), ("a", "r", "a"), ("b", "r", "m.0x")]
    file = write(tmp_path / "kb.parquet", triples)
    shared = SharedGraph.open(file, store, tmp_path)
    graph = shared.graph.check()
    assert graph.node_text == ("b", "a", "m.0x")  # by first mention, mediators last
    assert graph.node_kind.tolist() == [0, 0, int(NodeKind.MEDIATOR)]
    assert graph.relation_text == ("r", "s")
    found = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))
    assert found == [(0, 2, 0), (1, 1, 0), (2, 1, 1)]  # each once, by head
    assert graph.x.dtype == torch.float16
    assert torch.equal(graph.x[:2].float(), store(["b", "a"]))
    assert graph.x[2].tolist() == [0] * DIM
    assert torch.equal(graph.relation_x, store(["r", "s"]))
    assert shared.num_named == 2
    assert shared.ids == {"b": 0, "a": 1, "m.0x": 2}
    assert shared.mask([["a", "nowhere"], [], ["m.0x", "b"]]).tolist() == [
        [False, True, False],
        [False, False, False],
        [True, False, True],
    ]
    assert shared.walk.num_arcs == 4
    assert shared.walk.loop_node.tolist() == [1]


def test_it_is_prepared_once_and_anew_where_the_file_changes(tmp_path, store):
    file = write(tmp_path / "kb.parquet", random_triples(1))
    first = SharedGraph.open(file, store, tmp_path)
    before, encoded = sorted(first.folder.rglob("*")), Fake.encoded
    stamps = [f.stat().st_mtime_ns for f in before]
    again = SharedGraph.open(file, store, tmp_path)
    assert [f.stat().st_mtime_ns for f in sorted(again.folder.rglob("*"))] == stamps
    assert Fake.encoded == encoded
    for field in ("x", "edge_index", "edge_type", "relation_x", "node_kind"):
        assert torch.equal(getattr(again.graph, field), getattr(first.graph, field))
    write(file, random_triples(2))
    assert SharedGraph.open(file, store, tmp_path).folder != first.folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("edge_type.npy", b"\x93NUMPY"),
        ("shared.json", b"{}"),
        ("shared.json", b"[]"),
        ("walk/walk.json", b"{}"),
        ("node_text.parquet", b"PAR1"),
    ],
)
def test_a_damaged_cache_says_what_to_do(tmp_path, store, name, content):
    file = write(tmp_path / "kb.parquet", random_triples(1))
    folder = SharedGraph.open(file, store, tmp_path).folder
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{folder}: damaged shared graph [\s\S]* delete this"):
        SharedGraph.open(file, store, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relation": ["r", None]}, "row 1: column relation has no text"),
        ({"head": ["a", " "]}, "row 1: column head has no text"),
        ({"tail": [["x"], ["y"]]}, "column tail"),
        (None, "missing column tail .it has head, relation"),
    ],
)
def test_a_bad_file_is_named(tmp_path, store, change, message):
    file = tmp_path / "kb.parquet"
    if change is None:
        pyarrow.parquet.write_table(pyarrow.table({"head": ["a"], "relation": ["r"]}), file)
    else:
        write(file, [("a", "r", "b"), ("b", "r", "c")], **change)
    with pytest.raises(ValueError, match=f"data.graph_path: {file}.*({message})"):
        SharedGraph.open(file, store, tmp_path)
    assert not [f for f in (tmp_path / "graphs").iterdir() if f.suffix != ".lock"]
    with pytest.raises(ValueError, match=r"data.graph_path: .*absent.parquet is not a file"):
        SharedGraph.open(tmp_path / "absent.parquet", store, tmp_path)


def run_config(file, **retriever) -> RunConfig:
    return RunConfig(
        data=DataConfig(graph="shared", graph_path=str(file)),
        retriever=RetrieverConfig(**{"top_k": 6, **retriever}),
    )


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(embed, "SentenceEmbedder", Fake)


def evidence_of(found) -> list:
    """Texts, not ids: a graph of its own numbers the nodes in another order."""
    out = []
    for example in found:
        graph, evidence = example.evidence.graph, example.evidence
        texts = graph.node_text
        out.append(
            {
                "nodes": {
                    text: (reason, pytest.approx(score, abs=2e-5))
                    for text, reason, score in zip(
                        texts, evidence.reason.tolist(), evidence.node_score.tolist(), strict=True
                    )
                },
                "edges": {
                    (texts[h], graph.relation_text[r], texts[t])
                    for h, t, r in zip(
                        *graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True
                    )
                },
                "golds": (example.golds_in_graph, example.golds_in_evidence),
            }
        )
    return out


def walk_that_learnt(folder) -> str:
    torch.manual_seed(0)
    model = LearnedWalk(DIM, hidden=8, members=2)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.3 * torch.randn_like(value))
    model.save(folder, {})
    return str(folder)


def test_a_walk_that_has_learnt_ranks_the_whole_graph_as_each_questions_own(
    tmp_path, fake, monkeypatch
):
    triples = random_triples(5)
    asked = [question(n, topics, triples) for n, topics in enumerate([["name 2"], [], ["name 5"]])]
    learned = walk_that_learnt(tmp_path / "learned")
    config = run_config(write(tmp_path / "kb.parquet", triples), learned=learned)
    shared = list(Retriever(config, tmp_path)(asked))
    own = list(Retriever(dataclasses.replace(config, data=DataConfig()), tmp_path)(asked))
    for one, other in zip(evidence_of(shared), evidence_of(own), strict=True):
        assert one["nodes"] == other["nodes"]
        assert one["edges"] == other["edges"]
    monkeypatch.setattr(bisrqa_head, "ARRIVALS", 1)  # in slices as at once
    assert evidence_of(Retriever(config, tmp_path)(asked)) == evidence_of(shared)


@pytest.mark.parametrize(
    "retriever",
    [{}, {"personalization": "linear", "reweight": "linear", "topic_mass": 0.0}, {"seeds": 5}],
)
def test_the_whole_graph_as_each_questions_own_gives_the_same(tmp_path, fake, retriever):
    triples = random_triples(3)
    asked = [question(n, topics, triples) for n, topics in enumerate([["name 2"], [], ["name 5"]])]
    config = run_config(write(tmp_path / "kb.parquet", triples), **retriever)
    shared = list(Retriever(config, tmp_path)(asked))
    own = list(Retriever(dataclasses.replace(config, data=DataConfig()), tmp_path)(asked))
    assert evidence_of(shared) == evidence_of(own)
    assert [e.question for e in shared] == [e.question for e in own]
    assert all(e.golds_in_graph == 1 for e in shared)
    assert all(e.source_digest != f.source_digest for e, f in zip(shared, own, strict=True))


def test_push_and_faiss_find_what_the_exact_ways_find(tmp_path, fake):
    file = write(tmp_path / "kb.parquet", random_triples(4, nodes=300))
    asked = [question(n, [f"name {n}"]) for n in range(9)]
    exact = evidence_of(Retriever(run_config(file, seeds=20), tmp_path)(asked))
    for changes in ({"walk": "push", "push_threshold": 1e-9}, {"search": "faiss"}):
        if "search" in changes:
            pytest.importorskip("faiss")
        config = run_config(file, seeds=20, **changes)
        for _ in range(2):  # made, then read
            found = evidence_of(Retriever(config, tmp_path)(asked))
            assert [e["nodes"].keys() for e in found] == [e["nodes"].keys() for e in exact]


def test_topics_by_id_and_topics_that_are_unknown(tmp_path, fake, caplog):
    triples = random_triples(6)
    mediator = next(t.head for t in triples if t.head.startswith("m."))
    file = write(tmp_path / "kb.parquet", triples)
    asked = [question(0, [mediator], triples), question(1, ["name 0", "nowhere"], triples)]
    shared = list(Retriever(run_config(file), tmp_path)(asked))
    assert "topic entities that are not in the graph: 1" in caplog.text
    own = list(Retriever(dataclasses.replace(run_config(file), data=DataConfig()), tmp_path)(asked))
    assert evidence_of(shared) == evidence_of(own)
    assert mediator in shared[0].evidence.graph.node_text


def test_two_graphs_each_have_their_own_index(tmp_path, fake):
    pytest.importorskip("faiss")
    for seed in (1, 2):
        file = write(tmp_path / f"{seed}.parquet", random_triples(seed, nodes=60 * seed))
        asked = [question(n) for n in range(3)]
        exact = evidence_of(Retriever(run_config(file, seeds=8), tmp_path)(asked))
        found = Retriever(run_config(file, seeds=8, search="faiss"), tmp_path)(asked)
        assert [e["nodes"].keys() for e in evidence_of(found)] == [e["nodes"].keys() for e in exact]


def test_a_file_without_anything_to_ask_is_named(tmp_path, store):
    for triples, message in (([("m.0a", "r", "m.0b")], "no named entity"), ([], "no triples")):
        columns = dict(zip(("head", "relation", "tail"), zip(*triples, strict=True), strict=False))
        empty = {name: pyarrow.array([], pyarrow.string()) for name in ("head", "relation", "tail")}
        file = tmp_path / "kb.parquet"
        pyarrow.parquet.write_table(
            pyarrow.table({k: list(v) for k, v in columns.items()} or empty), file
        )
        with pytest.raises(ValueError, match=f"data.graph_path: {file} .*{message}"):
            SharedGraph.open(file, store, tmp_path)


def test_company_changes_nothing(tmp_path, fake, monkeypatch):
    file = write(tmp_path / "kb.parquet", random_triples(5))
    asked = [question(n, ["name 0"] if n % 2 else []) for n in range(7)]
    together = list(Retriever(run_config(file), tmp_path)(asked))
    monkeypatch.setattr(examples, "BATCH_SCORES", 90)  # two questions at once
    for one, other in zip(Retriever(run_config(file), tmp_path)(asked), together, strict=True):
        assert evidence_of([one]) == evidence_of([other])
        for name in ("node_ids", "edge_ids", "edge_score", "reason"):
            left, right = getattr(one.evidence, name), getattr(other.evidence, name)
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_settings_that_do_not_go_together(tmp_path):
    with pytest.raises(ValueError, match=r"data\.graph_path must be a parquet file"):
        DataConfig(graph="shared")
    with pytest.raises(ValueError, match=r"data\.graph_path must be empty with data\.graph quest"):
        DataConfig(graph_path="kb.parquet")
    for key, value in (("walk", "push"), ("search", "faiss")):
        with pytest.raises(ValueError, match=rf"retriever\.{key} must be .* without retriever\.se"):
            RetrieverConfig(**{key: value})
        with pytest.raises(ValueError, match=rf"retriever\.{key} must be .* data\.graph question"):
            RunConfig(retriever=RetrieverConfig(seeds=9, **{key: value}))


def test_the_whole_freebase_sample(sample_data, tmp_path):
    """With a stand-in for the encoder: the graph's numbers are those of its description."""
    shared = SharedGraph.open(
        sample_data / "freebase_mini.parquet", EmbeddingStore(Fake(), tmp_path), tmp_path
    )
    graph = shared.graph
    assert graph.num_edges == 744_264
    assert (graph.num_nodes, graph.num_relations) == (284_339, 3_337)
    assert graph.num_nodes - shared.num_named == 235_479
    assert shared.walk.num_arcs + len(shared.walk.loop_node) > 2 * 740_000
