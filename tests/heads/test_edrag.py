"""ED-RAG: the way along entities and events, what speaks for a passage, and what is kept."""

import dataclasses
import json

import pytest
import torch

from bisrqa.config import EDRAGConfig, RetrieverConfig
from bisrqa.data.records import Chunk, Event, Question, Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors
from bisrqa.graph.texts import from_texts
from bisrqa.heads.edrag import EDRAGHead
from bisrqa.retrieval.events import FEATURES, SIGNALS, EventLinks, pieces_of, redundant
from bisrqa.retrieval.mentions import mentions, names_of
from bisrqa.retrieval.passages import links
from bisrqa.retrieval.ranker import PassageRanker

DIM = 32


def embed(texts):
    """A bag of characters: texts that share some are near."""
    rows = torch.zeros(len(texts), DIM)
    for row, text in zip(rows, texts, strict=True):
        for letter in text:
            row[ord(letter) % DIM] += 1
    return torch.nn.functional.normalize(rows + 1e-3, dim=-1)


CHUNKS = (
    Chunk("", "青禾公司7月5日在泰州启用新码头。", 0, 0, 1, "a"),
    Chunk("", "仪式上发放了纪念品500份。", 0, 1, 2, "a"),
    Chunk("", "白鹭集团8月在南京招聘。", 1, 0, 1, "b"),
    Chunk("", "今天下雨。", 2, 0, 1, "c"),
)
EVENTS = (
    (0, Event("青禾公司启用新码头", "7月5日", "泰州", ("青禾公司",), "2023-07-05")),
    (1, Event("仪式上发放纪念品", "", "", ())),
    (2, Event("白鹭集团招聘", "8月", "南京", ("白鹭集团",), "2023-08-01/2023-08-31")),
)
NAMED = ((0, "青禾公司"), (0, "泰州"), (2, "白鹭集团"), (2, "南京"))


def question(text: str, **changes) -> Question:
    values = {
        "id": text, "question": text, "answers": ("500份",), "topics": (), "graph": (),
        "chunks": CHUNKS, "named": NAMED, "events": EVENTS,
    }  # fmt: skip
    return Question(**(values | changes))


def batch(questions) -> tuple[torch.Tensor, GraphTensors]:
    graphs = [
        from_texts(q.chunks, q.graph, q.sources, embed, q.named, None, q.events).graph
        for q in questions
    ]
    return embed([q.question for q in questions]), GraphTensors.collate(graphs)


def run(questions, **changes):
    head = EDRAGHead(RetrieverConfig(passages=3), EDRAGConfig(**changes), embed)
    return head(questions, *batch(questions))


def texts(evidence) -> list[str]:
    return [evidence.graph.node_text[node] for node in evidence.passages]


def test_the_way_leads_from_an_entity_over_its_event_to_the_text():
    (found,) = run([question("青禾公司启用了什么？")], form="literal")
    assert found.found_by == "graph"
    assert texts(found) == [CHUNKS[0].text]
    weight, way = found.named["青禾公司"]
    assert (round(weight, 3), way) == (1.0, "exact")


def test_where_no_entity_is_named_the_nearest_events_answer():
    (found,) = run([question("招聘在哪里？")], form="literal", index=1)
    assert found.found_by == "index"
    assert texts(found) == [CHUNKS[2].text]
    assert found.named == {}


def test_every_signal_is_shown_of_every_passage_kept():
    (found,) = run([question("青禾公司7月5日启用了什么？")])
    assert list(found.signals) == list(SIGNALS)
    assert all(len(values) == len(found.passages) for values in found.signals.values())
    assert texts(found)[0] == CHUNKS[0].text
    assert float(found.signals["coverage"][0]) == pytest.approx(1.0)


def test_a_text_speaks_for_its_other_passages():
    """The number stands in a passage without any of the question's names."""
    asked = [question("青禾公司启用新码头发放了多少纪念品？")]
    head = EDRAGHead(RetrieverConfig(), EDRAGConfig())
    looked = head.look(asked, *batch(asked))
    line = dict(zip(SIGNALS, looked.signals.T, strict=True))["line"]
    assert float(line[1]) == pytest.approx(float(line[0]))
    assert float(line[1]) > float(line[2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023年7月发生了什么？", [1.0, 0.0, -1.0, 0.0]),
        ("2023年8月发生了什么？", [-1.0, 0.0, 1.0, 0.0]),
        ("发生了什么？", [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_time_that_is_asked_about_is_agreed_with_or_not(text, expected):
    asked = [question(text)]
    looked = EDRAGHead(RetrieverConfig(), EDRAGConfig()).look(asked, *batch(asked))
    time = dict(zip(SIGNALS, looked.signals.T, strict=True))["time"]
    assert time.tolist() == expected


def test_who_asks_for_a_number_gets_numbers_and_who_asks_where_places():
    asked = [question("发放了多少？"), question("在哪里？")]
    looked = EDRAGHead(RetrieverConfig(), EDRAGConfig()).look(asked, *batch(asked))
    slot = dict(zip(SIGNALS, looked.signals.T, strict=True))["slot"].reshape(2, 4)
    assert slot[0, 1] > 0
    assert slot[0, 3] == 0
    assert (slot[1] > 0).tolist() == [True, False, True, False]


def test_company_changes_nothing():
    asked = [question("青禾公司启用了什么？"), question("招聘在哪里？"),
             question("8月发生了什么？", chunks=CHUNKS[2:3], events=(), named=())]  # fmt: skip
    together = run(asked)
    for alone, found in zip(asked, together, strict=True):
        (single,) = run([alone])
        assert texts(single) == texts(found)
        torch.testing.assert_close(single.node_score, found.node_score)
        assert single.found_by == found.found_by


def test_passages_without_events_are_ranked_all_the_same(caplog):
    (found,) = run([question("今天下雨吗？", events=(), named=())])
    assert caplog.text.count("have no events") == 1
    assert texts(found)[0] == CHUNKS[3].text
    assert found.found_by == "index"


def test_a_passage_that_tells_nothing_new_can_be_put_back():
    chunks = (CHUNKS[0], CHUNKS[0]._replace(paragraph=1, source="d"), *CHUNKS[1:])
    event = EVENTS[0][1]
    graph = from_texts(
        chunks, [], [], embed, [], None, [(0, event), (1, event)],
        lambda told: _one_of(told),
    ).graph  # fmt: skip
    score = torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0])
    again = redundant(score, graph, EventLinks.of(graph))
    assert again.tolist() == [True, False, False, False, False]


def _one_of(told):
    from bisrqa.graph.events import Fusion, alone, merged

    return Fusion((merged(alone(0, told[0][1]), alone(1, told[1][1])),), ())


def test_names_in_questions():
    assert names_of("Who founded the Bank of England in London?") == ["Bank of England", "London"]
    assert "盘古" in names_of("《盘古》是谁研发的？")
    assert names_of("what is it?") == names_of("") == []


def test_a_misspelt_name_is_found_where_that_is_asked_for():
    chunks = (Chunk("Marie Curie", "She won a prize.", 0, 0, 1),)
    graph = from_texts(chunks, [], [], embed).graph
    asked = ["What did Marie Currie win?"]
    assert not len(mentions(asked, graph, links(graph)).node)
    found = mentions(asked, graph, links(graph), fuzzy=0.9)
    assert graph.node_text[int(found.node[0])] == "Marie Curie"
    assert found.way[0].startswith("spelling")
    found = mentions(asked, graph, links(graph), embedding=0.8, embed=embed)
    assert found.way[0].startswith("embedding")


def test_a_rare_name_means_more():
    chunks = tuple(Chunk("", f"中国第{n}次", n, 0, 1) for n in range(9))
    named = [(n, "中国") for n in range(9)] + [(0, "青禾公司")]
    graph = from_texts(chunks, [], [], embed, named).graph
    found = mentions(["中国的青禾公司在哪里？"], graph, links(graph))
    rows = zip(found.node.tolist(), found.weight.tolist(), strict=True)
    weight = {graph.node_text[node]: value for node, value in rows}
    assert weight["青禾公司"] > 2 * weight["中国"]
    core = mentions(["中国的青禾公司在哪里？"], graph, links(graph), core=0.9)
    assert [graph.node_text[n] for n in core.node.tolist()] == ["青禾公司"]


def test_pieces_of_words():
    assert pieces_of("谁启用码头？") == ("启用", "用码", "码头")
    asked = "Nobody organised anything, did they?"
    assert pieces_of(asked) == (" nobod", " organ", " anyth", " did")
    assert pieces_of("") == ()


def test_a_trained_ranker_replaces_the_weights(tmp_path):
    ranker = PassageRanker(FEATURES)
    ranker.save(tmp_path / "r", {})
    asked = [question("青禾公司启用了什么？")]
    (found,) = run(asked, ranker=str(tmp_path / "r"))
    assert len(found.passages) == 3
    header = json.loads((tmp_path / "r" / "ranker.json").read_text("utf8"))
    (tmp_path / "r" / "ranker.json").write_text(json.dumps(header | {"features": ["x"]}), "utf8")
    with pytest.raises(ValueError, match="other features"):
        run(asked, ranker=str(tmp_path / "r"))


def test_on_a_knowledge_graph_mediators_are_the_events():
    triples = (
        Triple("青禾公司", "founded", "m.01"), Triple("m.01", "by", "周远"),
        Triple("m.01", "in", "泰州"), Triple("白鹭集团", "based in", "南京"),
    )  # fmt: skip
    graph = GraphTensors.collate([from_triples(triples, embed)])
    asked = [question("founded by", topics=("青禾公司",), graph=triples, chunks=(), events=())]
    head = EDRAGHead(RetrieverConfig(top_k=2), EDRAGConfig())
    (found,) = head(asked, embed(["founded by"]), graph)
    assert {"青禾公司", "m.01", "周远", "泰州"} == set(found.graph.node_text)


@pytest.mark.parametrize("key", ["words", "coverage", "redundancy"])
def test_negative_weights_are_refused(key):
    with pytest.raises(ValueError, match=f"edrag.{key}"):
        dataclasses.replace(EDRAGConfig(), **{key: -1.0})
