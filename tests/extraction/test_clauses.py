"""Events and entities of chunks: by rules and by a language model."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisrqa.config import ExtractionConfig
from bisrqa.data.records import Chunk, Event
from bisrqa.extraction import Reader
from bisrqa.extraction.base import Extraction
from bisrqa.extraction.clauses import MAX_EVENTS, Clauses, best, names_in
from bisrqa.extraction.events import EVENTS, messages, parse


def zh(text: str, written: str = "2023-08-03") -> Chunk:
    return Chunk("", text, 0, 0, 1, "a", written)


@pytest.fixture(scope="module")
def clauses() -> Clauses:
    return Clauses()


def test_a_chinese_sentence_is_an_event(clauses):
    text = "新华社北京8月1日电（记者张三）7月25日，国家电网公司在上海启用《智慧电网》平台。"
    (read,) = clauses([zh(text)])
    (event,) = read.events
    assert event.name.startswith("国家电网公司在上海启用")
    assert (event.time, event.interval) == ("7月25日", "2023-07-25")
    assert event.place == "上海"
    assert "智慧电网" in event.participants
    assert "新华社" not in read.entities  # who reports takes no part


def test_an_english_sentence_is_an_event(clauses):
    chunk = Chunk("Ada Blom", "She was born in Bergen on July 4, 1901.", 0, 0, 1)
    ((event,),) = (read.events for read in clauses([chunk]))
    assert event.name == "Ada Blom: She was born in Bergen on July 4, 1901"
    assert event.interval == "1901-07-04"
    assert event.place == "Bergen"
    assert event.participants == ("Ada Blom",)


@pytest.mark.parametrize("text", ["", "。", "图片", "12345", "“”", "🙂🙂", "责任编辑：", "！！！"])
def test_a_text_without_events_has_none(clauses, text):
    (read,) = clauses([zh(text)])
    assert read.events == ()


def test_contradictory_dates_are_both_read(clauses):
    text = "7月25日，青禾公司在泰州启用码头。另据消息，青禾公司7月26日在泰州启用码头。"
    (read,) = clauses([zh(text)])
    assert [e.interval for e in read.events] == ["2023-07-25", "2023-07-26"]


def test_without_the_date_of_a_text_the_year_is_not_guessed(clauses):
    (read,) = clauses([zh("7月25日，青禾公司在泰州启用码头。", "")])
    assert (read.events[0].time, read.events[0].interval) == ("7月25日", "")


def test_a_chunk_has_only_so_many_events():
    events = [Event(f"e{n}", "5日" if n % 2 else "", "", ("a",) * (n % 3)) for n in range(20)]
    kept = best(events)
    assert len(kept) == MAX_EVENTS
    assert list(kept) == sorted(kept, key=events.index)  # in the order of the text
    assert all(event.time for event in kept)


def test_names_in_mixed_scripts():
    names = names_in("OpenAI与北京大学合作研发《盘古》，张伟参加NP137项目")
    assert {"OpenAI", "盘古", "NP137", "北京大学"} <= set(names)


@settings(deadline=None, max_examples=60)
@given(st.text(st.sampled_from("上海公司7月25日，。启用《》“”AB 12"), max_size=40))
def test_no_text_breaks_the_rules(text):
    (read,) = Clauses()([zh(text)])
    for event in read.events:
        assert event.name.strip()
        assert all(name.strip() for name in event.participants)


# A language model's replies

CHUNK = zh("7月25日，青禾公司在泰州启用新码头，市长周远出席。")


def reply(**changes) -> str:
    event = {"name": "青禾公司启用新码头", "time": "7月25日", "place": "泰州",
             "participants": ["青禾公司", "周远"]} | changes  # fmt: skip
    return json.dumps({"events": [event], "entities": ["青禾公司", "泰州"]}, ensure_ascii=False)


def test_a_reply_is_read_and_its_time_understood():
    read = parse(reply(), CHUNK, 7, 3)
    assert read.events == (
        Event("青禾公司启用新码头", "7月25日", "泰州", ("青禾公司", "周远"), "2023-07-25"),
    )
    assert read.entities == ("青禾公司", "泰州")
    assert (read.prompt_tokens, read.reply_tokens) == (7, 3)


def test_what_is_made_up_is_left_out():
    read = parse(reply(time="8月1日", place="南京", participants=["周远", "李四"]), CHUNK, 0, 0)
    assert read.events == (Event("青禾公司启用新码头", "", "", ("周远",), ""),)
    assert parse(reply(name="飞船升空"), CHUNK, 0, 0).events == ()


@pytest.mark.parametrize(
    "bad",
    [
        "", "no", "[]", "null", "{}", '{"events": [{"name": "青', '{"events": 3, "entities": []}',
        '{"events": [{"name": "a"}], "entities": []}', '{"events": [], "entities": "x"}',
        '{"events": [{"name": 1, "time": "", "place": "", "participants": []}], "entities": []}',
    ],
)  # fmt: skip
def test_a_malformed_reply_is_kept_as_it_is(bad):
    read = parse(bad, CHUNK, 0, 0)
    assert read.bad_reply == bad
    assert read.events == ()


@given(st.text(max_size=60))
def test_no_reply_breaks_anything(text):
    assert isinstance(parse(text, CHUNK, 0, 0), Extraction)


def test_a_model_is_asked_in_the_language_of_the_text():
    assert "事件" in messages(CHUNK)[0]["content"]
    english = messages(Chunk("", "Ada Blom opened a factory.", 0, 0, 1))
    assert "event" in english[0]["content"]
    for chat in (messages(CHUNK), english):  # the example is as the schema says
        assert parse(chat[2]["content"], zh(chat[1]["content"]), 0, 0).events
    assert EVENTS.schema["required"] == ["events", "entities"]


def test_events_are_kept_and_found_again(tmp_path, monkeypatch):
    config = ExtractionConfig(method="syntax", what="events")
    first, report = Reader(config, tmp_path)([CHUNK])
    assert (report.extracted, report.cached) == (1, 0)
    monkeypatch.setattr(Clauses, "__call__", lambda *_: pytest.fail("read again"))
    again, report = Reader(config, tmp_path)([CHUNK])
    assert again == first
    assert first[0].events
    assert report.cached == 1
    with pytest.raises(pytest.fail.Exception):  # the same words on another day mean another time
        Reader(config, tmp_path)([CHUNK._replace(written="2021-08-03")])
