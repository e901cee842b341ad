"""Every retriever: what holds for all of them, and what each of them is for."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from test_bisrqa import embed, question, random_case

from bisrqa import heads
from bisrqa.config import DataConfig, RetrieverConfig, RunConfig
from bisrqa.data.records import Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads import Evidence
from bisrqa.retrieval.subgraph import Reason

CONFIG = RetrieverConfig(top_k=4, union=("bisrqa", "bm25", "pcst"))


def missing(name: str) -> str:
    """Why a head cannot be built here; nothing where it can."""
    try:
        heads.build(RunConfig(head=name, retriever=CONFIG))
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(params=heads.HEADS)
def name(request: pytest.FixtureRequest) -> str:
    # Only what needs a compiler to be right may be absent; the union here has it as a member.
    if request.param in ("pcst", "union") and (why := missing("pcst")):
        pytest.skip(why)
    return request.param


def retrieve(name: str, cases, config: RetrieverConfig = CONFIG) -> list[Evidence]:
    questions, graphs = zip(*cases, strict=True)
    x = embed([q.question for q in questions])
    head = heads.build(RunConfig(head=name, retriever=config))
    return head(questions, x, GraphTensors.collate(graphs))


def cases(number: int = 4):
    made = [random_case(seed, nodes) for seed, nodes in enumerate((30, 12, 5, 20)[:number])]
    asked = [dataclasses.replace(q, answers=(g.node_text[0],)) for q, g in made]
    nothing = from_triples([], embed)
    alone = from_triples([Triple("a", "r", "a")], embed)
    return [
        *zip(asked, (g for _, g in made), strict=True),
        (question(["nobody"], 90), nothing),
        (question((), 91), alone),
        (question((), 92), made[0][1]),
    ]


def test_evidence_is_sound(name):
    for (asked, graph), evidence in zip(cases(), retrieve(name, cases()), strict=True):
        evidence.graph.check()
        assert [graph.node_text[i] for i in evidence.node_ids] == list(evidence.graph.node_text)
        named = evidence.reason == Reason.TOP_K
        assert named.sum() <= CONFIG.top_k
        assert set(asked.topics) & set(graph.node_text) <= set(evidence.graph.node_text)
        assert (evidence.edge_score.diff() <= 0).all()
        assert (evidence.edge_score >= 0).all()
        ranked = evidence.ranked.tolist()
        assert len(set(ranked)) == len(ranked)
        assert set(evidence.node_ids[named].tolist()) == set(ranked[: CONFIG.top_k])
        for node in ranked:
            assert graph.node_kind[node] != NodeKind.MEDIATOR
            assert graph.node_text[node] not in asked.topics


def test_a_question_does_not_depend_on_its_company(name):
    together = retrieve(name, cases())
    for case, evidence in zip(cases(), together, strict=True):
        (alone,) = retrieve(name, [case])
        assert alone.node_ids.tolist() == evidence.node_ids.tolist()
        assert alone.edge_ids.tolist() == evidence.edge_ids.tolist()
        assert alone.ranked.tolist() == evidence.ranked.tolist()


FILMS = [
    ("Ada", "film.director.film", "Moon"),
    ("Ada", "film.director.film", "Sun"),
    ("Moon", "film.film.release_date", "1990"),
    ("Ada", "people.person.place_of_birth", "Rome"),
    ("Rome", "location.location.containedby", "Italy"),
    ("Italy", "location.country.capital", "Rome"),
    ("Far", "location.location.adjoins", "Away"),
]


def film_case(text: str, answers: tuple[str, ...]):
    asked = dataclasses.replace(question(["Ada"]), question=text, answers=answers)
    return asked, from_triples([Triple(*t) for t in FILMS], embed)


def ranked_names(evidence: Evidence, graph: GraphTensors) -> list[str]:
    return [graph.node_text[i] for i in evidence.ranked]


def triples(evidence: Evidence) -> set[tuple[str, str, str]]:
    g = evidence.graph
    head, tail = g.edge_index.tolist()
    return {
        (g.node_text[h], g.relation_text[r], g.node_text[t])
        for h, r, t in zip(head, g.edge_type.tolist(), tail, strict=True)
    }


def test_gold_keeps_the_answers_and_the_shortest_ways_to_them_and_nothing_else():
    case = film_case("where", ("Italy", "1990"))
    (evidence,) = retrieve("gold", [case])
    assert triples(evidence) == {FILMS[i] for i in (0, 2, 3, 4, 5)}
    assert ranked_names(evidence, case[1])[:2] == ["1990", "Italy"]


def test_random_is_the_same_for_an_id_and_another_for_another():
    asked, graph = random_case(0)
    first, again = (retrieve("random", [(asked, graph)])[0] for _ in range(2))
    assert first.edge_ids.tolist() == again.edge_ids.tolist()
    other = dataclasses.replace(asked, id="another")
    assert retrieve("random", [(other, graph)])[0].ranked.tolist() != first.ranked.tolist()


def test_bm25_finds_by_words_and_gives_nothing_to_triples_without_one():
    case = film_case("which place was the birth of Ada in", ("Rome",))
    (evidence,) = retrieve("bm25", [case])
    assert ranked_names(evidence, case[1])[0] == "Rome"
    assert "Away" not in ranked_names(evidence, case[1])
    assert ("Far", "location.location.adjoins", "Away") not in triples(evidence)


def test_dense_and_triples_rank_by_cosine():
    case = film_case("Italy", ("Italy",))
    (evidence,) = retrieve("dense", [case])
    x = embed([case[0].question])[0]
    names = ranked_names(evidence, case[1])
    assert names[0] == "Italy"
    cosine = [float(embed([name])[0] @ x) for name in names]
    assert cosine == sorted(cosine, reverse=True)
    asked = dataclasses.replace(case[0], question="triple")
    graph, target = case[1], FILMS[2]
    direction = sum(embed([part])[0] for part in target)
    head = heads.build(RunConfig(head="triples", retriever=CONFIG))
    (evidence,) = head([asked], torch.nn.functional.normalize(direction, dim=0)[None], graph)
    assert evidence.edge_ids[0] == 2


def test_paths_keep_what_lies_between_topic_and_candidates():
    case = film_case("Italy", ("Italy",))
    (evidence,) = retrieve("paths", [case], RetrieverConfig(top_k=2))
    kept = triples(evidence)
    assert ("Ada", "people.person.place_of_birth", "Rome") in kept
    assert ("Rome", "location.location.containedby", "Italy") in kept


def test_ppr_knows_nothing_of_the_words():
    one, other = film_case("Italy", ("Italy",)), film_case("films of whom", ("Moon",))
    first, second = retrieve("ppr", [one, other])
    assert first.ranked.tolist() == second.ranked.tolist()
    assert retrieve("bisrqa", [one])[0].node_score.tolist() != first.node_score.tolist()


def plain_graftnet(asked, graph, x) -> list[float]:
    """The published steps, one matrix for each relation and direction."""
    n = graph.num_nodes
    total = torch.zeros(n, n, dtype=torch.double)
    for r in range(graph.num_relations):
        for ends in (graph.edge_index, graph.edge_index.flip(0)):
            matrix = torch.zeros(n, n, dtype=torch.double)
            for e in range(graph.num_edges):
                if graph.edge_type[e] == r:
                    matrix[ends[0, e], ends[1, e]] += 1
            matrix = matrix / matrix.sum(1, keepdim=True).clamp_min(1e-12)
            total += float(graph.relation_x[r] @ x) ** 2 * matrix
    total = total / total.sum(1, keepdim=True).clamp_min(1e-12)
    start = torch.tensor([float(t in asked.topics) for t in graph.node_text]).double()
    start /= start.sum()
    mass = start
    for _ in range(100):
        mass = 0.8 * start + 0.2 * (mass @ total)
    return mass.tolist()


def test_graftnet_agrees_with_a_plain_version():
    asked, graph = random_case(3, 12)
    (evidence,) = retrieve("graftnet", [(asked, graph)], RetrieverConfig(top_k=30))
    expected = plain_graftnet(asked, graph, embed([asked.question])[0])
    for node, score in zip(evidence.node_ids.tolist(), evidence.node_score.tolist(), strict=True):
        assert score == pytest.approx(expected[node], abs=2e-5)


def plain_pcst(graph: GraphTensors, x: torch.Tensor) -> tuple[set[int], set[int]]:
    """G-Retriever's steps, edge by edge, with the 3 nearest named nodes and 5 edge similarities."""
    from pcst_fast import pcst_fast

    n = graph.num_nodes
    cosine = (graph.x @ x).tolist()
    named = [i for i in range(n) if graph.node_kind[i] != NodeKind.MEDIATOR]
    prizes = [0.0] * n
    for place, node in enumerate(sorted(named, key=lambda i: -cosine[i])[:3]):
        prizes[node] = 3 - place
    similar = (graph.relation_x @ x)[graph.edge_type].tolist()
    values, last, edge_prize = sorted(set(similar), reverse=True)[:5], 5.0, [0.0] * len(similar)
    for place, value in enumerate(values):
        same = [e for e, s in enumerate(similar) if s == value]
        prize = min((len(values) - place) / len(same), last)
        for e in same:
            edge_prize[e] = prize
        last = prize * 0.99
    cost = min(0.5, max(edge_prize) * 0.995)
    arcs, costs, plain, virtual = [], [], [], {}
    rich = []
    for e, (head, tail) in enumerate(graph.edge_index.T.tolist()):
        if edge_prize[e] <= cost:
            plain.append(e)
            arcs.append((head, tail))
            costs.append(cost - edge_prize[e])
        else:
            rich.append((e, head, tail))
    for number, (e, _, _) in enumerate(rich):
        virtual[n + number] = e
        prizes.append(edge_prize[e] - cost)
    for number, (_, head, _) in enumerate(rich):
        arcs.append((head, n + number))
        costs.append(0.0)
    for number, (_, _, tail) in enumerate(rich):
        arcs.append((n + number, tail))
        costs.append(0.0)
    vertices, chosen = pcst_fast(arcs, prizes, costs, -1, 1, "gw", 0)
    edges = {plain[e] for e in chosen if e < len(plain)} | {virtual[v] for v in vertices if v >= n}
    ends = {node for e in edges for node in graph.edge_index[:, e].tolist()}
    return {int(v) for v in vertices if v < n} | ends, edges


@pytest.mark.skipif(bool(missing("pcst")), reason=missing("pcst"))
@pytest.mark.parametrize("seed", range(5))
def test_pcst_agrees_with_a_plain_version(seed):
    asked, graph = random_case(seed)
    (evidence,) = retrieve("pcst", [(asked, graph)], RetrieverConfig(top_k=30))
    nodes, edges = plain_pcst(graph, embed([asked.question])[0])
    kept = set(evidence.node_ids.tolist())
    named = {i for i in nodes if graph.node_kind[i] != NodeKind.MEDIATOR}
    assert named <= kept
    assert {e for e in edges if set(graph.edge_index[:, e].tolist()) <= kept} == set(
        evidence.edge_ids.tolist()
    )


def test_union_adds_up_reciprocal_places():
    """Without topics and mediators, which take places too, the order follows from the rankings."""
    rng = random.Random(7)
    names = [f"name {i}" for i in range(25)]
    triples = [Triple(rng.choice(names), f"r{rng.randrange(4)}", rng.choice(names)) for _ in names]
    case = question((), 7), from_triples(triples, embed)
    config = RetrieverConfig(top_k=3, union=("dense", "bisrqa"))
    total = dict.fromkeys(range(case[1].num_nodes), 0.0)
    for name in config.union:
        (one,) = retrieve(name, [case], config)
        for place, node in enumerate(one.ranked.tolist()):
            total[node] += 1 / (60 + place)
    (union,) = retrieve("union", [case], config)
    ranked = union.ranked.tolist()
    assert len(ranked) == case[1].num_nodes
    values = [total[node] for node in ranked]
    assert values == pytest.approx(sorted(total.values(), reverse=True))
    assert len(set(values)) > 10


def test_twice_is_the_same(name):
    rng = random.Random(0)
    some = [random_case(rng.randrange(1000)) for _ in range(3)]
    first, again = (retrieve(name, some) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert a.ranked.tolist() == b.ranked.tolist()
        assert a.edge_score.tolist() == b.edge_score.tolist()


def test_a_build_of_pcst_fast_that_gives_wrong_results_is_refused(monkeypatch):
    """Its wheels give as many ids as there should be, all alike, with numpy 2."""
    module = pytest.importorskip("pcst_fast")

    def alike(edges, prizes, costs, *_):
        return np.zeros(len(prizes), np.int32), np.ones(len(costs), np.int32)

    monkeypatch.setattr(module, "pcst_fast", alike)
    assert "gives wrong results with numpy 2; build it here" in missing("pcst")


def test_what_cannot_be_is_said():
    shared = DataConfig(graph="shared", graph_path="x.parquet")
    with pytest.raises(ValueError, match=r"^head must be bisrqa, .* with data.graph shared"):
        RunConfig(head="bm25", data=shared)
    with pytest.raises(ValueError, match=r"retriever\.union must be names of other heads"):
        RunConfig(head="union", retriever=RetrieverConfig(union=("bm26",)))
    with pytest.raises(ValueError, match=r"retriever\.union must be names of other heads"):
        RunConfig(head="union", retriever=RetrieverConfig(union=("union",)))
