"""One question over several samples of its subgraph, and the vote."""

import dataclasses
import json

import pytest
import tiny

from bisrqa import evaluation
from bisrqa.config import RunConfig
from bisrqa.consistency import Vote, agreed
from bisrqa.generator import Replies


@pytest.mark.parametrize(
    ("replies", "kept"),
    [
        (["Rome\nOslo", "Oslo\nLima", "The oslo!\nrome"], "Oslo\nRome"),
        (["Rome", "rome\nOslo"], "Rome\nOslo"),  # half is enough
        (["Rome", "Oslo", "Lima"], "Rome"),  # nothing agrees: the first holds
        (["Rome\nrome", "Oslo", "Lima\nOslo"], "Oslo"),  # a reply votes once
        (["", "Rome", "Rome"], "Rome"),
        (["Rome\nRome"], "Rome"),
        (["", ""], ""),
    ],
)
def test_answers_of_at_least_half_of_the_replies_are_kept(replies: list[str], kept: str) -> None:
    assert agreed(replies) == kept


def test_other_prompts_are_samples_of_the_lines_and_repeat() -> None:
    model = tiny.model(tiny.config())
    many = [("Ada", f"rel {n}", f"city {n}") for n in range(40)]
    one, other = model.prepare(
        [tiny.example("who", triples=many, id="a"), tiny.example("who", triples=many, id="b")]
    )
    vote = Vote(model.generate, 4, seed=0)
    prompts = vote.prompts(one)
    assert prompts[0] is one
    kept = [tuple(line.fact.text for line in some.words.lines) for some in prompts]
    assert len(set(kept)) == 4
    assert all(15 < len(some) < 40 for some in kept[1:])
    assert all(list(some) == [t for t in kept[0] if t in some] for some in kept)  # still best first
    again = [tuple(line.fact.text for line in some.words.lines) for some in vote.prompts(one)]
    assert again == kept
    for changed, asked in ((dataclasses.replace(vote, seed=1), one), (vote, other)):
        found = [tuple(line.fact.text for line in p.words.lines) for p in changed.prompts(asked)]
        assert found[0] == kept[0]
        assert found[1:] != kept[1:]
    stated = [tuple(line.fact.text for line in model.builder.fitting(p.words)) for p in prompts]
    assert not set(stated[1]) <= set(stated[0])  # lines fit that had no room


def test_tokens_and_seconds_of_all_prompts_count() -> None:
    asked = []

    def engine(batch):
        asked.append([p.words for p in batch])
        return Replies([f"reply {len(asked)}", "same"], [3, len(asked)], 1.0, 2.0, 0.5)

    model = tiny.model(tiny.config())
    batch = model.prepare(tiny.examples()[:2])
    made = Vote(engine, 3, seed=0)(batch)
    assert made == Replies(["reply 1", "same"], [9, 6], 3.0, 6.0, 1.5)
    assert asked[0] == [p.words for p in batch]
    once = Vote(model.generate, 1, seed=0)(batch)
    assert once.texts == model.generate(batch).texts


def test_an_evaluation_votes_and_repeats(tmp_path) -> None:
    base = tiny.config(
        data={"source": "quickstart"}, evaluation={"limit": 4}, prompt={"soft_prompt": False},
        generator={"model": str(tiny.save_llm(tmp_path / "llm")), "decode": "entities"},
        output_dir=str(tmp_path),
    )  # fmt: skip

    def answers(subgraphs: int, name: str) -> list[dict]:
        evaluated = dataclasses.replace(base.evaluation, subgraphs=subgraphs)
        config = dataclasses.replace(base, evaluation=evaluated)
        evaluation.evaluate(config, tmp_path / name, run_dir=None)
        lines = (tmp_path / name / evaluation.PREDICTIONS).read_text("utf8").splitlines()
        return [json.loads(line) for line in lines]

    once, three, again = answers(1, "one"), answers(3, "three"), answers(3, "again")
    assert [r["prediction"] for r in three] == [r["prediction"] for r in again]
    for one, several in zip(once, three, strict=True):
        assert several["evidence"] == one["evidence"]
        assert several["prompt_tokens"] > 2 * one["prompt_tokens"]
        assert several["new_tokens"] > one["new_tokens"]
    with pytest.raises(ValueError, match="results of another evaluation"):
        answers(2, "three")


def test_samples_without_anything_to_sample_are_refused() -> None:
    prompt = dataclasses.replace(RunConfig().prompt, hard_prompt=False)
    several = dataclasses.replace(RunConfig().evaluation, subgraphs=3)
    message = r"evaluation\.subgraphs must be 1 without prompt\.hard_prompt, got 3"
    with pytest.raises(ValueError, match=message):
        RunConfig(prompt=prompt, evaluation=several)
    with pytest.raises(ValueError, match=r"evaluation\.subgraphs must be positive"):
        dataclasses.replace(several, subgraphs=0)
