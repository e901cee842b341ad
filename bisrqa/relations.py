"""Names of relations as they are read in the prompt."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_DOTTED = re.compile(r"(?:\w+ )*[a-z0-9]\w+(?:\.\w+(?: \w+)*)+")
"""``people.person.place_of_birth``; also in other words, where spaces stand for underscores. A full
stop of free text has white space or nothing behind it, or stands behind a single letter."""
_PLURAL = re.compile(r"(?<=\w) s$")
"""Of ``spouse_s``, which was ``spouse(s)``."""


def names(relations: Sequence[str], style: str, places: Iterable[tuple[int, object]]) -> list[str]:
    """What relations are called.

    Args:
        relations: As the data have them, without line breaks.
        style: ``full``, as they stand; ``short``, what follows the last dot; ``readable``, the same
            with as many of the parts before it as tell a relation from others in its places.
        places: Relations, by position, with a kind of place where each is used. Relations that
            never share a place cannot be taken for one another.
    """
    if style == "full":
        return list(relations)
    if style == "short":
        return [short(text) for text in relations]
    parts = [text.split(".") if _DOTTED.fullmatch(text) else [text] for text in relations]
    sharing: defaultdict[tuple[object, str], set[int]] = defaultdict(set)
    for relation, place in places:
        sharing[place, _joined(parts[relation][-1:])].add(relation)
    rivals: list[set[int]] = [set() for _ in relations]
    for together in sharing.values():
        for relation in together:
            rivals[relation] |= together - {relation}
    return [_distinct(own, [parts[r] for r in rivals[at]]) for at, own in enumerate(parts)]


def short(text: str) -> str:
    """``people.person.place_of_birth`` as ``place of birth``."""
    return " ".join(text.rsplit(".", 1)[-1].replace("_", " ").split()) or text


def _distinct(own: list[str], others: list[list[str]]) -> str:
    """The last parts of a name, as many as no other name ends in, or all of them."""
    for count in range(1, len(own)):
        name = _joined(own[-count:])
        if all(_joined(other[-count:]) != name for other in others):
            return name
    return _joined(own)


def _joined(parts: list[str]) -> str:
    return _PLURAL.sub("s", " ".join(" ".join(parts).replace("_", " ").split()))
