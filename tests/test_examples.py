"""From questions to examples: the real sentence encoder on quick-start questions, then a fake."""

import dataclasses
import zlib
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from bisrqa import examples
from bisrqa.config import DataConfig, EmbedderConfig, RunConfig
from bisrqa.data import quickstart
from bisrqa.data.records import Question, Triple
from bisrqa.examples import Example, Retriever
from bisrqa.graph import embed
from bisrqa.retrieval.subgraph import Reason

NO_GRAPH = Question(id="none", question="who?", answers=("a",), topics=("b",), graph=())
QUESTIONS = quickstart.load("test")[:20]
CONFIG = RunConfig()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def found(cache) -> list[Example]:
    """All twenty, and one without a graph among them."""
    questions = iter([*QUESTIONS[:7], NO_GRAPH, *QUESTIONS[7:]])
    return list(Retriever(CONFIG, cache)(questions))


def assert_same(one: Example, other: Example) -> None:
    assert one.question == other.question
    assert torch.equal(one.question_x, other.question_x)
    assert one.evidence.graph.node_text == other.evidence.graph.node_text
    for name in ("node_ids", "edge_ids", "node_score", "edge_score", "reason"):
        assert torch.equal(getattr(one.evidence, name), getattr(other.evidence, name)), name
    assert torch.equal(one.evidence.graph.x, other.evidence.graph.x)


def test_one_example_a_question_in_order(found):
    asked = [*QUESTIONS[:7], NO_GRAPH, *QUESTIONS[7:]]
    assert [e.question for e in found] == [dataclasses.replace(q, graph=()) for q in asked]


def test_the_answers_are_found(found):
    golds = kept = 0
    for example in found:
        if example.question.id == "none":
            continue
        answers, graph = example.question.answers, example.evidence.graph
        assert example.golds_in_graph == len(answers)  # the quick-start graphs hold them all
        assert example.golds_in_evidence == len(set(answers) & set(graph.node_text))
        golds += example.golds_in_graph
        kept += example.golds_in_evidence
    assert kept / golds > 0.9  # by chance a third


def test_evidence_is_a_part_of_the_questions_graph(found):
    whole = {question.id: question for question in [*QUESTIONS, NO_GRAPH]}
    for example in found:
        graph, question = example.evidence.graph.check(), whole[example.question.id]
        texts, relations = graph.node_text, graph.relation_text
        triples = [
            Triple(texts[h], relations[r], texts[t])
            for h, t, r in zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True)
        ]
        # Every triple between kept nodes, each once.
        assert sorted(triples) == sorted(t for t in question.graph if {t[0], t[2]} <= set(texts))
        assert all(high >= low for high, low in pairwise(example.evidence.edge_score.tolist()))
        reasons = dict(zip(texts, example.evidence.reason.tolist(), strict=True))
        kept = list(reasons.values())
        if question.graph:
            assert [n for n in texts if reasons[n] == Reason.TOPIC] == list(question.topics)
            assert kept.count(Reason.TOP_K) == CONFIG.retriever.top_k
        assert example.evidence.node_score.sum() <= 1 + 1e-5


def test_embeddings_are_unit_norm_in_half_precision(found):
    for example in found:
        graph = example.evidence.graph
        assert graph.x.dtype == graph.relation_x.dtype == example.question_x.dtype == torch.float16
        for rows in (graph.x, graph.relation_x, example.question_x[None]):
            norm = rows.float().norm(dim=1)
            assert torch.allclose(norm, torch.ones(len(rows)), atol=2e-3)


def test_a_question_without_a_graph_passes(found):
    example = found[7]
    assert example.question == NO_GRAPH
    assert (example.golds_in_graph, example.golds_in_evidence) == (0, 0)
    assert (example.evidence.graph.num_nodes, example.evidence.graph.num_edges) == (0, 0)
    assert example.evidence.graph.x.shape == (0, len(example.question_x))


def test_the_next_run_reads_embeddings_from_the_cache(found, cache, monkeypatch):
    def refuse(*args):
        raise AssertionError("nothing is left to encode")

    monkeypatch.setattr(embed.SentenceEmbedder, "encode", refuse)
    config = dataclasses.replace(CONFIG, data=DataConfig(source="quickstart"))
    retriever = Retriever(config, cache)
    again = examples.load(config, "test", retriever, limit=7)
    assert len(again) == 7
    for one, other in zip(again, found, strict=False):
        assert_same(one, other)
    assert retriever.dim == len(found[0].question_x)


class Fake:
    """Stands in for the sentence encoder; vectors depend on prompt and text."""

    def __init__(self, config, cache_dir, prompt=""):
        self.identity = f"fake-{len(prompt)}"
        self.dim = 6
        self.prompt = prompt

    def encode(self, texts, batch_size):
        seeds = [zlib.crc32((self.prompt + text).encode()) for text in texts]
        rows = np.stack([np.random.default_rng(s).standard_normal(self.dim) for s in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(embed, "SentenceEmbedder", Fake)


def test_sizes_of_chunk_and_batch_change_nothing(fake, tmp_path, monkeypatch):
    asked = [*QUESTIONS[:5], NO_GRAPH]
    usual = list(Retriever(CONFIG, tmp_path / "a")(asked))
    monkeypatch.setattr(examples, "CHUNK_QUESTIONS", 4)
    monkeypatch.setattr(examples, "BATCH_QUESTIONS", 3)
    for one, other in zip(Retriever(CONFIG, tmp_path / "b")(asked), usual, strict=True):
        assert_same(one, other)


def test_questions_are_streamed(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "CHUNK_QUESTIONS", 2)
    many = (dataclasses.replace(NO_GRAPH, id=str(number)) for number in range(100))
    found = islice(Retriever(CONFIG, tmp_path)(many), 5)
    assert [example.question.id for example in found] == ["0", "1", "2", "3", "4"]
    assert next(many).id == "6"
    assert list(Retriever(CONFIG, tmp_path)([])) == []


def test_questions_and_texts_have_their_own_prompt(fake, tmp_path):
    embedder = EmbedderConfig(question_prompt="query: ", text_prompt="text: ")
    config = dataclasses.replace(CONFIG, embedder=embedder)
    # A question that is also the name of a node.
    asked = dataclasses.replace(NO_GRAPH, graph=(Triple("who?", "is", "a"),))
    (example,) = Retriever(config, tmp_path)([asked])
    (as_question,) = Fake(None, None, "query: ").encode(["who?"], 1)
    as_text = Fake(None, None, "text: ").encode(["who?", "a"], 2)
    for vector, expected in (
        (example.question_x, as_question),
        (example.evidence.graph.x, as_text),
    ):
        assert np.allclose(vector.float(), expected, atol=1e-3)
