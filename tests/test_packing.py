"""Rows laid end to end: the loss and the gradients of padded ones."""

import dataclasses
from typing import Any

import pytest
import tiny
import torch
from transformers import MistralConfig, MistralForCausalLM

from bisrqa import packing
from bisrqa.generator import Generator
from bisrqa.model import BiSRQA, Prepared

LONG = [(f"place number {i}", "location.location.contains", f"town {i}") for i in range(30)]


def build(packed: bool, **changes: Any) -> tuple[BiSRQA, list[Prepared]]:
    prompt = {"max_prompt_tokens": 300, **changes.pop("prompt", {})}
    model = tiny.model(tiny.config(prompt=prompt, training={"packing": packed}, **changes))
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # zero at first, which would hide the other factor
            torch.manual_seed(len(name))
            torch.nn.init.normal_(weight, std=0.05)
    long = tiny.example("which towns are there", ["town 1"], LONG, ["place number 1"])
    short = tiny.example("who", ["Ann"])
    return model.train(), model.prepare([short, long, *tiny.examples()[:3]])


def gradients(model: BiSRQA, batch: list[Prepared]) -> tuple[float, dict[str, torch.Tensor]]:
    loss = model(batch, model.targets(batch), 0.0)
    loss.backward()
    return loss.item(), {n: w.grad for n, w in model.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "prompt", [{}, {"soft_prompt": False}, {"hard_prompt": False}, {"order": "attention"}]
)
def test_loss_and_gradients_are_those_of_padded_rows(
    prompt: dict[str, Any], checkpointing: bool
) -> None:
    found = []
    for packed in (False, True):
        model, batch = build(packed, prompt=prompt, encoder={"dropout": 0.0})
        assert (model.shared == len(model.builder.prefix)) == packed
        if checkpointing:
            model.generator.checkpoint_activations()
        found.append(gradients(model, batch))
    lengths = model.lengths(batch)
    assert max(lengths) > packing.BLOCK  # more than one block
    (loss, expected), (packed_loss, given) = found
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    assert given.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        # Some are nothing but rounding: a bias of keys moves no attention.
        scale = max(gradient.abs().max().item(), 1e-3 * largest)
        torch.testing.assert_close(given[name], gradient, rtol=1e-3, atol=1e-4 * scale, msg=name)


def test_a_row_is_blind_to_the_others() -> None:
    """The same question beside different ones: its tokens' logits do not move."""
    model, batch = build(True)
    alone = sum(model([one], model.targets([one])).item() for one in batch)
    assert model(batch, model.targets(batch)).item() == pytest.approx(alone, rel=1e-5)
    backwards = batch[::-1]
    assert model(backwards, model.targets(backwards)).item() == pytest.approx(alone, rel=1e-5)


def test_places_by_hand() -> None:
    """Two shared tokens; rows of 4, 3 and 5 tokens, of which the others have 1 and 3 of their own.

    tokens     a b c d | e | f g h
    positions  0 1 2 3 | 2 | 2 3 4
    """
    packed = packing.Packed(2, (4, 3, 5))
    assert list(packed.spans()) == [(0, 4, 0), (4, 5, 2), (5, 8, 2)]
    assert packed.positions().tolist() == [[0, 1, 2, 3, 2, 2, 3, 4]]
    assert packed.mask().shape == (1, 1, 5, 5)
    padded = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    own = packing.own_tokens(padded, 2).long().tolist()
    assert own == [[0, 1, 1, 1, 1], [0, 0, 0, 0, 1], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_blocks_cover_a_row_and_none_is_long(length: int) -> None:
    cut = packing.blocks(length, torch.device("cpu"))
    assert [first for first, _ in cut] == [0, *(last for _, last in cut[:-1])]
    assert cut[-1][1] == length
    assert all(0 < last - first <= packing.BLOCK for first, last in cut)
    assert packing.blocks(length, torch.device("meta")) == [(0, length)]


def test_a_cpu_packs_unless_told_otherwise() -> None:
    for setting, packs in ((None, True), (True, True), (False, False)):
        model = tiny.model(tiny.config(training={"packing": setting}))
        assert (model.shared is not None) == packs


def test_models_whose_layers_see_only_a_window_are_padded_or_refused() -> None:
    sizes = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    for window, able in ((8, False), (None, True)):
        config = MistralConfig(**sizes, **layers, sliding_window=window)
        settings = tiny.config()
        made = Generator(MistralForCausalLM(config), tiny.tokenizer(), settings.generator)
        assert made.can_pack == able
        assert (BiSRQA(settings, made, dim=tiny.DIM).shared is not None) == able
        wanted = dataclasses.replace(settings.training, packing=True)
        if not able:
            with pytest.raises(ValueError, match=r"training\.packing"):
                BiSRQA(dataclasses.replace(settings, training=wanted), made, dim=tiny.DIM)
