import dataclasses
import math
import random

import pytest
import tiny
import torch

from bisrqa import encoder_training
from bisrqa.generator import Generator
from bisrqa.model import BiSRQA, Prepared
from bisrqa.prompt import IGNORE
from bisrqa.retrieval.subgraph import Reason


def build(**changes) -> tuple[BiSRQA, list[Prepared]]:
    model = tiny.model(tiny.config(**changes))
    return model, model.prepare(tiny.examples())


SWITCHES = {
    "both": {},
    "hard": {"soft_prompt": False},
    "soft": {"hard_prompt": False},
    "neither": {"soft_prompt": False, "hard_prompt": False},
    "attention": {"order": "attention"},
}


@pytest.fixture(params=SWITCHES)
def made(request: pytest.FixtureRequest) -> tuple[BiSRQA, list[Prepared]]:
    return build(prompt=SWITCHES[request.param])


def fit(model: BiSRQA, batch: list[Prepared], steps: int, rate: float) -> float:
    """Train on one batch, and return the last loss per answer token."""
    targets = model.targets(batch)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, rate)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch, targets) / sum(map(len, targets))
        loss.backward()
        optimizer.step()
    return loss.item()


def replies_wanted(batch: list[Prepared]) -> list[str]:
    return ["\n".join(p.example.question.answers) for p in batch]


def test_adapters_and_maif_learn_eight_questions_by_heart() -> None:
    model, batch = build()
    assert model.generate(batch).texts != replies_wanted(batch)
    assert fit(model, batch, steps=50, rate=1e-2) < 0.05
    assert model.generate(batch).texts == replies_wanted(batch)
    assert model.generate(batch[::-1][:3]).texts == replies_wanted(batch)[::-1][:3]


def test_soft_tokens_alone_can_tell_the_answer() -> None:
    """The same words over another graph: without MAIF both would get the same reply."""
    model = tiny.model(tiny.config(prompt={"hard_prompt": False}))
    triples = {city: [("Ada", "born", city)] for city in ("Rome", "Oslo")}
    batch = model.prepare([tiny.example("where", [c], t) for c, t in triples.items()])
    assert batch[0].words == batch[1].words
    assert fit(model, batch, steps=100, rate=3e-3) < 0.05
    assert model.generate(batch).texts == ["Rome", "Oslo"]


def test_a_batch_gives_what_each_question_gives_alone(made: tuple[BiSRQA, list[Prepared]]) -> None:
    model, batch = made
    loss = model(batch, model.targets(batch)).item()
    alone = sum(model([one], model.targets([one])).item() for one in batch)
    assert loss == pytest.approx(alone, rel=1e-5)
    assert model.generate(batch).texts == [model.generate([one]).texts[0] for one in batch]


def test_loss_and_reply_read_the_same_up_to_the_answer(
    made: tuple[BiSRQA, list[Prepared]],
) -> None:
    model, batch = made
    targets = model.targets(batch)
    learning, learned = model.inputs(batch, targets)
    asking, asked = model.inputs(batch)
    for row, target in enumerate(targets):
        one = learned.attention_mask[row].bool()
        other = asked.attention_mask[row].bool()
        ids = learned.input_ids[row][one].tolist()
        assert ids == asked.input_ids[row][other].tolist() + target
        torch.testing.assert_close(learning[row][one][: -len(target)], asking[row][other])


def test_the_answers_never_reach_the_input(made: tuple[BiSRQA, list[Prepared]]) -> None:
    model, batch = made
    told = [
        dataclasses.replace(
            p.example,
            question=dataclasses.replace(p.example.question, answers=("Atlantis", "m.0x1y")),
            golds_in_graph=5,
            golds_in_evidence=5,
        )
        for p in batch
    ]
    (embeds, tokens), (other_embeds, other_tokens) = (
        model.inputs(batch),
        model.inputs(model.prepare(told)),
    )
    assert torch.equal(embeds, other_embeds)
    assert torch.equal(tokens.input_ids, other_tokens.input_ids)
    assert (tokens.labels == IGNORE).all()
    assert model.targets(batch) != model.targets(model.prepare(told))


def test_what_maif_gives_stands_in_its_places_in_order() -> None:
    model, batch = build()
    fusion = model.fuse(batch)
    embeds, tokens = model.inputs(batch, model.targets(batch))
    places = embeds[tokens.keep_soft].unflatten(0, (len(batch), -1))
    assert torch.equal(places, fusion.soft_tokens)
    words = model.generator.embed(tokens.input_ids)
    assert torch.equal(embeds[~tokens.keep_soft], words[~tokens.keep_soft])


def test_switches_decide_what_there_is() -> None:
    counts = {}
    for name, prompt in SWITCHES.items():
        model, batch = build(prompt=prompt)
        embeds, tokens = model.inputs(batch)
        counts[name] = (model.encoder is not None, int(tokens.keep_soft.sum()), embeds.shape[1])
        text = model.generator.tokenizer.decode(tokens.input_ids[0])
        assert ("Ada | place of birth | Rome" in text) == prompt.get("hard_prompt", True)
        assert (model.fuse(batch) is None) == (model.encoder is None)
    length = counts["both"][2]
    assert counts["both"] == counts["attention"] == (True, 8 * 4, length)
    assert counts["hard"] == (False, 0, length - 4)
    assert counts["neither"] == (False, 0, counts["soft"][2] - 4)
    three, batch = build(encoder={"pooling": "granularity"})
    assert three.inputs(batch)[1].keep_soft.sum() == 8 * 3


def test_gradients_reach_maif_and_adapters_through_the_frozen_model() -> None:
    model, batch = build()
    # The second factor of each adapter starts at zero, and would hide the first from the loss.
    for name, weight in model.generator.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.01)
    model(batch, model.targets(batch)).backward()
    for name, weight in model.named_parameters():
        reached = weight.grad is not None and bool(weight.grad.abs().max() > 0)
        assert reached == weight.requires_grad, name


def stated(model, prepared) -> list[int]:
    return [edge for fact in model.prompt_facts(prepared) for edge in fact.edges]


def test_attention_orders_the_facts() -> None:
    model, batch = build(prompt={"order": "attention"})
    one = model.prepare(
        [tiny.example("who", triples=[(f"n{i}", f"r{i}", f"n{i + 1}") for i in range(6)])]
    )
    fusion = model.fuse(one)
    entity = fusion.entity_attention[0].tolist()
    expected = sorted(range(6), key=lambda i: -(entity[i] + entity[i + 1]))
    assert expected != list(range(6))
    assert stated(model, one[0]) == expected
    text = model.generator.tokenizer.decode(model.inputs(one + batch[:1])[1].input_ids[0])
    at = [text.index(f"n{i} | r{i} | n{i + 1}") for i in expected]
    assert at == sorted(at)
    plain, _ = build()
    assert stated(plain, plain.prepare([one[0].example])[0]) == list(range(6))


def test_facts_that_are_reported_are_those_in_the_prompt() -> None:
    model, batch = build(prompt={"max_prompt_tokens": 30})
    assert stated(model, batch[0]) == [0]
    assert stated(model, batch[-1]) == []
    married = build()[1][6]
    assert stated(build()[0], married) == [0, 1, 2]


def test_targets_are_shuffled_for_each_question_on_its_own() -> None:
    model, batch = build()
    seas = [batch[5]] * 8
    given = model.targets(seas, [random.Random(i) for i in range(8)])
    assert len({tuple(target) for target in given}) == 2
    asked = batch[5].example.question
    assert given == [model.builder.target(asked, random.Random(i)) for i in range(8)]
    assert model.targets(seas) == [model.targets(seas)[0]] * 8
    with pytest.raises(ValueError, match="zip"):
        model.targets(seas, [random.Random(0)])


def test_a_bfloat16_base_model_trains_float32_weights():
    """As on a GPU: the base model stays narrow, what is trained is not, and dtypes never clash."""
    settings = tiny.config(prompt={"order": "attention"})
    base = Generator(tiny.llm().to(torch.bfloat16), tiny.tokenizer(), settings.generator)
    model = BiSRQA(settings, base, dim=tiny.DIM)
    batch = model.prepare(tiny.examples())
    model(batch, model.targets(batch)).backward()
    for name, weight in model.named_parameters():
        assert weight.dtype == (torch.float32 if weight.requires_grad else torch.bfloat16), name
        assert not weight.requires_grad or torch.isfinite(weight.grad).all(), name
    assert len(model.generate(batch).texts) == len(batch)


def test_the_attention_loss_by_hand() -> None:
    """Share of the attention to candidates that is on golds; topics and mediators are none."""
    model, batch = build()
    fusion = model.fuse(batch)
    expected = 0.0
    for row, prepared in enumerate(batch):
        evidence, golds = prepared.example.evidence, prepared.example.question.answers
        may = [i for i, why in enumerate(evidence.reason.tolist()) if why == Reason.TOP_K]
        weight = fusion.entity_attention[row].tolist()
        hit = [weight[i] for i in may if evidence.graph.node_text[i] in golds]
        if hit:
            expected -= math.log(sum(hit) / sum(weight[i] for i in may))
    assert model.attention_loss(batch).item() == pytest.approx(expected, rel=1e-4)
    assert model.attention_loss(batch[-1:]).item() == 0  # nothing was kept
    targets = model.targets(batch)
    both = model(batch, targets, 2.0) - model(batch, targets)
    assert both.item() == pytest.approx(2 * expected, rel=1e-3)


def test_maif_learns_to_attend_to_the_answers_and_nothing_else_changes() -> None:
    settings = {"encoder_epochs": 30, "encoder_learning_rate": 3e-3}
    config = tiny.config(training=settings, encoder={"structure": True})
    model = tiny.model(config)
    batch = model.prepare(tiny.examples())
    before = {n: w.clone() for n, w in model.generator.named_parameters()}
    losses = encoder_training.run(model, batch, config)
    assert losses[-1] < 0.2 * losses[0]
    for name, weight in model.generator.named_parameters():
        assert torch.equal(weight, before[name]), name
    again = tiny.model(config)
    assert encoder_training.run(again, again.prepare(tiny.examples()), config) == losses


def test_with_structure_an_entity_knows_its_relations() -> None:
    """Two leaves with one name's worth of words, on relations that differ: only these tell."""
    for structure, tells in ((False, False), (True, True)):
        model, _ = build(encoder={"structure": structure})
        one = tiny.example("who", triples=[("a", "r", "b"), ("a", "s", "c")])
        other = tiny.example("who", triples=[("a", "s", "b"), ("a", "r", "c")])
        first, second = (model.fuse(model.prepare([e])).entity_attention[0] for e in (one, other))
        assert bool((first - second).abs().max() > 1e-4) == tells


def test_attention_orders_the_facts_without_soft_tokens_too() -> None:
    """The ranker alone: the same lines in the same order, and no place for a soft token."""
    learnt = {"encoder_epochs": 1}
    whole = tiny.config(prompt={"order": "attention"}, training=learnt)
    alone = tiny.config(prompt={"order": "attention", "soft_prompt": False}, training=learnt)
    model, ranker = tiny.model(whole), tiny.model(alone)
    assert ranker.encoder is not None
    assert model.encoder is not None
    ranker.encoder.load_state_dict(model.encoder.state_dict())
    batch, ranked = model.prepare(tiny.examples()), ranker.prepare(tiny.examples())
    assert [stated(model, p) for p in batch] == [stated(ranker, p) for p in ranked]
    walk, _ = build(prompt={"soft_prompt": False})
    assert [stated(ranker, p) for p in ranked] != [stated(walk, p) for p in ranked]
    with_soft, without = model.inputs(batch)[1], ranker.inputs(ranked)[1]
    assert without.keep_soft.sum() == 0
    soft = whole.encoder.num_soft_tokens
    assert without.input_ids.shape[1] == with_soft.input_ids.shape[1] - soft
