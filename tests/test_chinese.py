"""Chinese text: what is Chinese, its words and variants; answers in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisrqa import chinese
from bisrqa.retrieval.lexical import words
from bisrqa.text import name_key, normalise, stated


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("上海市", True),
        ("Apple 发布 iPhone 15", False),
        ("苹果发布 iPhone", True),
        ("Paris", False),
        ("", False),
        ("2023", False),
    ],
)
def test_a_text_is_chinese_by_its_letters(text, expected):
    assert chinese.is_chinese(text) == expected


def test_words_are_cut_and_other_scripts_kept():
    assert words("NP137用于上海") == ["np137", "用于", "上海"]
    assert words("The U.S. economy") == ["the", "u", "s", "economy"]
    assert words("") == words("！？") == []


@given(st.text(max_size=40))
def test_cutting_loses_nothing(text):
    assert "".join(chinese.cut(text)) == text
    assert "".join(word for word, _ in chinese.tagged(text)) == text


@given(st.lists(st.sampled_from(["新", "年", "abc", "12", "，"]), max_size=8))
def test_words_apart_and_together_again(parts):
    once = chinese.spaced("".join(parts))
    assert chinese.spaced(once) == once
    assert chinese.spaced(chinese.joined(once.split())) == once


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("臺灣", "台湾"),  # traditional and simplified
        ("ＩＴ之家", "IT之家"),  # full and half width
        ("《食用农产品管理办法》", "食用农产品管理办法"),
        ("The Lamp", "lamp"),
        ("王·五", "王五"),
    ],
)
def test_variants_of_a_name_are_one(one, other):
    assert name_key(one) == name_key(other)


@pytest.mark.parametrize("name", ["！", "“”", "", "京", "あ", "🙂"])
def test_no_name_loses_its_key(name):
    assert name_key(name) == name_key(name_key(name))
    assert bool(name_key(name)) == bool(name)


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        ("500万元", "共发放500万元消费券", True),
        ("49.3%", "指数（PMI）为49.3%，比上月高", True),
        ("12", "2012年", False),
        ("3家", "173家", False),
        ("中国", "中国人民银行", True),  # where words end is not said
        ("lamp", "lamps", False),
    ],
)
def test_an_answer_stands_in_a_text(gold, text, expected):
    assert stated(normalise(gold), normalise(text)) == expected
