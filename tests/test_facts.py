"""Facts that share a line, and answers in the order in which the prompt names them."""

import random

import pytest
import tiny

from bisrqa.collate import Collator, Prepared
from bisrqa.config import PromptConfig
from bisrqa.facts import facts, golds_as_told
from bisrqa.prompt import PromptBuilder

TRIPLES = [
    ("Ada", "child", "Bo"), ("Ada", "born", "Rome"), ("Ada", "child", "Cy"), ("Di", "born", "Rome"),
    ("Ed", "born", "Rome"), ("Ada", "child", "Di"), ("Ada", "spouse", "m.1"),
    ("m.1", "partner", "Ed"), ("Ada", "spouse", "m.2"), ("m.2", "partner", "Flo"),
    ("m.2", "from", "1990"),
]  # fmt: skip


def texts(together: int) -> list[str]:
    return [fact.text for fact in facts(tiny.evidence(TRIPLES, ["Ada"]), together=together)]


def test_what_is_alike_shares_a_line_where_its_first_would_stand():
    assert texts(9) == [
        "Ada | child | Bo; Cy; Di",
        "Ada; Di; Ed | born | Rome",
        "Ada | spouse | partner Ed; partner Flo, from 1990",
    ]


def test_a_line_holds_no_more_than_it_may():
    assert texts(2) == [
        "Ada | child | Bo; Cy",
        "Ada; Di | born | Rome",
        "Ed | born | Rome",
        "Ada | child | Di",
        "Ada | spouse | partner Ed; partner Flo, from 1990",
    ]
    with pytest.raises(ValueError, match=r"prompt\.facts_together must be positive"):
        PromptConfig(facts_together=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_fact_is_lost_or_told_twice(seed):
    rng = random.Random(seed)
    triples = [
        (f"n{rng.randrange(9)}", f"r{rng.randrange(3)}", f"n{rng.randrange(9)}") for _ in range(60)
    ]
    evidence = tiny.evidence(triples)
    alone = facts(evidence)
    for most in (2, 3, 100):
        shared = facts(evidence, together=most)
        assert sorted(e for fact in shared for e in fact.edges) == sorted(
            e for fact in alone for e in fact.edges
        )
        score = evidence.edge_score
        assert all(fact.score == max(score[list(fact.edges)]) for fact in shared)
        assert [f.score for f in shared] == sorted((f.score for f in shared), reverse=True)
        for fact in shared:
            subject, relation, obj = (part.split("; ") for part in fact.text.split(" | "))
            told = {f"{s} | {relation[0]} | {o}" for s in subject for o in obj}
            assert told == {f.text for f in alone if set(f.edges) & set(fact.edges)}
            assert len(told) <= most


def example(answers):
    return tiny.example("whose?", answers, TRIPLES, ["Ada"])


def test_golds_come_as_they_are_told():
    some = example(["Di", "nobody", "Rome", "Cy"])
    assert golds_as_told(some, facts(some.evidence)) == ["Rome", "Cy", "Di"]
    assert golds_as_told(some, facts(some.evidence, together=9)) == ["Cy", "Di", "Rome"]


@pytest.mark.parametrize(
    ("answers", "kind", "expected"),
    [
        (["Di", "nobody", "Cy"], "told", ["Cy", "Di"]),
        (["nobody", "none"], "told", ["nobody", "none"]),
        (["Di", "nobody", "Cy"], "any", ["Di", "nobody", "Cy"]),
    ],
)
def test_targets_hold_what_is_told(answers, kind, expected):
    config = PromptConfig(max_prompt_tokens=200, max_answer_tokens=60, answers=kind)
    builder = PromptBuilder(tiny.tokenizer(), config, 0)
    some = example(answers)
    (words,) = builder.words([some])
    collate = Collator(builder, reads_graph=False, by_attention=False)
    prepared = [Prepared(some, words)]
    (plain,) = collate.targets(prepared)
    assert builder.tokenizer.decode(plain[:-1]).split("\n") == expected
    (shuffled,) = collate.targets(prepared, [random.Random(3)])
    assert sorted(shuffled) == sorted(plain)
    if kind == "told" and "Cy" in expected:
        assert shuffled == plain


def test_only_what_fits_is_told():
    """Bo stands first and fits; the line of Flo does not."""
    config = PromptConfig(max_prompt_tokens=20, max_answer_tokens=60, answers="told")
    builder = PromptBuilder(tiny.tokenizer(), config, 0)
    some = example(["Flo", "Bo"])
    (words,) = builder.words([some])
    collate = Collator(builder, reads_graph=False, by_attention=False)
    (target,) = collate.targets([Prepared(some, words)])
    assert builder.tokenizer.decode(target[:-1]) == "Bo"
