"""The cross-encoder: what it may change, and training one from the sentence encoder."""

import dataclasses
import json
from pathlib import Path

import pytest
import tiny
import torch

from bisrqa import config as configs
from bisrqa import cross_encoder_training, heads
from bisrqa.config import CrossEncoderConfig, RetrieverConfig, RunConfig
from bisrqa.data.records import Chunk, Question, Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors
from bisrqa.graph.texts import from_texts
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.cross_encoder import CrossEncoder
from bisrqa.retrieval.shared import SharedGraph


class Longest(CrossEncoder):
    """In place of a cross-encoder: the longest text is the best."""

    def __init__(self, **settings):
        super().__init__(CrossEncoderConfig(model="hub/none", **settings), default_cache_dir())
        self.asked: list[tuple[str, str]] = []

    def __call__(self, pairs):
        self.asked += pairs
        return torch.tensor([float(len(text)) for _, text in pairs])


def question(number: int, count: int = 8) -> Question:
    chunks = [Chunk("T", "x" * ((7 * i + number) % 11 + 1), i, 0, 1) for i in range(count)]
    return Question(id=f"q{number}", question=f"Where is {number}?", answers=("x",), topics=(),
                    graph=(), chunks=tuple(chunks))  # fmt: skip


def found(questions, cross_encoder=None, name="dense", **kg2rag) -> list[list[int]]:
    config = RunConfig(head=name, retriever=RetrieverConfig(passages=3),
                       kg2rag=configs.KG2RAGConfig(**kg2rag))  # fmt: skip
    head = heads.build(config)
    head.cross_encoder = cross_encoder
    graphs = [from_texts(q.chunks, (), (), tiny.embed).graph for q in questions]
    x = tiny.embed([q.question for q in questions])
    kept = head(questions, x, GraphTensors.collate(graphs))
    for evidence in kept:
        score = [float(evidence.node_score[node]) for node in evidence.passages]
        assert score == sorted(score, reverse=True)
    return [
        (e.ranked_passages - (g.num_nodes - len(q.chunks))).tolist()
        for e, g, q in zip(kept, graphs, questions, strict=True)
    ]


QUESTIONS = [question(n, count) for n, count in enumerate((8, 3, 6))]


def test_the_best_are_put_in_its_order_and_the_rest_stay():
    plain = found(QUESTIONS)
    again = found(QUESTIONS, Longest(depth=4, weight=100.0))
    for before, after, asked in zip(plain, again, QUESTIONS, strict=True):
        assert sorted(after[:4]) == sorted(before[:4])
        assert after[4:] == before[4:]
        length = [len(asked.chunks[number].text) for number in after[:4]]
        assert length == sorted(length, reverse=True)


def test_without_weight_nothing_changes():
    assert found(QUESTIONS, Longest(weight=0.0)) == found(QUESTIONS)


@pytest.mark.parametrize("name", ["dense", "kg2rag", "hybrid"])
def test_company_and_order_of_questions_change_nothing(name):
    together = found(QUESTIONS, Longest(weight=0.5), name)
    assert found(QUESTIONS[::-1], Longest(weight=0.5), name)[::-1] == together
    assert [found([q], Longest(weight=0.5), name)[0] for q in QUESTIONS] == together


def test_the_literal_form_ranks_trees_with_it():
    chunks = [Chunk("Alpha", "short Beta", 0, 0, 1), Chunk("Beta", "b", 1, 0, 1),
              Chunk("Gamma", "a very long text of its own", 2, 0, 1)]  # fmt: skip
    asked = dataclasses.replace(question(0), chunks=tuple(chunks))
    looking = Longest()
    (after,) = found([asked], looking, "kg2rag", form="literal", seeds=3)
    assert after[0] == 2
    assert [text for _, text in looking.asked] == [
        "Alpha: short Beta", "Gamma: a very long text of its own",
    ]  # fmt: skip


def of_triples(cross_encoder=None, name="kg2rag") -> list[list[str]]:
    graphs = [from_triples([Triple("a", "r" * ((5 * i + g) % 7 + 1), f"b{i}") for i in range(7)],
                           tiny.embed) for g in range(2)]  # fmt: skip
    asked = [dataclasses.replace(QUESTIONS[g], chunks=(), topics=("a",)) for g in range(2)]
    head = heads.build(RunConfig(head=name))
    head.cross_encoder = cross_encoder
    kept = head(asked, tiny.embed([q.question for q in asked]), GraphTensors.collate(graphs))
    found = []
    for evidence in kept:
        order = torch.argsort(evidence.edge_score, descending=True, stable=True)
        kinds = evidence.graph.edge_type[order].tolist()
        found.append([evidence.graph.relation_text[kind] for kind in kinds])
    return found


def test_on_a_knowledge_graph_it_orders_the_best_triples():
    plain, again = of_triples(), of_triples(Longest(depth=4, weight=100.0))
    for before, after in zip(plain, again, strict=True):
        assert sorted(after[:4]) == sorted(before[:4])
        assert after[:4] == sorted(after[:4], key=len, reverse=True)
        assert after[4:] == before[4:]


def test_where_there_is_nothing_to_look_at_it_is_an_error():
    with pytest.raises(ValueError, match=r"cross_encoder\.model: this head has no texts"):
        of_triples(Longest(), "bisrqa")
    head = heads.build(RunConfig(head="bisrqa"))
    head.cross_encoder = Longest()
    with pytest.raises(ValueError, match=r"cross_encoder\.model: this head has no texts"):
        head(QUESTIONS, tiny.embed(["x"] * 3), object.__new__(SharedGraph))


def test_training_on_triples(tmp_path: Path):
    config = configs.RunConfig(
        data=configs.DataConfig(source="quickstart", train_limit=4),
        cross_encoder=CrossEncoderConfig(epochs=1, negatives=2),
        cache_dir=str(default_cache_dir()),
    )
    report = cross_encoder_training.run(config, tmp_path / "model")
    assert report["questions"] == 4
    assert report["positives"] >= 4
    one = CrossEncoder(CrossEncoderConfig(model=str(tmp_path / "model")), default_cache_dir())
    assert torch.isfinite(one([("Who?", "a b c")])).all()


def test_a_model_that_is_not_there_is_named(tmp_path: Path):
    config = RunConfig(cross_encoder=CrossEncoderConfig(model=str(tmp_path / "absent")))
    with pytest.raises(ValueError, match=r"cross_encoder.model: .*absent"):
        heads.build(config)


def test_train_save_and_ask(tmp_path: Path):
    rows = []
    for number in range(8):
        context = [[f"T{i}", [f"The sky over town {i} is {'green' if i == 2 else 'blue'}."]]
                   for i in range(5)]  # fmt: skip
        rows.append({"_id": f"q{number}", "question": f"Which sky is green, {number}?",
                     "answer": "x", "type": "", "supporting_facts": [["T2", 0]],
                     "context": context})  # fmt: skip
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf8")
    config = configs.RunConfig(
        data=configs.DataConfig(source="hotpotqa", path=str(tmp_path)),
        cross_encoder=CrossEncoderConfig(epochs=5, learning_rate=3e-4, negatives=4),
        cache_dir=str(default_cache_dir()),
    )
    report = cross_encoder_training.run(config, tmp_path / "model")
    assert (report["questions"], report["positives"]) == (8, 8)
    assert report["loss"] < report["loss_before"]
    asking = CrossEncoderConfig(model=str(tmp_path / "model"))
    pairs = [("Which sky is green?", f"T: The sky over town {i} is {c}.")
             for i, c in enumerate(["blue", "green", "blue"])]  # fmt: skip
    one = CrossEncoder(asking, default_cache_dir())
    scores = one(pairs)
    assert int(scores.argmax()) == 1
    other = CrossEncoder(dataclasses.replace(asking, batch_size=1), default_cache_dir())
    assert torch.allclose(other(pairs[::-1]).flip(0), scores, atol=1e-4)
    assert len(one([])) == 0
    known = json.loads((tmp_path / "model" / "bisrqa.json").read_text("utf8"))
    assert known["report"] == report
