"""Events without a language model: clauses with a verb, and who, when and where.

English by spaCy's parse (extra ``spacy``), Chinese by jieba's parts of speech (extra ``zh``); the
language is told by the script of each chunk.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any

from bisrqa import chinese, times
from bisrqa.data.passages import sentences
from bisrqa.data.records import Chunk, Event
from bisrqa.extraction.base import Extraction
from bisrqa.extraction.syntax import load_english

VERSION = 2
MAX_EVENTS = 4
"""Of one chunk; those with most known of them."""
MAX_CHARACTERS, MAX_WORDS = 60, 25
"""Of an event's name."""
MAX_PARTICIPANTS = 8
# Verbs that say no more than that something is, or is said.
_EMPTY = frozenset(
    "是 有 为 在 说 称 表示 认为 指出 介绍 强调 报道 据悉 据 显示 可以 能够 应该 需要 成为 "
    "作为 包括 属于 位于 没有 进行 通过 来自 相关 记者 获悉 目前 看到 觉得 希望 可能 会 要 想 "
    "让 使 令 对 请".split()
)
# What stands before the news itself: agency, place, date, reporters.
_SOURCE = re.compile(
    r"^(?:[（(【][^）)】]{0,40}[）)】]|原标题[:：]|[^，。]{0,30}?(?:讯|日电|消息|报道)(?:称|说|显示|指出)?"
    r"(?=[，,:：（(\s])|据[^，]{2,25}(?=，)|[^，。]{0,12}记者[^，。]{0,20}(?:获悉|了解到)(?=，)"
    r")[，,:：\s]*"
)
_CLAUSE = re.compile(r"[，,；;：:。！？!?]+")
_AROUND = " “”\"'。！？!?…()（）、"
_TITLE = re.compile(r"《([^《》]{2,40})》")
_QUOTED = re.compile(r"[“\"‘']([^“”\"‘’']{2,16})[”\"’']")
_LATIN = re.compile(r"[A-Za-z][A-Za-z0-9.+\-]{1,}(?: [A-Z][A-Za-z0-9.+\-]+){0,3}")
_INNER_NAME = frozenset("n ns nr nz nt nrt nrfg vn j b s f eng a".split())
_HEADS = (
    "公司 集团 银行 大学 学院 医院 法院 检察院 委员会 管理局 总局 公安局 局 部 厅 委 省 市 县 "
    "区 镇 村 协会 学会 研究院 研究所 中心 组织 联盟 政府 议会 国会 法庭 机构 基金 基金会 "
    "交易所 俱乐部 球队 队 杂志 社 台 报 论坛 大会 会议 峰会 博览会 运动会 世界杯 锦标赛 联赛 "
    "条例 办法 规划 计划 工程 项目 机场 港 站 铁路 高铁 高速公路 公园 景区 博物馆 剧院 卫星 "
    "火箭 飞船 号 奖 节 条约 协议 协定".split()
)
_FAMILY = frozenset("nr nrt nrfg".split())
_MAX_NAME = 20


class Clauses:
    """Events and entities by rules."""

    cached = True
    identity = f"clauses/{VERSION}"

    def __init__(self) -> None:
        self._english: Any = None

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        return [
            self._chinese(chunk) if chinese.is_chinese(chunk.text) else self._in_english(chunk)
            for chunk in chunks
        ]

    def _chinese(self, chunk: Chunk) -> Extraction:
        written = _date(chunk.written)
        found, names = [], dict[str, None]()
        for sentence in sentences(chunk.text):
            told = _SOURCE.sub("", _SOURCE.sub("", sentence))
            tags = chinese.tagged(told)
            here = dict.fromkeys(_names(told, tags))
            names |= here
            event = _chinese_event(told, tags, list(here), written)
            if event is not None:
                found.append(event)
        return Extraction(events=best(found), entities=tuple(names))

    def _in_english(self, chunk: Chunk) -> Extraction:
        if self._english is None:
            self._english = load_english("extraction.method syntax")
        written, found = _date(chunk.written), []
        document = self._english(chunk.text)
        for sentence in document.sents:
            found += _english_events(sentence, chunk.title, written)
        names = dict.fromkeys(e.text for e in document.ents if e.label_ in _NAMED)
        return Extraction(events=best(found), entities=tuple(names))


def best(events: Iterable[Event], limit: int = MAX_EVENTS) -> tuple[Event, ...]:
    """Each once, at most so many: those of which most is known, in the order of the text."""
    each = list(dict.fromkeys(events))
    known = [
        (bool(e.time) + bool(e.place) + len(e.participants[:3]), -n) for n, e in enumerate(each)
    ]
    kept = sorted(range(len(each)), key=lambda n: known[n], reverse=True)[:limit]
    return tuple(each[n] for n in sorted(kept))


def _date(written: str) -> date | None:
    return date.fromisoformat(written) if written else None


def _chinese_event(
    sentence: str, tags: list[tuple[str, str]], names: list[str], written: date | None
) -> Event | None:
    """The clauses of a sentence from the first that says what happened, and what stands in it."""
    said = times.find(sentence, written)
    name, verbs, clause, has_verb = "", 0, "", False
    for word, flag in [*tags, ("。", "x")]:
        if not _CLAUSE.fullmatch(word):
            clause += word
            has_verb |= flag in ("v", "vn") and len(word) > 1 and word not in _EMPTY
            continue
        clause, verb, has_verb = clause.strip(_AROUND), has_verb, False
        left = clause
        for mention in said:
            left = left.replace(mention.text, "")
        only_when = len(left) < 4 and not verb  # "7月25日，"
        tail, clause = clause, ""
        if not tail or only_when:
            continue
        if name and len(name) + len(tail) > MAX_CHARACTERS:
            break
        name = f"{name}，{tail}" if name else tail
        verbs += verb
        if verbs and len(name) >= 12:
            break
    if not verbs or len(name) > 2 * MAX_CHARACTERS:
        return None
    where = next((word for word, flag in tags if flag == "ns" and len(word) > 1), "")
    return _event(name, said, where, names)


def _event(name: str, said: Sequence[times.Mention], place: str, names: Iterable[str]) -> Event:
    """The first time counts, one with a meaning before others."""
    known = [mention for mention in said if mention.interval is not None]
    time = (known or said or [None])[0]
    return Event(
        name=name,
        time=time.text if time else "",
        place=place,
        participants=tuple(n for n in names if n != place)[:MAX_PARTICIPANTS],
        interval=str(time.interval) if time and time.interval else "",
    )


def names_in(text: str) -> list[str]:
    """Names in a Chinese text, each once."""
    return list(dict.fromkeys(_names(text, chinese.tagged(text))))


def _names(text: str, tags: list[tuple[str, str]]) -> Iterator[str]:
    """Names in a Chinese text: titles, quotations, Latin names, people, places, organisations."""
    for pattern in (_TITLE, _QUOTED):
        yield from (match[1].strip() for match in pattern.finditer(text))
    yield from (match.group() for match in _LATIN.finditer(text))
    run: list[str] = []
    for word, flag in [*tags, ("", "x")]:
        if flag in _FAMILY and 1 < len(word) <= 4:
            yield word
        if (flag in ("ns", "nt") and len(word) > 1) or (flag == "nz" and len(word) > 2):
            yield word
        if flag in _INNER_NAME and len("".join(run)) + len(word) <= _MAX_NAME:
            run.append(word)
            joined = "".join(run)
            named = len(run) > 1 and (word in _HEADS or word.endswith(_ENDS))
            if named and len(joined) > 3:
                yield joined
                run = []
        else:
            run = []


_ENDS = tuple(head for head in _HEADS if len(head) > 1)

_NAMED = frozenset("PERSON NORP FAC ORG GPE LOC PRODUCT EVENT WORK_OF_ART LAW LANGUAGE".split())
_PLACES = frozenset("GPE LOC FAC".split())


def _english_events(sentence: Any, title: str, written: date | None) -> Iterator[Event]:
    """The main clause of a sentence, and what takes part in it."""
    root = sentence.root
    if root.pos_ not in ("VERB", "AUX") or not any(
        c.dep_.startswith("nsubj") for c in root.children
    ):
        return
    words = [t for t in sentence if t.i < sentence.start + MAX_WORDS]
    name = "".join(t.text_with_ws for t in words).strip(" .,;:\n")
    subject = next(c for c in root.children if c.dep_.startswith("nsubj"))
    names = dict.fromkeys(e.text for e in sentence.ents if e.label_ in _NAMED)
    if title and subject.lower_ in ("he", "she", "it", "they"):
        names = {title: None, **names}
        name = f"{title}: {name}"
    place = next((e.text for e in sentence.ents if e.label_ in _PLACES), "")
    yield _event(name, times.find(sentence.text, written), place, names)
