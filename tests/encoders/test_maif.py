import dataclasses

import pytest
import tiny
import torch

from bisrqa.config import EncoderConfig
from bisrqa.encoders import Fusion, Subgraphs
from bisrqa.encoders.maif import MAIF, Attention, _self_mask
from bisrqa.heads import Evidence

HIDDEN, WORD_NORM = 48, 3.0
SETTINGS = {
    "queries": {"pooling": "queries", "soft_tokens": 4},
    "granularity": {"pooling": "granularity"},
    "question": {"pooling": "queries", "soft_tokens": 2, "condition_on_question": True},
}


@pytest.fixture(params=SETTINGS)
def maif(request: pytest.FixtureRequest) -> MAIF:
    return build(**SETTINGS[request.param])


def build(**settings) -> MAIF:
    torch.manual_seed(0)
    config = EncoderConfig(hidden=32, num_heads=2, **settings)
    return MAIF(config, dim=tiny.DIM, llm_hidden=HIDDEN, word_norm=WORD_NORM)


def subgraphs() -> list[Evidence]:
    """A chain, a star with a mediator, nothing at all, and nodes without any edge."""
    star = [("Bo", "spouse", "m.01"), ("m.01", "wife", "Di"), ("m.01", "from", "1990")]
    star += [("Bo", "born", "Oslo"), ("Bo", "lives", "Oslo"), ("Bo", "works", "Rome")]
    lone = tiny.evidence([("Ada", "born", "Rome")])
    graph = dataclasses.replace(
        lone.graph,
        edge_index=torch.empty(2, 0, dtype=torch.long),
        edge_type=torch.empty(0, dtype=torch.long),
        edge_passage=torch.empty(0, dtype=torch.long),
        relation_x=lone.graph.relation_x[:0],
        relation_text=(),
        edge_ptr=torch.tensor([0, 0]),
        relation_ptr=torch.tensor([0, 0]),
    ).check()
    lone = dataclasses.replace(
        lone, graph=graph, edge_ids=lone.edge_ids[:0], edge_score=lone.edge_score[:0]
    )
    chain = tiny.evidence([("Ada", "born", "Rome"), ("Rome", "in", "Italy")], ["Ada"])
    return [chain, tiny.evidence(star, ["Bo"]), tiny.evidence([]), lone]


def collate(evidence: list[Evidence], word: str = "who") -> Subgraphs:
    return Subgraphs.collate(
        evidence, list(tiny.embed([f"{word} {i}" for i in range(4)]))[: len(evidence)]
    )


EMPTY = 2


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_collate_pads_and_scales_scores_to_the_best_of_each_question() -> None:
    graph = collate(subgraphs())
    assert graph.keep_entities.sum(1).tolist() == [3, 6, 0, 2]
    assert graph.keep_relations.sum(1).tolist() == [2, 6, 0, 0]
    assert not graph.entity_x[~graph.keep_entities].any()
    assert graph.entity_x.dtype == torch.float32
    assert graph.entity_score.amax(1).tolist() == [1, 1, 0, 1]
    close(graph.entity_score[0, :3], torch.tensor([1, 1 / 2, 1 / 3]))


def test_a_batch_gives_what_each_question_gives_alone(maif: MAIF) -> None:
    evidence = subgraphs()
    graph = collate(evidence)
    batch = maif(graph)
    for row, one in enumerate(evidence):
        alone = maif(Subgraphs.collate([one], [graph.question_x[row]]))
        close(batch.soft_tokens[row], alone.soft_tokens[0])
        close(batch.entity_attention[row, : one.graph.num_nodes], alone.entity_attention[0])
        close(batch.relation_attention[row, : one.graph.num_relations], alone.relation_attention[0])


def test_what_stands_in_the_padding_is_never_read(maif: MAIF) -> None:
    graph = collate(subgraphs())
    junk = dataclasses.replace(
        graph,
        entity_x=graph.entity_x + 9.0 * ~graph.keep_entities[..., None],
        entity_score=graph.entity_score + 0.7 * ~graph.keep_entities,
        relation_x=graph.relation_x - 9.0 * ~graph.keep_relations[..., None],
    )
    for clean, dirty in zip(maif(graph), maif(junk), strict=True):
        close(clean, dirty)


def test_the_order_of_nodes_and_relations_permutes_attention_and_nothing_else(maif: MAIF) -> None:
    graph = collate(subgraphs()[1:2])
    nodes, relations = torch.tensor([3, 0, 5, 1, 4, 2]), torch.tensor([5, 2, 0, 4, 1, 3])
    other = dataclasses.replace(
        graph,
        entity_x=graph.entity_x[:, nodes],
        entity_score=graph.entity_score[:, nodes],
        relation_x=graph.relation_x[:, relations],
    )
    before, after = maif(graph), maif(other)
    close(after.soft_tokens, before.soft_tokens)
    close(after.entity_attention, before.entity_attention[:, nodes])
    close(after.relation_attention, before.relation_attention[:, relations])
    assert before.entity_attention.std() > 1e-4  # else any order would do


def test_attention_sums_to_one_over_what_is_there(maif: MAIF) -> None:
    graph, fusion = collate(subgraphs()), maif(collate(subgraphs()))
    close(fusion.entity_attention.sum(1), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    close(fusion.relation_attention.sum(1), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert (fusion.entity_attention[graph.keep_entities] > 0).all()
    assert not fusion.entity_attention[~graph.keep_entities].any()
    assert not fusion.relation_attention[~graph.keep_relations].any()


def test_an_empty_subgraph_gives_the_learned_tokens(maif: MAIF) -> None:
    mixed, alone = maif(collate(subgraphs())), maif(collate(subgraphs()[EMPTY : EMPTY + 1]))
    last = maif.to_words
    learned = torch.nn.functional.layer_norm(last.no_evidence, [HIDDEN]) * last.scale
    close(mixed.soft_tokens[EMPTY], learned)
    close(alone.soft_tokens[0], learned)
    assert (mixed.soft_tokens[3] - learned).abs().max() > 0.1  # nodes without edges are evidence


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [EMPTY], [EMPTY, EMPTY], [3]])
def test_values_and_gradients_are_finite(maif: MAIF, rows: list[int]) -> None:
    evidence = subgraphs()
    fusion = maif(collate([evidence[row] for row in rows]))
    backward(fusion)
    assert all(torch.isfinite(value).all() for value in fusion)
    for name, weight in maif.named_parameters():
        assert weight.grad is None or torch.isfinite(weight.grad).all(), name


def test_the_gradient_reaches_every_parameter(maif: MAIF) -> None:
    backward(maif(collate(subgraphs())))
    # A key's bias shifts all logits of a softmax alike: it has no effect, here as anywhere.
    idle = {
        name
        for name, weight in maif.named_parameters()
        if weight.grad is None or weight.grad.abs().max() < 1e-7
    }
    assert {name for name in idle if not name.endswith(".key.bias")} == set()


def backward(fusion: Fusion) -> None:
    torch.manual_seed(1)
    (fusion.soft_tokens * torch.randn_like(fusion.soft_tokens)).sum().backward()


def test_pooling_says_how_many_tokens_there_are_and_their_norm_is_that_of_a_word() -> None:
    for settings, count in (
        (SETTINGS["queries"], 4),
        (SETTINGS["question"], 2),
        (SETTINGS["granularity"], 3),
    ):
        soft = build(**settings)(collate(subgraphs())).soft_tokens
        assert soft.shape == (4, count, HIDDEN)
        norm = soft.norm(dim=-1)
        torch.testing.assert_close(norm, torch.full_like(norm, WORD_NORM), rtol=0.01, atol=0.0)


def test_tokens_differ_from_one_another_and_between_subgraphs(maif: MAIF) -> None:
    soft = maif(collate(subgraphs())).soft_tokens.flatten(0, 1)
    distance = torch.cdist(soft, soft) + 9 * torch.eye(len(soft))
    assert distance.min() > 0.01


@pytest.mark.parametrize("condition", [False, True])
def test_the_question_is_seen_only_if_asked_for(condition: bool) -> None:
    maif = build(condition_on_question=condition)
    one, other = (maif(collate(subgraphs(), word)).soft_tokens for word in ("who", "where"))
    seen = (one - other).abs().amax((1, 2))
    assert ((seen > 1e-3) == torch.tensor([condition, condition, False, condition])).all()


def test_the_walk_score_is_seen(maif: MAIF) -> None:
    graph = collate(subgraphs()[:2])
    flat = dataclasses.replace(graph, entity_score=graph.keep_entities.float())
    assert (maif(graph).soft_tokens - maif(flat).soft_tokens).abs().amax((1, 2)).min() > 1e-3


def test_attention_is_the_textbook_one() -> None:
    torch.manual_seed(0)
    attention, plain = Attention(8, 2, 0.0), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        plain.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        plain.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
        plain.out_proj.load_state_dict(attention.out.state_dict())
    reader, source = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    keep = torch.tensor([[True] * 5, [True, False, True, False, False]])
    key = attention.key_norm(source)
    read, weight = plain(attention.query_norm(reader), key, key, key_padding_mask=~keep)
    ours, our_weight = attention(reader, source, keep[:, None])
    close(ours, reader + read)
    close(our_weight, weight)
    # A prior multiplies the weights; a constant one says nothing.
    close(attention(reader, source, keep[:, None], torch.full((2, 5), 0.3))[1], weight)
    prior = torch.tensor([0.5, 0.1, 1e-5, 1.0, 0.2]).expand(2, -1)
    single = Attention(8, 1, 0.0)
    flat, tilted = (single(reader, source, keep[:, None], p)[1] for p in (None, prior))
    expected = flat * prior[:, None]
    close(tilted, expected / expected.sum(-1, keepdim=True))


def test_a_reader_without_anything_to_read_stays_as_it_is() -> None:
    attention, keep = Attention(8, 2, 0.0), torch.tensor([[[True, False]], [[False, False]]])
    reader = torch.randn(2, 3, 8)
    read, weight = attention(reader, torch.randn(2, 2, 8), keep)
    assert torch.equal(read[1], reader[1])
    assert not torch.equal(read[0], reader[0])
    close(weight, torch.tensor([[1.0, 0.0], [0.0, 0.0]])[:, None].expand(-1, 3, -1))


def test_each_kind_attends_to_itself_and_the_subgraph_to_all() -> None:
    keep = _self_mask(torch.tensor([[True, True, False]]), torch.tensor([[True, False]]))
    subgraph, entity, relation = [1, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]
    assert keep.int().tolist() == [[subgraph, *[entity] * 3, *[relation] * 2]]


def test_queries_read_by_the_attention_of_the_subgraph() -> None:
    maif, seen = build(), []
    maif.query_reads.register_forward_pre_hook(lambda _, given: seen.append(given[3]))
    fusion = maif(collate(subgraphs()))
    attention = torch.cat([fusion.entity_attention, fusion.relation_attention], 1)
    close(seen[0][:, 1:], attention)
    assert (seen[0][:, 0] == 1).all()


@pytest.mark.parametrize("pooling", ["queries", "granularity"])
@pytest.mark.parametrize("part", ["entity_x", "relation_x", "entity_score"])
def test_every_input_counts_before_any_training(pooling, part):
    """With unit-norm embeddings at their usual width, no input may drown another."""
    torch.manual_seed(0)
    dim, entities, relations = 384, 25, 15

    def unit(*shape):
        return torch.nn.functional.normalize(torch.randn(*shape), dim=-1)

    given = {
        "entity_x": unit(8, entities, dim),
        "entity_score": torch.rand(8, entities),
        "keep_entities": torch.ones(8, entities, dtype=torch.bool),
        "relation_x": unit(8, relations, dim),
        "keep_relations": torch.ones(8, relations, dtype=torch.bool),
        "edge_index": torch.zeros(2, 0, dtype=torch.long),
        "edge_type": torch.zeros(0, dtype=torch.long),
        "question_x": unit(8, dim),
    }
    encoder = MAIF(EncoderConfig(pooling=pooling), dim=dim, llm_hidden=576, word_norm=3.0)
    other = {**given, part: given[part].flip(0)}
    with torch.no_grad():
        one, two = (encoder(Subgraphs(**inputs)).soft_tokens for inputs in (given, other))
    change = ((one - two).norm() / one.norm()).item()
    assert change > 0.05, change
