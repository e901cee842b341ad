"""Times in texts as intervals of days."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisrqa.times import Interval, find, first, written_on

WRITTEN = date(2023, 8, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023年7月25日，会见", "2023-07-25"),
        ("2023年8月4日至5日", "2023-08-04/2023-08-05"),
        ("8月4日至5日，山东", "2023-08-04/2023-08-05"),
        ("2023年7月30日至8月2日", "2023-07-30/2023-08-02"),
        ("8 月 1 日消息", "2023-08-01"),
        ("12月1日起施行", "2023-12-01"),
        ("25日，部长说", "2023-07-25"),  # of the month before: the day is not near
        ("5日", "2023-08-05"),
        ("去年营收", "2022-01-01/2022-12-31"),
        ("去年12月", "2022-12-01/2022-12-31"),
        ("今年上半年", "2023-01-01/2023-06-30"),
        ("1至6月", "2023-01-01/2023-06-30"),
        ("2022年1-3月", "2022-01-01/2022-03-31"),
        ("2023年第二季度", "2023-04-01/2023-06-30"),
        ("十一月份", "2023-11-01/2023-11-30"),
        ("昨日", "2023-08-02"),
        ("上周", "2023-07-24/2023-07-30"),
        ("2023-07-20", "2023-07-20"),
        ("on July 4, 1976", "1976-07-04"),
        ("4 July 1976", "1976-07-04"),
        ("in July 1976", "1976-07-01/1976-07-31"),
        ("since 1999", "1999-01-01/1999-12-31"),
        ("the 1990s", "1990-01-01/1999-12-31"),
        ("last year", "2022-01-01/2022-12-31"),
        ("yesterday", "2023-08-02"),
        ("December 24", "2023-12-24"),
    ],
)
def test_a_time_is_an_interval(text, expected):
    assert str(first(text, WRITTEN)) == expected


def test_a_month_without_a_year_is_the_nearest():
    assert str(first("12月24日", date(2023, 1, 5))) == "2022-12-24"
    assert str(first("1月5日", date(2023, 12, 24))) == "2024-01-05"


@pytest.mark.parametrize("text", ["3个月内", "日本", "12日元", "2月31日", "may be", "5 of 9", ""])
def test_what_is_no_time_has_no_meaning(text):
    assert first(text, WRITTEN) is None


@pytest.mark.parametrize("text", ["昨日", "去年", "7月25日", "25日", "last month", "July 4"])
def test_without_a_date_nothing_is_guessed(text):
    assert [m.interval for m in find(text)] == [None]


def test_times_come_in_order_and_none_twice():
    found = find("7月31日，记者从2023年上半年的数据看到", WRITTEN)
    assert [m.text for m in found] == ["7月31日", "2023年上半年"]


def test_the_head_of_an_article_tells_its_date():
    assert written_on(" [ 2023-07-20 06：00 ] ，正文：") == date(2023, 7, 20)
    assert written_on("2023年08月09日，正文：") == date(2023, 8, 9)
    assert written_on("08/16  09:24，正文：") is None  # the year is not said


@given(st.dates(), st.dates())
def test_an_interval_is_written_and_read(one, other):
    interval = Interval(min(one, other), max(one, other))
    assert Interval.of(str(interval)) == interval
    assert interval.meets(interval)
    assert interval.days >= 1


@given(st.text(max_size=30), st.dates(date(1900, 1, 1), date(2100, 1, 1)))
def test_no_text_breaks_anything(text, written):
    for mention in find(text, written):
        assert text[mention.place :].lstrip().startswith(mention.text)
    assert Interval.of("nonsense") is None
