"""Scores of generated text: BLEU, ROUGE-L, RAGQuestEval, UHGEval."""

import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bisrqa import chinese, questeval, uhgeval
from bisrqa.chat import Reply
from bisrqa.overlap_metrics import bleu, keyword_precision, rouge_l, word_f1
from bisrqa.questeval import Asked
from bisrqa.uhgeval import choice

WORDS = st.lists(st.sampled_from(["上海", "公司", "启用", "，", "7月"]), max_size=9).map("".join)


def test_bleu_by_hand():
    said, wanted = "上海公司启用码头", "上海公司启用新码头"
    assert chinese.cut(said) == ["上海", "公司", "启用", "码头"]
    found = bleu(said, wanted)
    assert found["bleu-1"] == 1.0
    assert found["bleu-2"] == pytest.approx(2 / 3)
    assert found["bleu-4"] == 0.0 == found["bleu-avg"] == found["bleu"]
    same = bleu(wanted, wanted)
    assert same["bleu-avg"] == same["bleu"] == pytest.approx(1.0)


def test_a_short_text_is_penalised_in_bleu_alone():
    found = bleu("上海公司启用码头", "上海公司启用码头，上海公司启用码头")
    assert found["bleu-avg"] == pytest.approx(1.0)
    assert found["bleu"] == pytest.approx(math.exp(1 - 9 / 4))


def plain_rouge(one: list[str], other: list[str]) -> int:
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + plain_rouge(one[1:], other[1:])
    return max(plain_rouge(one[1:], other), plain_rouge(one, other[1:]))


@given(WORDS, WORDS)
def test_scores_against_plain_versions(one, other):
    a, b = chinese.cut(one), chinese.cut(other)
    common = plain_rouge(a, b)
    assert rouge_l(one, other) == pytest.approx(2 * common / (len(a) + len(b)) if common else 0)
    shared = sum((Counter(a) & Counter(b)).values())
    assert word_f1(one, other) == pytest.approx(2 * shared / (len(a) + len(b)) if shared else 0)
    for score in (*bleu(one, other).values(), rouge_l(one, other), keyword_precision(one, other)):
        assert 0 <= score <= 1


def test_recall_and_f1_of_a_text():
    asked = Asked(("a", "b", "c", "d"), ("上海", "无法推断", "500份", "周远"))
    recall, f1 = questeval.score(asked, ("上海", "北京", "无法推断", "李四"))
    assert recall == pytest.approx(2 / 3)  # of the three that the gold answers
    assert f1 == pytest.approx(0.5)  # of the two that both answer
    assert questeval.score(Asked(("a",), ("无法推断",)), ("x",)) == (0.0, 0.0)
    assert questeval.score(Asked((), ()), ()) is None


class Chat:
    identity = "chat"

    def __init__(self, say):
        self.say, self.asked = say, []

    def __call__(self, conversations, schema=None):
        self.asked += conversations
        return [Reply(self.say(messages, schema)) for messages in conversations]


RECORDS = [
    {
        "id": "a",
        "task": "t",
        "prediction": "上海发放500份",
        "ground_truth": "上海市发放了500份",
    },
    {"id": "b", "task": "t", "prediction": ["不知道"], "ground_truth": ["南京"]},
]


def test_stored_questions_are_answered_from_the_text_alone():
    stored = {("t", "a"): Asked(("哪里？", "几份？"), ("上海", "500份"))}
    chat = Chat(lambda m, _: "上海" if "哪里" in m[1]["content"] else "无法推断")
    found = questeval.evaluate(RECORDS, stored, chat, lambda texts: torch.ones(len(texts), 1))
    assert found["QA_recall"] == 0.5
    assert found["QA_avg_F1"] == 1.0
    assert (found["n"], found["QA_n"]) == (2, 1)  # b has no questions
    assert found["sentence_similarity"] == 1.0
    assert all(m[1]["content"].startswith("上海发放500份") for m in chat.asked)
    assert not any("上海市" in m[1]["content"] for m in chat.asked)  # the gold is not shown


def test_without_stored_questions_the_model_makes_them():
    def say(messages, schema):
        if schema is None:
            return "上海"
        if "南京" in messages[1]["content"]:
            return "{broken"
        return json.dumps({"questions": [{"question": "哪里？", "answer": "上海"}]})

    found = questeval.evaluate(RECORDS, None, Chat(say))
    assert (found["QA_n"], found["QA_recall"], found["QA_avg_F1"]) == (1, 1.0, 1.0)
    assert "sentence_similarity" not in found


def test_mistakes_in_records_are_named():
    with pytest.raises(ValueError, match="record 0: field prediction"):
        questeval.evaluate([{"ground_truth": "x"}])
    with pytest.raises(ValueError, match="no record's task and id"):
        questeval.evaluate(RECORDS, {("t", "z"): Asked(("a",), ("b",))}, Chat(lambda *_: ""))
    assert questeval.evaluate([]) == {"n": 0}


def rows() -> list[uhgeval.Row]:
    keywords = (("假词", False), ("真词", True), ("二", True))
    return [
        uhgeval.Row(
            str(n), "标题", "头" + "。" * (n % 2 + 1), "编的续写", "真的续写", "其余", keywords
        )
        for n in range(4)
    ]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [("A", "A"), ("答案：B。", "B"), ("Ａ", "A"), ("A或B", None), ("", None), ("Apple", None),
     ("不知道", None)],
)  # fmt: skip
def test_a_choice_is_read_or_invalid(reply, expected):
    assert choice(reply) == expected


def test_the_real_one_stands_first_as_often_as_last():
    items = uhgeval.selective(rows())
    assert [item.right for item in items] == ["A", "B", "A", "B"]
    for item in items:
        first = item.messages[1]["content"].split("A：")[1].startswith("真的")
        assert first == (item.right == "A")


def test_as_many_made_up_as_real_are_asked_about():
    for items in (uhgeval.by_keyword(rows()), uhgeval.by_sentence(rows())):
        assert Counter(item.right for item in items) == {"A": 4, "B": 4}


def test_an_unreadable_reply_is_invalid_and_no_answer():
    found = uhgeval.evaluate(rows(), Chat(lambda *_: "我不知道"))
    for task in ("selective", "discriminative_keyword", "discriminative_sentence"):
        assert found[f"{task}.accuracy"] == 0.0
        assert found[f"{task}.invalid"] == found[f"{task}.n"]
    right = uhgeval.evaluate(rows(), Chat(lambda *_: "A"), ("discriminative_sentence",))
    assert right == {"discriminative_sentence.n": 8, "discriminative_sentence.accuracy": 0.5,
                     "discriminative_sentence.invalid": 0}  # fmt: skip


def test_a_continuation_is_held_against_the_real_text():
    found = uhgeval.evaluate(rows(), Chat(lambda *_: "真的续写其余。后面的话。"), ("generative",))
    assert found["generative.rouge-l"] > 0.8
    assert found["generative.invalid"] == 0
    none = uhgeval.evaluate(rows(), Chat(lambda *_: ""), ("generative",))
    assert none["generative.invalid"] == 4
    assert none["generative.bleu-4"] == 0.0


def test_the_sample_is_read(sample_data):
    found = uhgeval.read(sample_data / "uhgeval_mini" / "concise.jsonl.gz")
    assert len(found) == 350
    assert all(row.real and row.made_up for row in found)
    for kind in (True, False):
        assert any(good is kind for row in found for _, good in row.keywords)


def test_a_broken_row_is_named(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "1"}\n', "utf8")
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: field headLine"):
        uhgeval.read(file)
    file.write_text("{\n", "utf8")
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: broken JSON"):
        uhgeval.read(file)
