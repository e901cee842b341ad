"""What holds for every encoder of subgraphs."""

import dataclasses

import pytest
import tiny
import torch
from test_maif import EMPTY, HIDDEN, WORD_NORM, close, collate, subgraphs

from bisrqa import encoders
from bisrqa.config import EncoderConfig

SETTINGS = {
    "maif": {},
    "g_retriever": {},
    "g_retriever, gat": {"gnn": "gat"},
    "grag": {},
    "grag, gat": {"gnn": "gat"},
    "prompt_tuning": {"soft_tokens": 3},
}


@pytest.fixture(params=SETTINGS)
def config(request: pytest.FixtureRequest) -> EncoderConfig:
    kind = request.param.split(",")[0]
    return EncoderConfig(kind=kind, hidden=32, num_heads=2, layers=2, **SETTINGS[request.param])


@pytest.fixture
def encoder(config) -> torch.nn.Module:
    torch.manual_seed(0)
    return encoders.build(config, dim=tiny.DIM, llm_hidden=HIDDEN, word_norm=WORD_NORM).eval()


def test_it_gives_as_many_tokens_as_the_config_says_at_the_norm_of_words(config, encoder):
    soft = encoder(collate(subgraphs())).soft_tokens
    assert soft.shape == (4, config.num_soft_tokens, HIDDEN)
    spread = 0.01 if config.kind != "prompt_tuning" else 0.4
    norm = soft.norm(dim=-1)
    torch.testing.assert_close(norm, torch.full_like(norm, WORD_NORM), rtol=spread, atol=0.0)


def test_a_question_does_not_depend_on_its_company(encoder):
    encoder.train()  # nor in training
    together = encoder(collate(subgraphs())).soft_tokens
    for row, evidence in enumerate(subgraphs()):
        graph = collate([evidence])
        x = collate(subgraphs()).question_x[row : row + 1]
        alone = encoder(dataclasses.replace(graph, question_x=x)).soft_tokens
        close(alone[0], together[row])


def test_every_parameter_learns(config, encoder):
    torch.manual_seed(1)
    # Attention over a single neighbour says nothing: Oslo has two.
    two = tiny.evidence([("Ada", "born", "Oslo"), ("Bo", "lives", "Oslo"), ("Oslo", "in", "Asia")])
    soft = encoder(collate([*subgraphs()[:3], two])).soft_tokens
    (soft * torch.randn_like(soft)).sum().backward()
    # A key's bias shifts all logits of a softmax alike, in MAIF's attention as in PyG's layers.
    idle = {
        name
        for name, weight in encoder.named_parameters()
        if (weight.grad is None or weight.grad.abs().max() < 1e-7)
        and not name.endswith(("key.bias", "lin_key.bias"))
    }
    assert not idle


@pytest.mark.parametrize("kind", ["g_retriever", "grag"])
def test_graph_networks_read_the_edges_and_their_relations(kind):
    torch.manual_seed(0)
    config = EncoderConfig(kind=kind, hidden=32, num_heads=2, layers=2)
    encoder = encoders.build(config, dim=tiny.DIM, llm_hidden=HIDDEN, word_norm=WORD_NORM)
    graph = collate(subgraphs())
    before = encoder(graph).soft_tokens
    turned = dataclasses.replace(graph, edge_index=graph.edge_index.flip(0))
    renamed = dataclasses.replace(graph, relation_x=graph.relation_x.flip(1))
    for other in (turned, renamed):
        assert (encoder(other).soft_tokens - before)[0].abs().max() > 1e-3


def test_only_grag_looks_at_the_question_among_the_graph_networks():
    graph, other = collate(subgraphs()), collate(subgraphs(), "where")
    for kind, looks in (("g_retriever", False), ("grag", True)):
        torch.manual_seed(0)
        config = EncoderConfig(kind=kind, hidden=32, num_heads=2, layers=2)
        encoder = encoders.build(config, dim=tiny.DIM, llm_hidden=HIDDEN, word_norm=WORD_NORM)
        change = (encoder(graph).soft_tokens - encoder(other).soft_tokens)[0].abs().max()
        assert bool(change > 1e-3) == looks


@pytest.mark.parametrize("kind", ["maif", "g_retriever", "grag"])
def test_nothing_retrieved_gives_the_learned_tokens(kind):
    torch.manual_seed(0)
    config = EncoderConfig(kind=kind, hidden=32, num_heads=2, layers=2)
    encoder = encoders.build(config, dim=tiny.DIM, llm_hidden=HIDDEN, word_norm=WORD_NORM)
    last = encoder.to_words
    learned = torch.nn.functional.layer_norm(last.no_evidence, [HIDDEN]) * last.scale
    close(encoder(collate(subgraphs())).soft_tokens[EMPTY], learned)


def test_the_table_names_what_the_config_knows():
    from typing import get_args, get_type_hints

    assert set(encoders.ENCODERS) == set(get_args(get_type_hints(EncoderConfig)["kind"]))
