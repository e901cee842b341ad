"""BiS-RQA's head: the evidence of each question leads back to its graph, alone or in a batch."""

import dataclasses
import random
import typing
import zlib

import pytest
import torch

from bisrqa import heads
from bisrqa.config import RetrieverConfig, RunConfig
from bisrqa.data.records import Question, Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Evidence, topic_mask
from bisrqa.heads.bisrqa import BiSRQAHead
from bisrqa.retrieval.sppr import edge_scores, personalization, relation_weights
from bisrqa.retrieval.subgraph import Reason, rank, select
from bisrqa.walk import sppr

DIM = 16


def embed(texts) -> torch.Tensor:
    rows = [
        torch.randn(DIM, generator=torch.Generator().manual_seed(zlib.crc32(text.encode())))
        for text in texts
    ]
    stacked = torch.stack(rows) if rows else torch.zeros(0, DIM)
    return torch.nn.functional.normalize(stacked, dim=-1)


def question(topics=(), number: int = 0) -> Question:
    return Question(
        id=f"q{number}", question=f"what {number}?", answers=("x",), topics=tuple(topics), graph=()
    )


def random_case(seed: int, nodes: int = 30) -> tuple[Question, GraphTensors]:
    """Parallel relations, both directions, self-loops, mediators and edges with a passage."""
    rng = random.Random(seed)
    names = [f"m.0{i}" if i % 5 == 4 else f"name {i}" for i in range(nodes)]
    triples = [
        Triple(rng.choice(names), f"r{rng.randrange(4)}", rng.choice(names))
        for _ in range(3 * nodes)
    ]
    triples += [Triple(triples[0].head, "r5", triples[0].tail), Triple("name 0", "r1", "name 0")]
    graph = from_triples(triples, embed)
    passage = torch.tensor([rng.randrange(-1, graph.num_nodes) for _ in range(graph.num_edges)])
    graph = dataclasses.replace(graph, edge_passage=passage)
    named = [name for name in graph.node_text if not name.startswith("m.")]
    return question(rng.sample(named, min(2, len(named))), seed), graph.check()


def retrieve(cases, config: RetrieverConfig) -> list[Evidence]:
    questions, graphs = zip(*cases, strict=True)
    x = embed([q.question for q in questions])
    return BiSRQAHead(config)(questions, x, GraphTensors.collate(graphs))


def assert_same(one: Evidence, other: Evidence) -> None:
    for part in (one, one.graph):
        pair = other if part is one else other.graph
        for field in dataclasses.fields(part):
            left, right = getattr(part, field.name), getattr(pair, field.name)
            if isinstance(left, torch.Tensor):
                assert torch.equal(left, right), field.name
            elif field.name != "graph":
                assert left == right, field.name


CONFIGS = [
    RetrieverConfig(top_k=6),
    RetrieverConfig(top_k=1),
    RetrieverConfig(top_k=1000),
    RetrieverConfig(top_k=6, personalization="linear", reweight="linear", topic_mass=0.0),
]
CASES = [random_case(1), (question(number=7), from_triples([], embed)), random_case(2, nodes=8)]
CASES += [random_case(3), (question(["name 1"], 8), random_case(4)[1])]


@pytest.mark.parametrize("config", CONFIGS)
def test_evidence_leads_back_to_the_whole_graph(config):
    for (asked, whole), evidence in zip(CASES, retrieve(CASES, config), strict=True):
        small, nodes, edges = evidence.graph.check(), evidence.node_ids, evidence.edge_ids
        assert small.num_graphs == 1
        assert [whole.node_text[i] for i in nodes.tolist()] == list(small.node_text)
        assert torch.equal(whole.x[nodes], small.x)
        assert torch.equal(whole.node_kind[nodes], small.node_kind)
        assert torch.equal(whole.edge_index[:, edges], nodes[small.edge_index])
        assert [whole.relation_text[i] for i in whole.edge_type[edges].tolist()] == [
            small.relation_text[i] for i in small.edge_type.tolist()
        ]
        lookup = torch.full((whole.num_nodes + 1,), -1)  # the last entry serves "no passage"
        lookup[nodes] = torch.arange(len(nodes))
        assert torch.equal(lookup[whole.edge_passage[edges]], small.edge_passage)
        assert torch.equal(small.relation_x, embed(small.relation_text))
        assert set(asked.topics) & set(whole.node_text) <= set(small.node_text)


@pytest.mark.parametrize("config", CONFIGS)
def test_scores_and_choice_are_those_of_the_walk(config):
    for (asked, whole), evidence in zip(CASES, retrieve(CASES, config), strict=True):
        x = embed([asked.question])
        topics = topic_mask([asked], whole)[None]
        weight = relation_weights(x @ whole.relation_x.T, config)
        named = whole.node_kind != NodeKind.MEDIATOR
        p = personalization(x @ whole.x.T, topics, named, whole.node_ptr, config)
        scores = sppr(whole, p, weight).scores
        ranked = rank(whole, scores, topics, config.top_k)
        selection = select(whole, ranked, topics, config.top_k)
        assert evidence.node_ids.tolist() == selection.node.tolist()
        assert torch.equal(evidence.reason, selection.reason)
        torch.testing.assert_close(evidence.node_score, scores[0, evidence.node_ids])
        # Every edge between kept nodes, best first; equal ones in the order of the graph.
        ids = evidence.edge_ids.tolist()
        assert sorted(ids) == selection.edge.tolist()
        value = edge_scores(
            whole, scores, weight, torch.zeros_like(evidence.edge_ids), evidence.edge_ids
        )
        torch.testing.assert_close(evidence.edge_score, value)
        order = sorted(zip((-evidence.edge_score).tolist(), ids, strict=True))
        assert ids == [edge for _, edge in order]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_batch_is_exactly_its_questions(config):
    together = retrieve(CASES, config)
    assert len(together) == len(CASES)
    for case, evidence in zip(CASES, together, strict=True):
        (alone,) = retrieve([case], config)
        assert_same(evidence, alone)
    for evidence, again in zip(together, reversed(retrieve(CASES[::-1], config)), strict=True):
        assert_same(evidence, again)


def test_an_empty_graph_gives_empty_evidence():
    evidence = retrieve(CASES, CONFIGS[0])[1]
    assert (evidence.graph.num_nodes, evidence.graph.num_edges) == (0, 0)
    for value in (evidence.node_ids, evidence.edge_ids, evidence.node_score, evidence.reason):
        assert value.numel() == 0
    assert evidence.passages == ()


def test_topics_are_marked_in_their_own_graph():
    one = from_triples([Triple("a", "r", "b")], embed)
    other = from_triples([Triple("b", "r", "a"), Triple("c", "r", "a")], embed)
    batch = GraphTensors.collate([one, other])
    mask = topic_mask([question(["a", "c"]), question(["b", "nowhere"])], batch)
    assert mask.tolist() == [True, False, True, False, False]
    assert topic_mask([question()], one).tolist() == [False, False]


def test_topics_are_kept_however_far_off():
    """The walk starts at the words alone, and the topic hangs on nothing."""
    triples = [Triple("a", "r", "b"), Triple("b", "r", "c"), Triple("topic", "r", "topic")]
    config = RetrieverConfig(top_k=1, topic_mass=0.0, node_temperature=0.01)
    asked = dataclasses.replace(question(["topic"]), question="b")
    (evidence,) = retrieve([(asked, from_triples(triples, embed))], config)
    assert evidence.graph.node_text == ("b", "topic")
    assert evidence.reason.tolist() == [Reason.TOP_K, Reason.TOPIC]
    assert evidence.node_score[1] < 1e-3


def test_a_star_of_alike_leaves_is_cut_by_id():
    """Equal scores: the leaves that were mentioned first are kept, and their edges in order."""
    triples = [Triple("hub", "r", f"leaf {i}") for i in range(50)]
    graph = from_triples(triples, lambda texts: torch.eye(1, DIM).repeat(len(texts), 1))
    for _ in range(3):
        (evidence,) = retrieve([(question(["hub"]), graph)], RetrieverConfig(top_k=5))
        assert evidence.node_ids.tolist() == [0, 1, 2, 3, 4, 5]
        assert evidence.edge_ids.tolist() == [0, 1, 2, 3, 4]
        assert evidence.edge_score.tolist() == [1.0] * 5


def test_the_table_of_heads():
    assert set(heads.HEADS) == set(typing.get_args(typing.get_type_hints(RunConfig)["head"]))
    assert isinstance(heads.build(RunConfig()), BiSRQAHead)
