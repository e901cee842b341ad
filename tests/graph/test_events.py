"""Events as nodes of a graph of texts."""

import torch

from bisrqa.config import FusionConfig
from bisrqa.data.records import Chunk, Event
from bisrqa.fusion import Fuser, Rules
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import from_texts, texts_of


def embed(texts):
    rows = [[len(text), sum(map(ord, text)) % 97 + 1.0, 1.0] for text in texts]
    return torch.nn.functional.normalize(torch.tensor(rows).reshape(-1, 3), dim=-1)


CHUNKS = [
    Chunk("", "青禾公司5日在泰州启用新码头。", 0, 0, 1, "a", "2023-07-06"),
    Chunk("", "市长周远出席仪式。", 0, 1, 2, "a", "2023-07-06"),
    Chunk("", "青禾公司7月5日在泰州启用新码头。", 1, 0, 1, "b", "2023-07-07"),
    Chunk("", "天气晴。", 2, 0, 1, "c"),
]
OPENED = Event("青禾公司启用新码头并剪彩", "5日", "泰州", ("青禾公司",), "2023-07-05")
EVENTS = [(0, OPENED), (1, Event("周远出席仪式", "", "", ("周远",))), (2, OPENED)]


def graph_of(fuse=None) -> GraphTensors:
    more = {} if fuse is None else {"fuse": fuse}
    return from_texts(CHUNKS, [], [], embed, [], None, EVENTS, **more).graph.check()


def edges(graph: GraphTensors) -> set[tuple[str, str, str, str]]:
    name = graph.node_text
    return {
        (name[h], graph.relation_text[r], name[t], name[p] if p >= 0 else "")
        for h, t, r, p in zip(
            *graph.edge_index.tolist(), graph.edge_type.tolist(), graph.edge_passage.tolist(),
            strict=True,
        )
    }  # fmt: skip


def same(events):
    config = FusionConfig(threshold=0.0)
    return Fuser(config, Rules(config))(events, torch.ones(len(events), 1))


def test_entities_events_and_passages_stand_in_this_order():
    graph = graph_of()
    kinds = graph.node_kind.tolist()
    assert kinds == sorted(kinds)
    assert kinds.count(NodeKind.EVENT) == 3
    assert graph.node_text[-4:] == tuple(chunk.text for chunk in CHUNKS)
    asked = set(texts_of(CHUNKS, [], [], EVENTS))
    assert {*graph.node_text, *graph.relation_text} <= asked  # all of them can be embedded before


def test_nothing_stands_there_without_a_source():
    found = edges(graph_of())
    text = OPENED.name + " (5日, 泰州)"
    for passage in (CHUNKS[0].text, CHUNKS[2].text):
        assert (text, "involves", "青禾公司", passage) in found
        assert (text, "located in", "泰州", passage) in found
        assert (text, "dated", "2023-07-05", passage) in found
        assert (passage, "describes", text, "") in found
    told = {tail for _, kind, tail, _ in found if kind == "describes"}
    assert told == {text, "周远出席仪式"}
    heads = {head for head, kind, *_ in found if kind in ("involves", "located in", "dated")}
    assert heads <= told
    assert all(source for *_, kind, _, source in found if kind in ("involves", "dated"))


def test_a_text_goes_on_from_what_it_begins_with():
    found = edges(graph_of())
    assert {(h, t) for h, kind, t, _ in found if kind == "continues"} == {
        (CHUNKS[1].text, OPENED.name + " (5日, 泰州)")
    }


def test_a_fused_event_has_all_its_sources():
    graph = graph_of(same)
    assert graph.node_kind.tolist().count(NodeKind.EVENT) == 2
    found = edges(graph)
    text = OPENED.name + " (5日, 泰州)"
    assert {h for h, kind, t, _ in found if kind == "describes" and t == text} == {
        CHUNKS[0].text, CHUNKS[2].text,
    }  # fmt: skip
    assert {p for h, kind, _, p in found if kind == "involves" and h == text} == {
        CHUNKS[0].text, CHUNKS[2].text,
    }  # fmt: skip


def test_an_article_without_events_is_only_a_passage():
    graph = from_texts(CHUNKS[3:], [], [], embed, [], None, []).graph.check()
    assert graph.node_kind.tolist() == [NodeKind.PASSAGE]
    assert graph.relation_text == ("titled", "mentions")


def test_an_event_without_time_or_entities_is_told_of_all_the_same():
    graph = from_texts(CHUNKS[3:], [], [], embed, [], None, [(0, Event("天气晴"))]).graph.check()
    assert edges(graph) == {("天气晴。", "describes", "天气晴", "")}


def test_variants_of_a_name_are_one_node_and_one_character_names_nothing():
    chunks = [Chunk("", "臺灣與ＩＴ之家合作。京东参加。", 0, 0, 1, "a")]
    named = [(0, "台湾"), (0, "IT之家"), (0, "臺灣"), (0, "京")]
    graph = from_texts(chunks, [], [], embed, named).graph
    names = [t for t, k in zip(graph.node_text, graph.node_kind.tolist(), strict=True) if k == 0]
    assert names == ["台湾", "IT之家", "京"]
    other = from_texts(
        [Chunk("", "京东参加。", 0, 0, 1), *chunks], [], [], embed, [(1, "京")]
    ).graph
    assert not [e for e in edges(other) if e[2] == "京" and e[0] == "京东参加。"]


def test_ten_thousand_mentions_of_one_entity_are_no_trouble():
    chunks = [Chunk("", f"青禾公司第{n}次开会。", n, 0, 1, str(n)) for n in range(2000)]
    events = [(n, Event(f"第{n}次开会", "", "", ("青禾公司",))) for n in range(2000)]
    named = [(n % 2000, "青禾公司") for n in range(10_000)]
    graph = from_texts(chunks, [], [], embed, named, None, events).graph.check()
    assert graph.node_text.count("青禾公司") == 1
