"""The one normaliser for answers and entity names, and the containment test built on it."""

import re
import string
import unicodedata

from bisrqa import chinese

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
VERDICTS = ("yes", "no")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str) -> str:
    """Reduce a string to the form in which answers are compared.

    Lower case; ASCII punctuation deleted (not replaced, so ``u.s.`` becomes ``us``); the words a,
    an and the replaced by a space; runs of white space collapsed, ends stripped. Applying it twice
    changes nothing. Text in other scripts keeps its letters and its own punctuation.

    The composed Unicode form (NFC) is ours, the published normaliser lacks it: without it the two
    spellings of an accented letter differ, and a lone ``a`` plus accent would count as the article.
    """
    composed = unicodedata.normalize("NFC", text.lower())
    return " ".join(_ARTICLE.sub(" ", composed.translate(_DELETE_PUNCTUATION)).split())


def contains(prediction: str, gold: str) -> bool:
    """Whether the normalised gold is a substring of the normalised prediction.

    No word boundaries, as published: "iran" is found in "Tirana". A gold that normalises to the
    empty string matches nothing.
    """
    return contains_normalised(normalise(prediction), normalise(gold))


def stated(gold: str, text: str) -> bool:
    """Whether a text holds the words of a gold answer, one after another; both normalised.

    Unlike :func:`contains` by whole words, since texts are long; in Chinese, which does not say
    where words end, by characters. A verdict (yes or no) is nothing that a text would hold, and
    counts as stated.
    """
    if gold in VERDICTS:
        return True
    return bool(gold) and f" {chinese.spaced(gold)} " in f" {chinese.spaced(text)} "


def name_key(name: str) -> str:
    """What two names of one entity have in common, or the name itself where nothing is left.

    Normalised; full and half width, traditional and simplified characters are the same.
    """
    return normalise(chinese.plain(name)) or name


def contains_normalised(prediction: str, gold: str) -> bool:
    """``contains`` for strings that are normalised already."""
    return bool(gold) and gold in prediction
