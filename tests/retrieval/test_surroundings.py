"""Expansion and cutting in a whole corpus, against plain searches in networkx."""

import random

import networkx as nx
import pytest
import tiny
import torch

from bisrqa.data.records import Chunk, Triple
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import from_texts
from bisrqa.retrieval.passages import is_structure, links
from bisrqa.retrieval.surroundings import Surroundings, best_of


def corpus(seed: int, count: int = 40) -> GraphTensors:
    """Chunks under few titles, which name each other; triples between anything."""
    draw = random.Random(seed)
    names = [f"Name{letter}" for letter in "abcdefghijkl"]
    chunks = [Chunk(draw.choice(names), " and ".join(draw.sample(names, draw.randrange(3))) or "no",
                    number, 0, 1) for number in range(count)]  # fmt: skip
    triples = [Triple(draw.choice(names), draw.choice("xyz"), f"thing {draw.randrange(9)}")
               for _ in range(count)]  # fmt: skip
    sources = [draw.randrange(count) for _ in triples]
    return from_texts(chunks, triples, sources, tiny.embed).graph.check()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("max_degree", [3, 1000])
def test_expansion_is_a_breadth_first_search(seed: int, hops: int, max_degree: int):
    graph = corpus(seed)
    found = links(graph)
    plain = nx.Graph()
    plain.add_nodes_from((graph.node_kind == NodeKind.PASSAGE).nonzero().squeeze(1).tolist())
    plain.add_edges_from(zip(found.passage.tolist(), found.entity.tolist(), strict=True))
    degree = torch.bincount(found.entity, minlength=graph.num_nodes)
    plain.remove_nodes_from((degree > max_degree).nonzero().squeeze(1).tolist())
    first = int((graph.node_kind == NodeKind.PASSAGE).nonzero()[0])
    seeds = [(0, first + 3), (0, first + 9), (2, first), (2, first)]  # question 1 has none
    question, passage = Surroundings.of(graph).expand(
        torch.tensor([q for q, _ in seeds]), torch.tensor([p for _, p in seeds]), hops, max_degree
    )
    expected = {
        (q, node)
        for q, seed_node in seeds
        for node in nx.single_source_shortest_path_length(plain, seed_node, 2 * hops)
        if node >= first
    }
    assert list(zip(question.tolist(), passage.tolist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("seed", range(5))
def test_a_cut_holds_what_was_read_from_its_passages_and_no_more(seed: int):
    graph = corpus(seed)
    first = int((graph.node_kind == NodeKind.PASSAGE).nonzero()[0])
    chosen = [[first + 1, first + 5], [], [first + 5]]
    pairs = [(q, p) for q, some in enumerate(chosen) for p in some]
    batch = Surroundings.of(graph).cut(
        graph, torch.tensor([q for q, _ in pairs]), torch.tensor([p for _, p in pairs]), 3
    )
    source = torch.where(is_structure(graph), graph.edge_index[0], graph.edge_passage).tolist()

    def edges(one: GraphTensors) -> list[tuple[str, str, str, str]]:
        return [
            (one.node_text[h], one.relation_text[r], one.node_text[t],
             one.node_text[p] if p >= 0 else "")
            for h, t, r, p in zip(*one.edge_index.tolist(), one.edge_type.tolist(),
                                  one.edge_passage.tolist(), strict=True)
        ]  # fmt: skip

    whole = edges(graph)
    for one, some in zip(batch.check().unbatch(), chosen, strict=True):
        expected = [edge for number, edge in enumerate(whole) if source[number] in some]
        assert edges(one) == expected  # in the order of the whole graph
        texts = [graph.node_text[node] for node in some]
        assert list(one.node_text[one.num_nodes - len(some) :]) == texts
        assert set(one.node_text) == {*texts, *(e[0] for e in expected), *(e[2] for e in expected)}


def test_the_best_of_each():
    score = torch.tensor([1.0, 3.0, 2.0, 5.0, 5.0])
    question = torch.tensor([0, 0, 0, 1, 1])
    assert best_of(score, question, 2).tolist() == [1, 2, 3, 4]
    assert best_of(score, question, 1).tolist() == [1, 3]
