"""Times in texts as intervals of days: a date, a month, a year, ``last year``, ``上半年``.

What is said relative to now (``yesterday``, ``去年``, ``25日``) needs the date of the text. English
and Chinese.
"""

import calendar
import re
import unicodedata
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import NamedTuple


class Interval(NamedTuple):
    """Days from ``start`` to ``stop``, both among them."""

    start: date
    stop: date

    def __str__(self) -> str:
        """ISO 8601: ``2023-07-01/2023-07-31``, or one date."""
        if self.start == self.stop:
            return self.start.isoformat()
        return f"{self.start.isoformat()}/{self.stop.isoformat()}"

    @classmethod
    def of(cls, text: str) -> "Interval | None":
        """Read what :meth:`__str__` writes; None for anything else."""
        try:
            first, slash, last = text.partition("/")
            start = date.fromisoformat(first)
            return cls(start, date.fromisoformat(last) if slash else start)
        except ValueError:
            return None

    @property
    def days(self) -> int:
        return (self.stop - self.start).days + 1

    def meets(self, other: "Interval") -> bool:
        """Whether they have a day in common."""
        return self.start <= other.stop and other.start <= self.stop


class Mention(NamedTuple):
    """A time as a text says it."""

    text: str
    place: int
    """Of its first character."""
    interval: Interval | None
    """None where the text's own date would be needed and is not known, or there is no such day."""


def find(text: str, written: date | None = None) -> list[Mention]:
    """Times in the order in which they stand; one inside another is not counted.

    Args:
        text: In English or Chinese.
        written: Date of the text, from which ``yesterday`` is understood.
    """
    found: list[Mention] = []
    taken = [False] * len(text)
    for pattern, meaning in _PATTERNS:
        for match in pattern.finditer(text):
            if any(taken[match.start() : match.end()]):
                continue
            taken[match.start() : match.end()] = [True] * (match.end() - match.start())
            try:
                interval = meaning(match, written)
            except (ValueError, OverflowError):  # 31 February
                interval = None
            found.append(Mention(match.group().strip(), match.start(), interval))
    return sorted(found, key=lambda mention: mention.place)


def first(text: str, written: date | None = None) -> Interval | None:
    """The first time in a text that has a meaning."""
    return next((m.interval for m in find(text, written) if m.interval is not None), None)


def written_on(text: str) -> date | None:
    """A whole date, such as stands at the head of an article; the first in the text."""
    text = unicodedata.normalize("NFKC", text)
    for mention in find(text):
        if mention.interval is not None and mention.interval.days == 1:
            return mention.interval.start
    return None


def _year(year: int) -> Interval:
    return Interval(date(year, 1, 1), date(year, 12, 31))


def _month(year: int, month: int) -> Interval:
    return Interval(date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1]))


def _decade(year: int) -> Interval:
    return Interval(date(year, 1, 1), date(year + 9, 12, 31))


def _months(year: int, start: int, stop: int) -> Interval:
    return Interval(_month(year, start).start, _month(year, stop).stop)


def _day(day: date) -> Interval:
    return Interval(day, day)


def _near_year(month: int, written: date) -> int:
    """Of a month without a year: in January an article's ``December`` is of last year."""
    return written.year - (month - written.month > 6) + (written.month - month > 6)


def _month_before(written: date, back: int) -> Interval:
    month = written.year * 12 + written.month - 1 - back
    return _month(month // 12, month % 12 + 1)


_CHINESE_DIGITS = {c: n for n, c in enumerate("零一二三四五六七八九十")} | {"十一": 11, "十二": 12}
_ENGLISH_MONTHS = {
    name.lower(): number
    for names in (calendar.month_name, calendar.month_abbr)
    for number, name in enumerate(names)
    if name
} | {"sept": 9}
_PARTS = {
    "上半年": (1, 6), "下半年": (7, 12), "年初": (1, 3), "年底": (10, 12), "年末": (10, 12),
    "一季度": (1, 3), "二季度": (4, 6), "三季度": (7, 9), "四季度": (10, 12),
    "1季度": (1, 3), "2季度": (4, 6), "3季度": (7, 9), "4季度": (10, 12),
    "前三季度": (1, 9),
}  # fmt: skip
_YEARS_AGO = {
    "今年": 0, "本年": 0, "本年度": 0, "去年": 1, "上年": 1, "前年": 2, "明年": -1, "后年": -2,
    "this year": 0, "last year": 1, "next year": -1,
}  # fmt: skip
_MONTHS_AGO = {
    "本月": 0, "这个月": 0, "上月": 1, "上个月": 1, "下月": -1, "下个月": -1,
    "this month": 0, "last month": 1, "next month": -1,
}  # fmt: skip
_DAYS_AGO = {
    "今天": 0, "今日": 0, "今晨": 0, "今早": 0, "今晚": 0, "昨天": 1, "昨日": 1, "昨晚": 1,
    "昨夜": 1, "前天": 2, "前日": 2, "明天": -1, "明日": -1,
    "today": 0, "yesterday": 1, "tomorrow": -1,
}  # fmt: skip
_WEEKS_AGO = {
    "本周": 0, "这周": 0, "上周": 1, "上个星期": 1, "下周": -1, "this week": 0, "last week": 1,
    "next week": -1,
}  # fmt: skip

_Y, _M, _D = r"((?:1[0-9]|20)\d\d)", r"(1[0-2]|0?[1-9])", r"(3[01]|[12]\d|0?[1-9])"
_S = r"\s?"
_NAME = r"(january|february|march|april|may|june|july|august|september|october|november|december"
_NAME += r"|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec)\.?"
_PART = "|".join(sorted(_PARTS, key=len, reverse=True))

Meaning = Callable[[re.Match[str], date | None], Interval | None]


def _ymd(m: re.Match[str], written: date | None) -> Interval | None:
    return _day(date(int(m[1]), int(m[2]), int(m[3])))


def _ymd_to_day(m: re.Match[str], written: date | None) -> Interval | None:
    start = date(int(m[1]), int(m[2]), int(m[3]))
    return _ordered(start, date(start.year, int(m[4] or m[2]), int(m[5])))


def _md_to_day(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    start = date(_near_year(int(m[1]), written), int(m[1]), int(m[2]))
    return _ordered(start, date(start.year, int(m[3] or m[1]), int(m[4])))


def _ordered(start: date, stop: date) -> Interval:
    if stop < start:
        raise ValueError
    return Interval(start, stop)


def _md(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    return _day(date(_near_year(int(m[1]), written), int(m[1]), int(m[2])))


def _d(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    day = int(m[1])
    # The day before the article more likely than that of the month to come.
    month = written if day <= written.day + 7 else _month_before(written, 1).start
    return _day(month.replace(day=day))


def _year_part(m: re.Match[str], written: date | None) -> Interval | None:
    return _months(int(m[1]), *_PARTS[m[2]])


def _ago_part(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    ago = _YEARS_AGO[m[1]] if m[1] else 0
    return _months(written.year - ago, *_PARTS[m[2]])


def _ago_month(m: re.Match[str], written: date | None) -> Interval | None:
    return None if written is None else _month(written.year - _YEARS_AGO[m[1]], int(m[2]))


def _ago_md(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    return _day(date(written.year - _YEARS_AGO[m[1]], int(m[2]), int(m[3])))


def _only_month(m: re.Match[str], written: date | None) -> Interval | None:
    month = int(m[1]) if m[1].isdigit() else _CHINESE_DIGITS[m[1]]
    return None if written is None else _month(_near_year(month, written), month)


def _relative(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    said = " ".join(m.group().lower().split())
    if said in _YEARS_AGO:
        return _year(written.year - _YEARS_AGO[said])
    if said in _MONTHS_AGO:
        return _month_before(written, _MONTHS_AGO[said])
    if said in _WEEKS_AGO:
        monday = written - timedelta(days=written.weekday() + 7 * _WEEKS_AGO[said])
        return Interval(monday, monday + timedelta(days=6))
    return _day(written - timedelta(days=_DAYS_AGO[said]))


def _en_mdy(m: re.Match[str], written: date | None) -> Interval | None:
    return _day(date(int(m[3]), _ENGLISH_MONTHS[m[1].lower()], int(m[2])))


def _en_dmy(m: re.Match[str], written: date | None) -> Interval | None:
    return _day(date(int(m[3]), _ENGLISH_MONTHS[m[2].lower()], int(m[1])))


def _en_my(m: re.Match[str], written: date | None) -> Interval | None:
    return _month(int(m[2]), _ENGLISH_MONTHS[m[1].lower()])


def _en_md(m: re.Match[str], written: date | None) -> Interval | None:
    if written is None:
        return None
    month = _ENGLISH_MONTHS[m[1].lower()]
    return _day(date(_near_year(month, written), month, int(m[2])))


def _patterns() -> Iterator[tuple[re.Pattern[str], Meaning]]:
    """What is more exact stands before what it contains."""
    to = r"\s?(?:日|号)?\s?(?:至|到|-|—|–|~|－|——)\s?"
    day = r"\s?[日号](?!内)"
    rows: list[tuple[str, Meaning]] = [
        (rf"{_Y}{_S}年{_S}{_M}{_S}月{_S}{_D}{to}(?:{_M}{_S}月{_S})?{_D}{day}", _ymd_to_day),
        (rf"{_Y}{_S}年{_S}{_M}{_S}月{_S}{_D}{day}", _ymd),
        (rf"(?<!\d){_Y}[-/.]{_M}[-/.]{_D}(?!\d)", _ymd),
        (rf"\b{_NAME} {_D}(?:st|nd|rd|th)?,? {_Y}\b", _en_mdy),
        (rf"\b{_D}(?:st|nd|rd|th)? {_NAME},? {_Y}\b", _en_dmy),
        (rf"({'|'.join(k for k in _YEARS_AGO if '年' in k)}){_M}{_S}月{_S}{_D}{day}", _ago_md),
        (rf"(?<!\d){_M}{_S}月{_S}{_D}{to}(?:{_M}{_S}月{_S})?{_D}{day}", _md_to_day),
        (rf"(?<!\d){_M}{_S}月{_S}{_D}{day}", _md),
        (rf"{_Y}{_S}年(?:第)?({_PART})", _year_part),
        (
            rf"{_Y}{_S}年{_S}{_M}{_S}(?:至|到|-|—){_S}{_M}{_S}月",
            lambda m, _: _months(int(m[1]), int(m[2]), int(m[3])),
        ),
        (rf"{_Y}{_S}年{_S}{_M}{_S}月", lambda m, _: _month(int(m[1]), int(m[2]))),
        (rf"\b{_NAME},? (?:of )?{_Y}\b", _en_my),
        (rf"(?<!\d){_Y}{_S}(?:年|年度)(?!代)", lambda m, _: _year(int(m[1]))),
        (rf"({'|'.join(k for k in _YEARS_AGO if '年' in k)})?(?:第)?({_PART})", _ago_part),
        (rf"({'|'.join(k for k in _YEARS_AGO if '年' in k)}){_M}{_S}月", _ago_month),
        (
            rf"(?<!\d){_M}{_S}(?:至|到|-|—){_S}{_M}{_S}月(?:份)?(?!\d)",
            lambda m, now: None if now is None else _months(now.year, int(m[1]), int(m[2])),
        ),
        (rf"(?<![\d个]){_M}{_S}月(?:份|底|初|末|中旬|上旬|下旬)?(?!\d)", _only_month),
        (r"(十一|十二|[一二三四五六七八九十])月份", _only_month),
        (rf"(?<![\d月.]){_D}{_S}日(?!元|本)", _d),
        (
            "|".join(
                sorted((*_YEARS_AGO, *_MONTHS_AGO, *_WEEKS_AGO, *_DAYS_AGO), key=len, reverse=True)
            ),
            _relative,
        ),
        (rf"\b{_NAME} {_D}(?:st|nd|rd|th)?\b(?! ?,? ?\d)", _en_md),
        (rf"\b(?:the )?{_Y[:-1]})s\b", lambda m, _: _decade(int(m[1]))),
        (
            rf"\b(?:in|since|of|from|until|by|during|between|and|to) {_Y}\b",
            lambda m, _: _year(int(m[1])),
        ),
        (rf"(?:\(|^){_Y}(?:\)|$)", lambda m, _: _year(int(m[1]))),
    ]  # fmt: skip
    for pattern, meaning in rows:
        yield re.compile(pattern, re.IGNORECASE), meaning


_PATTERNS = tuple(_patterns())
