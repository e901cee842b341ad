"""Graphs from records, by hand."""

import torch

from bisrqa.data.records import Triple
from bisrqa.graph.build import from_triples, texts_of
from bisrqa.graph.tensors import NodeKind

VECTORS = {
    "Oslo": [1.0, 0.0],
    "Norway": [0.6, 0.8],
    "1814": [0.0, 1.0],
    "in": [-1.0, 0.0],
    "capital of": [0.0, -1.0],
    "since": [0.8, -0.6],
}
# Oslo -in-> Norway, twice; parallel to it "capital of"; one edge back; a mediator; a self-loop.
TRIPLES = [
    Triple("Oslo", "in", "Norway"),
    Triple("m.0x1", "since", "1814"),
    Triple("Oslo", "capital of", "Norway"),
    Triple("Oslo", "in", "Norway"),
    Triple("Norway", "in", "m.0x1"),
    Triple("Norway", "in", "Oslo"),
    Triple("Norway", "in", "Norway"),
    Triple("m.0x1", "since", "1814"),
]


def embed(texts):
    return torch.tensor([VECTORS[text] for text in texts]).reshape(-1, 2)


def test_by_hand():
    graph = from_triples(TRIPLES, embed).check()
    assert graph.node_text == ("Oslo", "Norway", "m.0x1", "1814")
    assert graph.relation_text == ("in", "since", "capital of")
    assert graph.edge_index.tolist() == [[0, 2, 0, 1, 1, 1], [1, 3, 1, 2, 0, 1]]
    assert graph.edge_type.tolist() == [0, 1, 2, 0, 0, 0]
    assert graph.edge_passage.tolist() == [-1] * 6
    assert graph.node_kind.tolist() == [
        NodeKind.ENTITY,
        NodeKind.ENTITY,
        NodeKind.MEDIATOR,
        NodeKind.ENTITY,
    ]
    assert graph.node_kind.dtype == torch.int8
    # The mediator has no text: a zero row, and nothing was asked of `embed` for it.
    assert torch.equal(graph.x, torch.tensor([[1, 0], [0.6, 0.8], [0, 0], [0, 1]]))
    assert torch.equal(graph.relation_x, embed(["in", "since", "capital of"]))
    for ptr, total in ((graph.node_ptr, 4), (graph.edge_ptr, 6), (graph.relation_ptr, 3)):
        assert ptr.tolist() == [0, total]


def test_any_iterable_of_triples_will_do():
    one, other = from_triples(TRIPLES, embed), from_triples(iter(TRIPLES), embed)
    assert one.node_text == other.node_text
    assert torch.equal(one.edge_index, other.edge_index)


def test_no_triples_and_only_mediators():
    graph = from_triples([], embed).check()
    assert (graph.num_nodes, graph.num_edges, graph.num_relations) == (0, 0, 0)
    assert graph.x.shape == graph.relation_x.shape == (0, 2)
    graph = from_triples([Triple("m.0x1", "in", "g.12")], embed).check()
    assert graph.node_kind.tolist() == [NodeKind.MEDIATOR] * 2
    assert not graph.x.any()


def test_texts_of_lists_what_will_be_asked_for():
    assert list(texts_of(TRIPLES[1:3])) == ["1814", "since", "Oslo", "Norway", "capital of"]
    asked: set[str] = set()

    def note(texts):
        asked.update(texts)
        return embed(texts)

    from_triples(TRIPLES, note)
    assert set(texts_of(TRIPLES)) == asked == set(VECTORS)
