"""Retrieval scores without a language model, on the real quick-start data and by hand."""

import dataclasses
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tiny
import torch

from bisrqa import cli, examples, recall
from bisrqa import config as configs
from bisrqa.data.records import Question, Triple
from bisrqa.examples import Example
from bisrqa.graph.build import from_triples
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.paths import carry_back, distances, on_shortest_paths

ROOT = Path(__file__).parent.parent
QUICK = ["retrieve", f"--config={ROOT}/configs/quickstart.yaml", "--limit=30"]


def example(places=(), in_graph: int = 1, **values) -> Example:
    made = tiny.example("who", triples=[("a", "r", "b"), ("a", "r", "c")])
    return dataclasses.replace(
        made, gold_places=tuple(places), golds_in_graph=in_graph, golds_in_evidence=0, **values
    )


def test_scores_by_hand():
    found = [
        example((0, 7), 2),
        example((30,), 3),
        example((), 8, path_triples=4, path_triples_kept=1),
        example((), 0),
    ]
    scores = recall.scores(found)
    assert (scores["n"], scores["questions"], scores["golds_in_graph"]) == (3, 4, 0.75)
    assert scores["answer_recall@5"] == pytest.approx((1 / 2 + 0 + 0) / 3, abs=1e-4)
    assert scores["answer_recall@10"] == pytest.approx((1 + 0 + 0) / 3, abs=1e-4)
    assert scores["answer_recall@50"] == pytest.approx((1 + 1 / 3 + 0) / 3, abs=1e-4)
    assert scores["answer_ceiling@5"] == pytest.approx((1 + 1 + 5 / 8) / 3, abs=1e-4)
    assert scores["answer_hit@50"] == pytest.approx(2 / 3, abs=1e-4)
    assert scores["n_paths"] == 1
    assert scores["triple_recall"] == 0.25
    assert scores["triple_precision"] == 0.5  # 1 of the 2 triples that were kept


def test_nothing_to_find_is_no_error():
    scores = recall.scores([example((), 0)])
    assert scores["n"] == 0
    assert scores["answer_recall@20"] == 0


def embed(texts) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.ones(len(texts), 4), dim=-1)


def test_shortest_ways_by_hand():
    """t - a - g, t - b - c - g is longer, x hangs on nothing, and a self-loop is no way."""
    triples = [
        ("t", "r", "a"), ("g", "r", "a"), ("t", "r", "b"), ("b", "r", "c"), ("c", "r", "g"),
        ("x", "r", "y"), ("a", "r", "a"), ("a", "s", "g"),
    ]  # fmt: skip
    graph = from_triples([Triple(*t) for t in triples], embed)
    at = {name: i for i, name in enumerate(graph.node_text)}
    sources = torch.tensor([name == "t" for name in graph.node_text])
    distance = distances(graph, sources)
    assert {n: int(distance[i]) for n, i in at.items()} == {
        "t": 0, "a": 1, "g": 2, "b": 1, "c": 2, "x": -1, "y": -1,
    }  # fmt: skip
    targets = torch.tensor([name in ("g", "y") for name in graph.node_text])
    node, edge = on_shortest_paths(graph, distance, targets)
    assert {n for n, i in at.items() if node[i]} == {"t", "a", "g"}
    assert edge.nonzero().squeeze(1).tolist() == [0, 1, 7]
    value = torch.tensor([{"g": 0.9, "c": 0.5, "y": 1.0}.get(n, 0.0) for n in graph.node_text])
    carried = carry_back(graph, distance, value)
    assert {n: round(float(carried[i]), 2) for n, i in at.items()} == {
        "t": 0.9, "a": 0.9, "g": 0.9, "b": 0.5, "c": 0.5, "x": 0.0, "y": 1.0,
    }  # fmt: skip


def test_examples_say_where_their_golds_stand(tmp_path):
    triples = tuple(
        Triple(*t)
        for t in [("Ada", "place of birth", "Rome"), ("Rome", "country", "Italy"),
                  ("Bo", "spouse", "Di"), ("Ada", "spouse", "Ada")]
    )  # fmt: skip
    asked = [
        Question(id="1", question="where was Ada born", answers=("Rome",), topics=("Ada",),
                 graph=triples),
        Question(id="2", question="which country is Ada from", answers=("Italy", "Ada", "Mars"),
                 topics=("Ada",), graph=triples),
        Question(id="3", question="who is Di", answers=("Di",), topics=("Ada",), graph=triples),
        Question(id="4", question="who is it", answers=("Rome",), topics=(), graph=triples),
    ]  # fmt: skip
    config = configs.RunConfig()
    made = list(examples.Retriever(config, default_cache_dir())(asked))
    assert [e.hops for e in made] == [1, 0, None, None]
    assert [e.golds_in_graph for e in made] == [1, 2, 1, 1]
    assert [len(e.gold_places) for e in made] == [1, 2, 1, 1]
    assert made[1].gold_places[0] == 0  # a topic is always kept
    assert [e.path_triples for e in made] == [1, 2, 0, 0]
    assert made[0].path_triples_kept == 1
    ranked = made[0].evidence.ranked.tolist()
    names = list(dict.fromkeys(n for t in triples for n in (t.head, t.tail)))
    assert names[ranked[made[0].gold_places[0]]] == "Rome"


def run(words, capsys) -> dict:
    assert cli.main(words) == 0
    return json.loads(capsys.readouterr().out)


def test_retrieve_prints_one_flat_object_and_writes_it(tmp_path, capsys):
    found = run([*QUICK, f"--out={tmp_path}/r.json"], capsys)
    assert found == json.loads((tmp_path / "r.json").read_text())
    assert all(isinstance(value, str | int | float) for value in found.values())
    assert found["n"] == found["questions"] == 30
    for depth in recall.DEPTHS:
        recalled, ceiling = found[f"answer_recall@{depth}"], found[f"answer_ceiling@{depth}"]
        assert 0 < recalled <= ceiling <= 1
        assert found[f"answer_hit@{depth}"] >= recalled
    assert found["seconds_per_question"] > 0
    assert found["prompt_tokens"] > 0
    assert sum(v for k, v in found.items() if k.startswith("n/hops=")) == 30


def test_the_ranking_does_not_depend_on_how_many_are_kept(capsys):
    one, other = (run([*QUICK, f"--retriever.top_k={k}"], capsys) for k in (3, 40))
    assert [one[f"answer_recall@{k}"] for k in recall.DEPTHS] == [
        other[f"answer_recall@{k}"] for k in recall.DEPTHS
    ]
    assert one["nodes_kept"] < other["nodes_kept"]
    assert one["answer_recall"] < other["answer_recall"]


def test_heads_and_topics_are_chosen_on_the_command_line(capsys):
    usual = run(QUICK, capsys)
    gold = run([*QUICK, "--head=gold"], capsys)
    off = run([*QUICK, "--topics=off"], capsys)
    assert gold["answer_recall@20"] == gold["answer_ceiling@20"]
    assert gold["triple_recall"] == gold["triple_precision"] == 1.0
    assert usual["answer_recall@5"] != off["answer_recall@5"]
    assert usual["n_paths"] == 30
    assert off["n_paths"] == 0


def test_the_config_s_limit_is_for_answering(capsys):
    words = ["retrieve", f"--config={ROOT}/configs/quickstart.yaml", "--evaluation.limit=5"]
    assert run(words, capsys)["questions"] == 200
    assert run([*words, "--limit=7"], capsys)["questions"] == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split=nowhere"], "split must be one of"),
        (["--out=r.jsonl"], "expected a name that ends in .json"),
        (["--head=bm25", "--data.graph=shared", "--data.graph_path=x.parquet"], "head must be"),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys):
    assert cli.main([*QUICK, *words]) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_an_unknown_head_is_named(capsys):
    with pytest.raises(SystemExit):
        cli.main([*QUICK, "--head=sppr"])
    assert "head" in capsys.readouterr().err


def test_what_is_odd_in_the_data_is_said_once(tmp_path, caplog, capsys):
    """The split is read twice, for its texts and for its questions."""
    row = {
        "id": "a", "question": "who", "answer": ["b"], "q_entity": ["nobody"],
        "graph": [["c", "r", "b"]],
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "test.parquet")
    found = run(["retrieve", f"--data.path={tmp_path}/test.parquet"], capsys)
    assert found["n"] == 1
    said = [r.getMessage() for r in caplog.records if "topic entities" in r.getMessage()]
    assert len(said) == 1
