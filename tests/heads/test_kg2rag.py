"""KG2RAG over texts and graphs: by hand, and its literal form against a plain transcription."""

import dataclasses
import random

import networkx
import pytest
import tiny
import torch

from bisrqa import heads
from bisrqa.config import KG2RAGConfig, RetrieverConfig, RunConfig
from bisrqa.data.records import Chunk, Question, Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import from_texts
from bisrqa.heads.kg2rag import facts_of
from bisrqa.retrieval.features import NAMES
from bisrqa.retrieval.passages import is_structure, links
from bisrqa.retrieval.ranker import PassageRanker

WORDS = "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa".split()


def question(number: int, chunks, triples=(), sources=()) -> Question:
    return Question(
        id=f"q{number}", question=f"What of {WORDS[number % 10]}?", answers=("x",), topics=(),
        graph=tuple(triples), chunks=tuple(chunks), sources=tuple(sources),
    )  # fmt: skip


def case(seed: int) -> Question:
    rng = random.Random(seed)
    chunks = []
    for paragraph, title in enumerate(rng.sample(WORDS, rng.randint(2, 8))):
        for sentence in range(rng.randint(1, 3)):
            text = " ".join(rng.choice([*WORDS, "said", "that", "all"]) for _ in range(4))
            chunks.append(Chunk(title, text, paragraph, sentence, sentence + 1))
    triples = [
        Triple(rng.choice(WORDS), rng.choice(["knows", "likes"]), rng.choice([*WORDS, "Omega"]))
        for _ in range(rng.randint(0, 8))
    ]
    return question(seed, chunks, triples, [rng.randrange(len(chunks)) for _ in triples])


def graph_of(asked: Question) -> GraphTensors:
    return from_texts(asked.chunks, asked.graph, asked.sources, tiny.embed).graph


def retrieve(questions, name="kg2rag", passages=5, **settings):
    config = RunConfig(
        head=name, retriever=RetrieverConfig(top_k=4, passages=passages),
        kg2rag=KG2RAGConfig(**settings),
    )  # fmt: skip
    x = tiny.embed([q.question for q in questions])
    return heads.build(config)(questions, x, GraphTensors.collate([graph_of(q) for q in questions]))


def chunks_found(asked: Question, evidence) -> list[int]:
    first = graph_of(asked).num_nodes - len(asked.chunks)
    return (evidence.ranked_passages - first).tolist()


@pytest.mark.parametrize("name", sorted(set(heads.HEADS) - {"pcst", "union"}))
def test_every_head_keeps_passages_in_order(name):
    questions = [case(seed) for seed in range(6)]
    for asked, evidence in zip(questions, retrieve(questions, name, passages=3), strict=True):
        graph = evidence.graph.check()
        kept = (graph.node_kind == NodeKind.PASSAGE).nonzero().squeeze(1).tolist()
        assert sorted(evidence.passages) == kept
        assert len(kept) <= 3
        found = chunks_found(asked, evidence)
        assert len(set(found)) == len(found) <= len(asked.chunks)
        texts = [graph.node_text[node] for node in evidence.passages]
        assert texts == [asked.chunks[number].words for number in found[:3]]
        score = [float(evidence.node_score[node]) for node in evidence.passages]
        assert score == sorted(score, reverse=True)
        assert sorted(evidence.reading or evidence.passages) == sorted(evidence.passages)


@pytest.mark.parametrize("name", ["kg2rag", "hybrid", "dense", "bm25", "bisrqa"])
def test_a_question_does_not_depend_on_its_company(name):
    questions = [case(seed) for seed in range(8)]
    for asked, together in zip(questions, retrieve(questions, name), strict=True):
        (alone,) = retrieve([asked], name)
        assert torch.equal(alone.ranked_passages, together.ranked_passages)
        assert alone.passages == together.passages
        assert alone.reading == together.reading
        assert torch.equal(alone.edge_ids, together.edge_ids)


def literal(asked: Question, seeds: int, hops: int) -> list[int]:
    """The paper's description, word by word: chunks in the order in which they are given."""
    graph = graph_of(asked)
    first = graph.num_nodes - len(asked.chunks)
    cosine = (graph.x @ tiny.embed([asked.question])[0]).tolist()
    facts = [(h, t, c) for h, t, c in zip(*(f.tolist() for f in facts_of(graph)), strict=True)]
    order = sorted(range(len(asked.chunks)), key=lambda c: (-cosine[first + c], c))
    reached = {first + c for c in order[:seeds]}
    for _ in range(hops):
        near = {end for h, t, c in facts if c in reached for end in (h, t)}
        reached |= {c for h, t, c in facts if h in near or t in near}
    multi = networkx.MultiGraph()
    inside = [f for f in facts if f[2] in reached]
    for number, (h, t, c) in enumerate(inside):
        multi.add_edge(h, t, key=number, weight=cosine[c])
    trees = []
    for part in networkx.connected_components(multi):
        own = [n for n, f in enumerate(inside) if f[0] in part]
        by_weight = sorted(own, key=lambda n: (-cosine[inside[n][2]], n))
        joined: dict[int, int] = {node: node for node in part}

        def find(node: int, joined=joined) -> int:
            return node if joined[node] == node else find(joined[node])

        tree = []
        for n in by_weight:  # Kruskal
            h, t, _ = inside[n]
            if find(h) != find(t):
                joined[find(h)] = find(t)
                tree.append(n)
        tree = tree or by_weight[:1]
        near: dict[int, list[int]] = {}
        for n in tree:
            for end in inside[n][:2]:
                near.setdefault(end, []).append(n)
        place, stack = {}, [inside[tree[0]][0]]
        while stack:
            node = stack.pop()
            if node in place:
                continue
            place[node] = len(place)
            for n in reversed(near[node]):
                stack += [end for end in inside[n][:2] if end not in place]
        steps = sorted((max(place[inside[n][0]], place[inside[n][1]]), inside[n][2]) for n in tree)
        chunks = list(dict.fromkeys(c for _, c in steps))
        trees.append((max(cosine[inside[n][2]] for n in own), chunks))
    trees.sort(key=lambda tree: -tree[0])
    return list(dict.fromkeys(c - first for _, chunks in trees for c in chunks))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("hops", [0, 1, 2])
def test_the_literal_form_is_the_description(seed, hops):
    asked = case(seed)
    (evidence,) = retrieve([asked], form="literal", seeds=2, hops=hops)
    assert chunks_found(asked, evidence) == literal(asked, 2, hops)


def test_a_good_neighbour_lifts_a_passage():
    chunks = [
        Chunk("Alpha", "What of Alpha? It lies in Beta.", 0, 0, 1),
        Chunk("Beta", "A town.", 1, 0, 1), Chunk("Gamma", "A river.", 2, 0, 1),
    ]  # fmt: skip
    asked = question(0, chunks)
    weights = {"lexical": 1.0, "neighbour": 9.0}
    (linked,) = retrieve([asked], **weights)
    (apart,) = retrieve([asked], "hybrid", **weights)
    assert chunks_found(asked, apart)[0] == 0
    assert chunks_found(asked, linked).index(1) < chunks_found(asked, linked).index(2)


@pytest.mark.parametrize("seed", range(15))
def test_what_is_kept_is_thinned_to_trees_and_read_in_their_order(seed):
    asked = case(seed)
    (plain,), (evidence,) = retrieve([asked], "hybrid"), retrieve([asked], neighbour=0.0)
    assert evidence.passages == plain.passages
    graph = evidence.graph
    stated = (~is_structure(graph)).nonzero().squeeze(1)
    tree = networkx.MultiGraph(graph.edge_index[:, stated].T.tolist())
    if len(stated):
        loops = networkx.number_of_selfloops(tree)
        assert tree.number_of_edges() - loops <= tree.number_of_nodes() - 1
    before = set(map(tuple, plain.graph.edge_index.T.tolist()))
    assert set(map(tuple, graph.edge_index.T.tolist())) <= before
    # passages of one component are read one after another
    facts = facts_of(plain.graph)
    whole = networkx.Graph(list(zip(facts.head.tolist(), facts.tail.tolist(), strict=True)))
    part = {
        node: n for n, nodes in enumerate(networkx.connected_components(whole)) for node in nodes
    }
    title = links(plain.graph).title
    run = [part[int(title[node])] for node in evidence.reading]
    assert len(list(dict.fromkeys(run))) == sum(
        a != b for a, b in zip([None, *run], run, strict=False)
    )


def test_a_trained_ranker_takes_the_place_of_the_sum(tmp_path):
    torch.manual_seed(0)
    PassageRanker(NAMES).save(tmp_path / "r", {})
    asked = case(3)
    (plain,) = retrieve([asked])
    (ranked,) = retrieve([asked], ranker=str(tmp_path / "r"))
    assert chunks_found(asked, ranked) != chunks_found(asked, plain)
    with pytest.raises(ValueError, match="no trained ranker"):
        retrieve([asked], ranker=str(tmp_path / "absent"))


def test_triples_of_a_plain_graph_come_tree_by_tree():
    triples = [
        Triple("Alpha", "r", "Beta"), Triple("Beta", "s", "Gamma"), Triple("Alpha", "t", "Gamma"),
        Triple("Zeta", "r", "Eta"),
    ]  # fmt: skip
    graph = from_triples(triples, tiny.embed)
    asked = dataclasses.replace(question(0, ()), topics=("Alpha",))
    config = RunConfig(head="kg2rag", retriever=RetrieverConfig(top_k=9))
    (evidence,) = heads.build(config)([asked], tiny.embed([asked.question]), graph)
    ends = evidence.graph.edge_index.T.tolist()
    names = [{evidence.graph.node_text[n] for n in pair} for pair in ends]
    assert len(names) == 3  # of the circle the weakest is left out
    assert {"Zeta", "Eta"} in (names[0], names[-1])
    score = evidence.edge_score.tolist()
    assert score == sorted(score, reverse=True)
