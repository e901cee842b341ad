"""Retrieval scores over texts, by hand."""

import dataclasses

import pytest
import tiny

from bisrqa import text_recall
from bisrqa.data.records import Chunk

CHUNKS = tuple(
    Chunk(title, text, paragraph, sentence, sentence + 1)
    for title, text, paragraph, sentence in [
        ("A", "the answer is Paris", 0, 0), ("A", "else", 0, 1), ("B", "more", 1, 0),
        ("A", "another A", 2, 0),
    ]
)  # fmt: skip


def example(found, support=(("A", 0), ("B", 0)), unit="sentence", answers=("Paris",), aliases=()):
    made = tiny.example("who", triples=[("a", "r", "b")])
    question = dataclasses.replace(
        made.question, chunks=CHUNKS, support=support, support_unit=unit, answers=answers,
        aliases=aliases,
    )  # fmt: skip
    return dataclasses.replace(made, question=question, chunks_found=tuple(found))


def test_by_hand():
    scores = text_recall.scores([example([1, 0, 2]), example([2]), example([], support=())])
    assert (scores["n"], scores["questions"]) == (2, 3)
    # the best two of the first: (A, 1) and (A, 0), of which one supports; of the second: (B, 0)
    assert scores["support_precision@2"] == pytest.approx((1 / 2 + 1) / 2)
    assert scores["support_recall@2"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert scores["support_f1@2"] == pytest.approx((1 / 2 + 2 / 3) / 2, abs=1e-4)
    assert scores["passage_recall@2"] == 0.5
    assert scores["passage_recall@3"] == 0.75
    assert scores["support_f1@3"] == pytest.approx((0.8 + 2 / 3) / 2, abs=1e-4)
    assert scores["support_ceiling"] == 1
    assert scores["answer_in_passages@1"] == 0
    assert scores["answer_in_passages@4"] == pytest.approx(1 / 3, abs=1e-4)


def test_facts_in_no_text_are_missed():
    scores = text_recall.scores([example([0], support=(("A", 0), ("C", 4)))])
    assert scores["support_ceiling"] == 0.5
    assert scores["support_recall@5"] == 0.5
    assert scores["passage_recall@5"] == 0.5


def test_paragraphs_with_the_same_title_are_told_apart():
    of_first = example([3, 1], support=(("A", 0),), unit="paragraph")
    scores = text_recall.scores([of_first])
    assert scores["support_precision@2"] == 0.5
    assert scores["passage_recall@2"] == 1
    only_other = text_recall.scores([example([3], support=(("A", 0),), unit="paragraph")])
    assert only_other["passage_recall@2"] == 0


def test_aliases_count_and_verdicts_are_left_out():
    found = [example([0], answers=("Lutetia",), aliases=("paris",)), example([0], answers=("yes",))]
    scores = text_recall.scores(found)
    assert (scores["n_answers"], scores["answer_in_passages@1"]) == (1, 1)
    parts = text_recall.scores([example([0], answers=("Par",))])
    assert parts["answer_in_passages@1"] == 0  # whole words only


def test_nothing_known_is_no_error():
    found = text_recall.scores([example([0], support=())])
    assert (found["n"], found["questions"]) == (0, 1)
    assert not any(name.startswith(("support", "passage")) for name in found)
