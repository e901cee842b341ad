"""Greedy replies: the tokens of transformers' own search, with less work."""

import pytest
import tiny
import torch
from torch import Tensor
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM
from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

from bisrqa.config import GeneratorConfig
from bisrqa.decoding import can_decode, greedy
from bisrqa.generator import Generator

PAD = 256
PREFIX = list(b"Answer briefly. ")
PROMPTS = [list(text) for text in (b"who is it?", b"why", b"where to now, and when", b"x", b"so")]


def gpt2() -> GPT2LMHeadModel:
    """It learns absolute positions: a shifted prompt gives other logits."""
    torch.manual_seed(0)
    sizes = {"n_positions": 96, "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    no_tokens = {"bos_token_id": None, "eos_token_id": PAD, "pad_token_id": PAD}
    return GPT2LMHeadModel(GPT2Config(vocab_size=259, **sizes, **no_tokens)).eval()


def mistral() -> MistralForCausalLM:
    """It looks only so far back, and its cache forgets what is farther."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}
    no_tokens = {"bos_token_id": None, "eos_token_id": PAD, "pad_token_id": PAD}
    config = MistralConfig(
        vocab_size=259, initializer_range=0.3, max_position_embeddings=128,
        **sizes, **heads, **no_tokens,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


LLMS = {"llama": tiny.llm, "gpt2": gpt2}


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def theirs(llm, rows: list[list[int]], stop: list[int], longest: int) -> list[list[int]]:
    """Up to the stop token, and with it."""
    ids, mask = padded(rows)
    settings = GenerationConfig(
        max_new_tokens=longest, do_sample=False, eos_token_id=stop, pad_token_id=PAD
    )
    embeds = llm.get_input_embeddings()(ids)
    made = llm.generate(inputs_embeds=embeds, attention_mask=mask, generation_config=settings)
    found = []
    for row in made.tolist():
        ends = [at + 1 for at, token in enumerate(row) if token in stop]
        found.append(row[: min(ends, default=len(row))])
    return found


def ours(llm, rows: list[list[int]], prefix: list[int], stop: list[int], longest: int):
    ids, mask = padded(rows)
    embed = llm.get_input_embeddings()
    start = embed(torch.tensor(prefix, dtype=torch.long))
    return greedy(
        llm, embed(ids), mask, prefix=start, stop_ids=stop, max_new_tokens=longest
    ).ids  # fmt: skip


def some_stops(llm, whole: list[list[int]]) -> list[int]:
    """A stop token that ends some replies early, at several places."""
    free = theirs(llm, whole, [PAD + 2], 24)
    return [free[0][3], free[1][9], free[2][0]]


@pytest.mark.parametrize("prefix", [[], PREFIX])
@pytest.mark.parametrize("kind", LLMS)
def test_tokens_are_those_of_transformers(kind: str, prefix: list[int]) -> None:
    llm = LLMS[kind]().eval()
    whole = [prefix + row for row in PROMPTS]
    for stop in ([PAD + 2], some_stops(llm, whole)):
        expected = theirs(llm, whole, stop, 24)
        assert ours(llm, PROMPTS, prefix, stop, 24) == expected
        for row, alone in zip(PROMPTS, expected, strict=True):
            assert ours(llm, [row], prefix, stop, 24) == [alone]
    assert len({len(row) for row in expected}) > 2  # they do stop at several places
    assert ours(llm, PROMPTS, prefix, [PAD + 2], 1) == theirs(llm, whole, [PAD + 2], 1)


def test_the_prefix_is_read_once_and_rows_that_have_ended_leave() -> None:
    llm = tiny.llm().eval()
    stop = some_stops(llm, [PREFIX + row for row in PROMPTS])
    shapes: list[tuple[int, ...]] = []
    llm.model.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple((args or (kwargs["hidden_states"],))[0].shape)),
        with_kwargs=True,
    )
    replies = ours(llm, PROMPTS, PREFIX, stop, 24)
    assert [shape[:2] for shape in shapes[:2]] == [(1, len(PREFIX)), (5, 22)]
    steps = [rows for rows, tokens, _ in shapes[2:]]
    assert all(tokens == 1 for _, tokens, _ in shapes[2:])
    speaking = [sum(len(r) > step + 1 for r in replies) for step in range(len(steps))]
    assert all(left <= rows for left, rows in zip(speaking, steps, strict=True))
    assert steps[0] == 5  # one has ended: too few to be worth the copying
    assert steps[-1] < 4


def test_a_model_that_forgets_is_left_to_transformers() -> None:
    llm = mistral()
    assert not can_decode(llm.config)
    assert can_decode(tiny.llm().config)
    config = GeneratorConfig(mode="frozen", max_new_tokens=12)
    generator = Generator(llm, tiny.tokenizer(), config).eval()
    assert not generator.shares_prefix
    whole = [PREFIX + row for row in PROMPTS]
    ids, mask = padded(whole)
    replies = generator.generate(generator.embed(ids), mask, [PAD + 2])
    expected = theirs(llm, whole, [PAD + 2], 12)
    assert replies.texts == generator.texts(expected)
    assert replies.tokens == [len(row) for row in expected]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_reply_says_how_long_it_is(beams: int) -> None:
    config = GeneratorConfig(mode="frozen", max_new_tokens=12, num_beams=beams)
    generator = Generator(tiny.llm(), tiny.tokenizer(), config).eval()
    ids, mask = padded(PROMPTS)
    replies = generator.generate(generator.embed(ids), mask, [PAD + 2])
    assert replies.tokens == [12] * len(PROMPTS)
    whole = theirs(generator.llm, PROMPTS, [PAD + 2], 12)
    stop = whole[1][4]
    cut = generator.generate(generator.embed(ids), mask, [stop])
    assert (cut.prefill_seconds > 0) == (beams == 1)
    assert cut.decode_seconds > 0
    if beams == 1:  # with beams another reply may win
        ends = [row.index(stop) + 1 if stop in row else 12 for row in whole]
        assert cut.tokens == ends


def test_merged_adapters_give_the_same_replies() -> None:
    config = GeneratorConfig(mode="lora", lora_rank=4, lora_dropout=0.1, max_new_tokens=16)
    generator = Generator(tiny.llm(), tiny.tokenizer(), config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in generator.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2)
    ids, mask = padded(PROMPTS)
    embeds = generator.embed(ids)
    before = generator.llm(inputs_embeds=embeds, attention_mask=mask).logits
    replies = generator.generate(embeds, mask, [PAD]).texts
    assert (
        replies
        != Generator(tiny.llm(), tiny.tokenizer(), config)
        .eval()
        .generate(embeds, mask, [PAD])
        .texts
    )
    generator.merge_adapters()
    assert not generator.has_adapters
    after = generator.llm(inputs_embeds=embeds, attention_mask=mask).logits
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)
    assert generator.generate(embeds, mask, [PAD]).texts == replies
    narrow = Generator(tiny.llm().to(torch.bfloat16), tiny.tokenizer(), config)
    narrow.merge_adapters()
    assert narrow.has_adapters
