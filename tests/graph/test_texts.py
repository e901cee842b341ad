"""Text graphs: entities, passages and what joins them."""

import tiny

from bisrqa.data.records import Chunk, Triple
from bisrqa.graph.tensors import NodeKind
from bisrqa.graph.texts import MENTIONS, TITLED, Entities, from_texts, texts_of


def chunk(title: str, text: str, paragraph: int = 0, start: int = 0) -> Chunk:
    return Chunk(title, text, paragraph, start, start + 1)


CHUNKS = [
    chunk("Kodachrome", "It was made by Leopold Godowsky Jr. and the Kodak company."),
    chunk("Leopold Godowsky Jr. (violinist)", "He was born in Chicago.", 1),
    chunk("Leopold Godowsky Jr. (violinist)", "Kodachrome made him rich, Kodachrome alone.", 1, 1),
]  # fmt: skip
TRIPLES = [
    Triple("Leopold Godowsky Jr.", "born in", "Chicago"),
    Triple("kodachrome", "made by", "The Leopold Godowsky Jr."),
    Triple("Leopold Godowsky Jr.", "born in", "Chicago"),
]


def edges(graph) -> set[tuple[str, str, str, int]]:
    first = graph.num_nodes - len(CHUNKS)
    return {
        (graph.node_text[h] if h < first else f"#{h - first}", graph.relation_text[r],
         graph.node_text[t], p - first if p >= 0 else -1)
        for h, t, r, p in zip(*graph.edge_index.tolist(), graph.edge_type.tolist(),
                              graph.edge_passage.tolist(), strict=True)
    }  # fmt: skip


def test_by_hand():
    graph = from_texts(CHUNKS, TRIPLES, (1, 0, 1), tiny.embed).graph.check()
    violinist = "Leopold Godowsky Jr. (violinist)"
    assert graph.node_text == ("Kodachrome", violinist, "Chicago", *(c.words for c in CHUNKS))
    assert graph.node_kind.tolist() == [NodeKind.ENTITY] * 3 + [NodeKind.PASSAGE] * 3
    assert edges(graph) == {
        (violinist, "born in", "Chicago", 1), ("Kodachrome", "made by", violinist, 0),
        ("#0", TITLED, "Kodachrome", -1), ("#1", TITLED, violinist, -1),
        ("#2", TITLED, violinist, -1), ("#0", MENTIONS, violinist, -1),
        ("#1", MENTIONS, "Chicago", -1), ("#2", MENTIONS, "Kodachrome", -1),
    }  # fmt: skip
    assert graph.num_edges == 8  # the fact that was read twice from one chunk counts once


def test_the_same_fact_of_two_chunks_is_two_edges():
    graph = from_texts(CHUNKS, TRIPLES[:1] * 2, (1, 2), tiny.embed).graph
    assert sorted(graph.edge_passage[graph.edge_passage >= 0].tolist()) == [4, 5]


def test_every_text_is_announced():
    graph = from_texts(CHUNKS, TRIPLES, (1, 0, 1), tiny.embed).graph
    assert {*graph.node_text, *graph.relation_text} <= set(texts_of(CHUNKS, TRIPLES))


def test_merges_are_recorded():
    entities = Entities()
    titles = [entities.add_title(name) for name in ("Reno (film)", "Paris", "Nice (song)")]
    assert titles == [0, 1, 2]
    assert entities.add("The Paris") == 1
    assert entities.add("Reno") == 0
    assert entities.add("reno") == 0
    assert [(m.name, m.entity) for m in entities.merges] == [
        ("The Paris", "Paris"), ("Reno", "Reno (film)"),
    ]  # fmt: skip


def test_a_name_that_two_titles_share_is_merged_with_neither():
    entities = Entities()
    for title in ("Reno (film)", "Reno (city)"):
        entities.add_title(title)
    assert entities.add("Reno") == 2
    assert entities.merges == []
    assert list(entities.in_text("In Reno today")) == [2]
    fresh = Entities()
    for title in ("Reno (film)", "Reno (city)"):
        fresh.add_title(title)
    assert list(fresh.in_text("In Reno today")) == [0, 1]


def test_the_longest_name_counts_and_small_words_do_not():
    entities = Entities()
    for name in ("New York", "New York City", "York", "He", "7", "it"):
        entities.add(name)
    found = list(entities.in_text("he saw new york city and york and 7 of it york"))
    assert [entities.names[i] for i in found] == ["New York City", "York"]


def test_no_title_no_triples_no_words():
    graph = from_texts([chunk("", "alone"), chunk("", "...")], [], [], tiny.embed).graph.check()
    assert graph.num_nodes == 2
    assert graph.num_edges == 0
    assert from_texts([], [], [], tiny.embed).graph.check().num_nodes == 0
