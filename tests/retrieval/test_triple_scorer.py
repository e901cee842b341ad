"""The triple scorer: against a plain version, by hand, and its folder."""

import pytest
import torch
from test_learned import DIM, batch, case, embed
from torch import nn

from bisrqa.config import LearningConfig, RetrieverConfig
from bisrqa.data.records import Triple
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import NodeKind
from bisrqa.heads.base import topic_mask
from bisrqa.heads.bisrqa import BiSRQAHead
from bisrqa.heads.subgraphrag import SubgraphRAGHead
from bisrqa.heads.triples import TriplesHead
from bisrqa.retrieval.learned import LearnedWalk
from bisrqa.retrieval.trained import SCALE, keys
from bisrqa.retrieval.triple_scorer import FEATURES, TripleScorer, distance_encoding
from bisrqa.retriever_losses import Row, of_triples


def scorer(seed: int = 0, **sizes) -> TripleScorer:
    torch.manual_seed(seed)
    model = TripleScorer(DIM, hidden=8, members=2, **sizes)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return model.eval().requires_grad_(False)


def test_distances_by_hand():
    """t -> a -> b, and c -> a: marks go on along the edges, and against them."""
    triples = [Triple("t", "r", "a"), Triple("a", "r", "b"), Triple("c", "r", "a")]
    graph = from_triples(triples, embed)
    topics = torch.tensor([name == "t" for name in graph.node_text])
    far = distance_encoding(graph, topics)
    assert far.shape == (4, FEATURES)
    of = dict(zip(graph.node_text, far[:, 0::2].tolist(), strict=True))  # the topic's mark
    assert of["t"] == [1, 0, 0, 0, 0]
    assert of["a"] == [0, 0.5, 0, 0, 0]  # half of what arrives is from c
    assert of["b"] == [0, 0, 0.5, 0, 0]
    assert of["c"] == [0, 0, 0, 0, 0]
    back = dict(zip(graph.node_text, far[:, 1::2].tolist(), strict=True))  # the others' marks
    assert back["t"] == [0, 0, 0, 1, 1]
    assert back["c"] == [1, 0, 0, 1, 1]


def test_it_is_a_network_over_the_parts_of_each_triple():
    """Against a loop that lays question, head, relation, tail and distances end to end."""
    question, graph = case(3)
    model, x = scorer(), embed([question.question])
    topics = topic_mask([question], graph)
    found = model(graph, x, topics)
    far = distance_encoding(graph, topics)
    for member in range(2):
        first = torch.cat(
            [
                getattr(model, name)[member]
                for name in (
                    "question",
                    "start",
                    "relation",
                    "end",
                    "start_distance",
                    "end_distance",
                )
            ]
        )

        def text(node, member=member):
            if graph.node_kind[node] == NodeKind.MEDIATOR:
                return model.unnamed[member, 0]
            return graph.x[node] * SCALE

        for edge, (h, t) in enumerate(graph.edge_index.T.tolist()):
            relation = graph.relation_x[graph.edge_type[edge]] * SCALE
            parts = [x[0] * SCALE, text(h), relation, text(t), far[h], far[t]]
            inner = torch.relu(torch.cat(parts) @ first + model.inner_bias[member, 0])
            logit = inner @ model.outer[member, :, 0] + model.outer_bias[member, 0, 0]
            assert float(found[member, edge]) == pytest.approx(float(logit), abs=1e-4)


def test_a_question_does_not_depend_on_its_company(tmp_path):
    scorer().save(tmp_path / "r", {})
    head = SubgraphRAGHead(RetrieverConfig(top_k=6, learned=str(tmp_path / "r")))
    questions, x, graph = batch()
    assert any(len(evidence.edge_ids) for evidence in head(questions, x, graph))
    for number, evidence in enumerate(head(questions, x, graph)):
        question, own = case(number)
        (alone,) = head([question], embed([question.question]), own)
        assert torch.equal(alone.edge_ids, evidence.edge_ids)
        torch.testing.assert_close(alone.edge_score, evidence.edge_score)


def test_networks_are_kept_from_what_they_have_seen():
    question = case(0)[0]
    model = scorer(seen=1)
    model.seen.copy_(keys([question]))
    share = model.shares(keys([question, case(1)[0]]))
    own = int(model.left_out(keys([question]))[0])
    assert share[:, 0].tolist() == [float(member == own) for member in range(2)]
    assert share[:, 1].tolist() == [0.5, 0.5]


def test_without_a_folder_it_takes_the_nearest_triples_and_says_so(caplog, tmp_path):
    questions, x, graph = batch()
    plain = SubgraphRAGHead(RetrieverConfig(learned=str(tmp_path / "none")))(questions, x, graph)
    assert "bisrqa train-retriever --head subgraphrag" in caplog.text
    for one, other in zip(plain, TriplesHead(RetrieverConfig())(questions, x, graph), strict=True):
        assert torch.equal(one.edge_ids, other.edge_ids)


def test_one_heads_folder_is_refused_by_the_other(tmp_path):
    scorer().save(tmp_path / "triples", {})
    LearnedWalk(DIM, hidden=4).save(tmp_path / "walk", {})
    with pytest.raises(ValueError, match="it is of head subgraphrag, wanted is one of bisrqa"):
        BiSRQAHead(RetrieverConfig(learned=str(tmp_path / "triples")))
    with pytest.raises(ValueError, match="it is of head bisrqa, wanted is one of subgraphrag"):
        SubgraphRAGHead(RetrieverConfig(learned=str(tmp_path / "walk")))


def test_the_loss_of_a_question_by_hand():
    """Two triples, one of them on the way: cross-entropy, the one on the way ten times."""
    graph = from_triples([Triple("t", "r", "a"), Triple("t", "s", "b")], embed)
    topics = torch.tensor([name == "t" for name in graph.node_text])
    golds = torch.tensor([name == "a" for name in graph.node_text])
    question, x, model = case(0)[0], embed(["q"])[0], scorer()
    row = Row(graph, x, graph.relation_x, graph.x @ x, topics, golds, keys([question])[0])
    logit = model(graph, x[None], topics)
    on_way = golds[graph.edge_index[1]]
    good, bad = (
        nn.functional.softplus(s)[:, m][:, 0] for s, m in ((-logit, on_way), (logit, ~on_way))
    )
    expected = (10 * good + bad) / 2
    torch.testing.assert_close(of_triples(model, [row], LearningConfig())[:, 0], expected)
