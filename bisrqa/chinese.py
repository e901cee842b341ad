"""Chinese text: what is Chinese, its words, its variants. Extra ``zh`` (``jieba``, ``opencc``)."""

import logging
import re
import unicodedata
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_HAN = re.compile(f"[{HAN}]")
_HAN_RUN = re.compile(f"[{HAN}]+")
_BLANKS = re.compile(f"(?<=[{HAN}]) | (?=[{HAN}])")
_LETTER = re.compile(r"[^\W\d_]")
_MARK = (
    "\u3000-\u303f\u2010-\u2027\u2030-\u205e\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65·"
)
_MARKS = re.compile(f"[{_MARK}]+")
_ALONE = re.compile(f"[{HAN}{_MARK}]")
MIXED = 0.2
"""A text is Chinese if so much of its letters is."""


def is_chinese(text: str) -> bool:
    """Whether enough of a text's letters are Han characters."""
    letters = len(_LETTER.findall(text))
    return letters > 0 and len(_HAN.findall(text)) >= MIXED * letters


def spaced(text: str) -> str:
    """Every Han character and Chinese mark a word of its own: no blanks say where words end."""
    return " ".join(_ALONE.sub(r" \g<0> ", text).split()) if _HAN.search(text) else text


def joined(words: Sequence[str]) -> str:
    """Words of :func:`spaced` as they were: no blank beside a Han character."""
    return _BLANKS.sub("", " ".join(words))


def words(text: str) -> list[str]:
    """Runs of Han characters cut into words.

    Raises:
        ValueError: ``jieba`` is not installed.
    """
    return [word for run in _HAN_RUN.findall(text) for word in _jieba().lcut(run)]


def cut(text: str) -> list[str]:
    """Everything in a text, marks and blanks too, as jieba cuts it; joined it is the text.

    Raises:
        ValueError: ``jieba`` is not installed.
    """
    return _jieba().lcut(text)


def tagged(text: str) -> list[tuple[str, str]]:
    """Words and their parts of speech, as jieba names them; joined they are the text.

    Raises:
        ValueError: ``jieba`` is not installed.
    """
    _jieba()
    import jieba.posseg

    return [(pair.word, pair.flag) for pair in jieba.posseg.lcut(text)]


def plain(text: str) -> str:
    """One form for the variants of a name: half width, simplified characters, no Chinese marks.

    Raises:
        ValueError: There are Han characters and ``opencc`` is not installed.
    """
    text = unicodedata.normalize("NFKC", text)
    if not _HAN.search(text):
        return text
    return _MARKS.sub("", _simplifier().convert(text))


@cache
def _jieba() -> Any:
    try:
        with warnings.catch_warnings():  # it asks setuptools for something deprecated
            warnings.simplefilter("ignore")
            import jieba
            import jieba.posseg
    except ImportError as error:
        raise ValueError("Chinese texts need jieba: pip install 'bisrqa[zh]'") from error
    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()
    return jieba


@cache
def _simplifier() -> Any:
    try:
        import opencc
    except ImportError as error:
        raise ValueError("Chinese names need opencc: pip install 'bisrqa[zh]'") from error
    return opencc.OpenCC("t2s")


__all__ = ["HAN", "cut", "is_chinese", "joined", "plain", "spaced", "tagged", "words"]
