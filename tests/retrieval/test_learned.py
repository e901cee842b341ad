"""The learned walk: where it starts from, what it is with weights of its own, and its folder."""

import dataclasses
import json
import logging
import math
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question, Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import topic_mask
from bisrqa.heads.bisrqa import BiSRQAHead
from bisrqa.retrieval import learned
from bisrqa.retrieval.learned import LearnedWalk, Relations
from bisrqa.walk import Arrivals, WalkGraph, arrivals, sppr

DIM = 16


def embed(texts) -> torch.Tensor:
    rows = [
        torch.randn(DIM, generator=torch.Generator().manual_seed(sum(map(ord, text)) * 31))
        for text in texts
    ]
    stacked = torch.stack(rows) if rows else torch.zeros(0, DIM)
    return torch.nn.functional.normalize(stacked, dim=-1)


def case(number: int, nodes: int = 25) -> tuple[Question, GraphTensors]:
    rng = random.Random(number)
    names = [f"m.0{i}" if i % 6 == 5 else f"name {i}" for i in range(nodes)]
    triples = [
        Triple(rng.choice(names), f"r{rng.randrange(5)}", rng.choice(names))
        for _ in range(3 * nodes)
    ]
    triples += [triples[0], Triple("name 0", "r1", "name 0"), Triple("name 1", "r0", "m.05")]
    topics = tuple(rng.sample(["name 0", "name 2", "name 4"], rng.randrange(3)))
    asked = Question(id=str(number), question=f"q {number}", answers=(), topics=topics, graph=())
    return asked, from_triples(triples, embed)


def trained(seed: int = 0, **sizes) -> LearnedWalk:
    """As if training had moved everything."""
    torch.manual_seed(seed)
    model = LearnedWalk(DIM, hidden=8, members=2, **sizes)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return model.eval().requires_grad_(False)


def folder_of(model: LearnedWalk, path) -> str:
    model.save(path, {})
    return str(path)


CASES = [case(n) for n in range(5)]


def batch(cases=CASES):
    questions, graphs = zip(*cases, strict=True)
    return questions, embed([q.question for q in questions]), GraphTensors.collate(graphs)


def test_untrained_it_is_the_plain_walk(tmp_path):
    questions, x, graph = batch()
    plain = RetrieverConfig(top_k=8)
    model = LearnedWalk(DIM, hidden=8, members=2, doubt=0.0)
    cosine = (graph.x * x[graph.node_batch]).sum(-1)[None]
    topics = topic_mask(questions, graph)[None]
    score = model(graph, x, graph.relation_x, cosine, topics, 500)
    assert score.shape == (2, graph.num_nodes)
    assert torch.equal(score[0], score[1])
    expected = BiSRQAHead(plain).score(questions, x, graph, topics).node
    torch.testing.assert_close(score[:1].exp(), expected, atol=2e-6, rtol=1e-3)
    # And what is kept is what the plain walk keeps.
    folder = folder_of(model, tmp_path / "r")
    head = BiSRQAHead(RetrieverConfig(top_k=8, learned=folder))
    for mine, theirs in zip(
        head(questions, x, graph), BiSRQAHead(plain)(questions, x, graph), strict=True
    ):
        named = mine.graph.node_kind != NodeKind.MEDIATOR
        kept = {t for t, n in zip(mine.graph.node_text, named.tolist(), strict=True) if n}
        assert kept == {t for t in theirs.graph.node_text if not t.startswith("m.")}


def test_the_batch_in_use_is_the_one_in_training(tmp_path):
    """One member: its z, that the loss sees, orders the nodes as the head does."""
    torch.manual_seed(1)
    model = LearnedWalk(DIM, hidden=8, members=1, doubt=0.0)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.3 * torch.randn_like(value))
    model.eval().requires_grad_(False)
    questions, x, graph = batch()
    topics = topic_mask(questions, graph)[None]
    cosine = (graph.x * x[graph.node_batch]).sum(-1)[None]
    log_z = model(graph, x, graph.relation_x, cosine, topics, 500)[0]
    head = BiSRQAHead(RetrieverConfig(learned=folder_of(model, tmp_path / "r")))
    node = head.score(questions, x, graph, topics).node[0]
    may = (graph.node_kind != NodeKind.MEDIATOR) & ~topics[0]
    for g in range(graph.num_graphs):
        mine = may & (graph.node_batch == g)
        expected = torch.softmax(log_z[mine], 0)
        torch.testing.assert_close(node[mine], expected, atol=1e-4, rtol=2e-2)
    candidates = node * may
    ends = torch.zeros_like(node).scatter_reduce(
        0, graph.edge_index.flatten(), candidates[graph.edge_index.flip(0).flatten()], "amax"
    )
    mediator = graph.node_kind == NodeKind.MEDIATOR
    assert torch.equal(node[mediator], ends[mediator])


def test_a_question_does_not_depend_on_its_company(tmp_path):
    head = BiSRQAHead(RetrieverConfig(top_k=6, learned=folder_of(trained(), tmp_path / "r")))
    together = head(*batch())
    for number, evidence in enumerate(together):
        (alone,) = head(*batch(CASES[number : number + 1]))
        assert alone.graph.node_text == evidence.graph.node_text
        assert torch.equal(alone.edge_ids, evidence.edge_ids)
        torch.testing.assert_close(alone.node_score, evidence.node_score)
        torch.testing.assert_close(alone.edge_score, evidence.edge_score)


def test_edges_are_scored_by_what_comes_over_them():
    """Against a loop: the better end's score, times the edge's part in what arrives there."""
    _, graph = CASES[1]
    x = embed(["q 1"])
    model = trained()
    rows = torch.arange(graph.num_relations)
    relations = model.relations(x, graph.relation_x, torch.zeros_like(rows), rows)
    share = torch.full((model.members, len(rows)), 1 / model.members)
    relations = model.mean(relations, share)
    known = learned.arcs(relations, torch.zeros_like(rows), 1)
    walk = WalkGraph.of(graph)
    p = torch.full((1, graph.num_nodes), 1 / graph.num_nodes)
    mass = sppr(walk, p, known.along, inverse_weight=known.against).scores
    arrived = arrivals(walk, mass, *known)
    node = torch.rand(1, graph.num_nodes, generator=torch.Generator().manual_seed(0))
    found = learned.edge_shares(graph, node, mass, arrived, known)
    for edge, (h, t) in enumerate(graph.edge_index.T.tolist()):
        r = int(graph.edge_type[edge])

        def part(u, v, w, value):
            sent = mass[0, u] / arrived.leaving[0, u] * w * value
            return float(node[0, v] * sent / arrived.worth[0, v])

        there = part(h, t, known.along[0, r], known.worth_along[0, r])
        back = part(t, h, known.against[0, r], known.worth_against[0, r])
        assert float(found[edge]) == pytest.approx(max(there, back), rel=1e-3)


def test_the_score_by_hand():
    """Mass by a, what it arrived over by its mean worth, and the cosine by b."""
    mass, cosine = torch.tensor([[0.5, 0.25]]), torch.tensor([[0.2, -0.4]])
    arrived = Arrivals(torch.ones(1, 2), torch.tensor([[0.4, 0.1]]), torch.tensor([[0.1, 0.05]]))
    scalars = torch.tensor([9.0, 9.0, 9.0, 2.0, 3.0])  # a and b are the last
    found = learned.log_score(mass, arrived, cosine, scalars)
    expected = [2 * math.log(0.5) + math.log(0.25) + 0.6, 2 * math.log(0.25) + math.log(0.5) - 1.2]
    assert found[0].tolist() == pytest.approx(expected, rel=1e-5)
    members = learned.log_score(mass.repeat(2, 1), arrived, cosine, scalars.repeat(2, 1).T)
    assert members.tolist() == [found[0].tolist()] * 2


def test_weights_of_very_different_size_stay_in_bounds():
    far = torch.tensor([[0.0, -500.0, 300.0, 299.0]])
    relations = Relations(far, far - 1, far, far)
    block = torch.tensor([0, 0, 1, 1])
    along, against, worth, _ = learned.arcs(relations, block, 2)
    assert worth[0, [0, 2]].tolist() == [1, 1]
    assert along[0, [0, 2]].tolist() == [1, 1]
    assert 0 < float(along[0, 1]) < 1e-20
    assert float(against[0, 3]) == pytest.approx(2.718281828**-2)


def test_it_is_saved_and_read_as_it_was(tmp_path):
    model = trained(doubt=0.25)
    model.save(tmp_path / "r", {"report": {"loss": 1.0}})
    again = LearnedWalk.load(tmp_path / "r")
    assert again.doubt == 0.25
    assert not again.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert json.loads((tmp_path / "r/retriever.json").read_text())["report"] == {"loss": 1.0}


def _cut(folder):
    file = folder / "retriever.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def _without_one(folder):
    file = folder / "retriever.safetensors"
    tensors = load_file(file)
    del tensors["scalars"]
    save_file(tensors, file)


def _poisoned(folder):
    file = folder / "retriever.safetensors"
    tensors = load_file(file)
    tensors["scalars"][0, 0] = float("nan")
    save_file(tensors, file)


def _header(folder, **changes):
    file = folder / "retriever.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "no trained retriever"),
        (_without_one, "scalars"),
        (_poisoned, "scalars is not finite"),
        (lambda f: (f / "retriever.safetensors").unlink(), "no trained retriever"),
        (lambda f: (f / "retriever.json").write_text("[]"), "no trained retriever"),
        (lambda f: _header(f, format=99), "format 99, expected 2"),
        (lambda f: _header(f, sizes={"dim": 16, "hidden": 9}), "no trained retriever"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path, damage, message):
    folder = tmp_path / "r"
    trained().save(folder, {})
    damage(folder)
    with pytest.raises(ValueError, match=rf"{folder}: [\s\S]*{message}[\s\S]*train-retriever"):
        BiSRQAHead(RetrieverConfig(learned=str(folder)))


def test_without_a_folder_it_is_the_plain_walk_and_says_so(tmp_path, caplog):
    missing = str(tmp_path / "not yet")
    with caplog.at_level(logging.WARNING):
        head = BiSRQAHead(RetrieverConfig(learned=missing, top_k=5))
    assert f"retriever.learned: {missing} is not there yet" in caplog.text
    mine, plain = head(*batch()), BiSRQAHead(RetrieverConfig(top_k=5))(*batch())
    for one, other in zip(mine, plain, strict=True):
        assert torch.equal(one.node_ids, other.node_ids)
        assert torch.equal(one.node_score, other.node_score)


def test_embeddings_of_another_width_are_refused(tmp_path):
    head = BiSRQAHead(RetrieverConfig(learned=folder_of(trained(), tmp_path / "r")))
    questions, _, graph = batch()
    wide = dataclasses.replace(
        graph, x=torch.zeros(graph.num_nodes, 20), relation_x=torch.zeros(graph.num_relations, 20)
    )
    with pytest.raises(ValueError, match="embeddings of 16 numbers, these have 20"):
        head(questions, torch.zeros(len(questions), 20), wide)


@pytest.mark.parametrize("change", [{"restart": 0.3}, {"topic_mass": 0.2}, {"reweight": "linear"}])
def test_settings_that_it_has_of_its_own_cannot_be_set(change):
    (key,) = change
    with pytest.raises(ValueError, match=rf"retriever\.{key} must be .* with retriever\.learned"):
        RetrieverConfig(learned="somewhere", **change)
