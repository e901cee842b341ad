"""Events of texts: one as each text tells it, and one as all that tell of it have it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from bisrqa.data.records import Chunk, Event
from bisrqa.text import name_key

Verdict = Literal["same", "different", "unsure"]


class Decision(NamedTuple):
    """What was said of two events, and why."""

    first: str
    """Name of the event that was found first, as :func:`key_of` has it."""
    second: str
    verdict: Verdict
    why: str
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Fused:
    """One event, as all that tell of it have it."""

    names: tuple[str, ...]
    """The first text's first."""
    text: str
    """The event in words, as the first text has it."""
    times: tuple[str, ...] = ()
    intervals: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    participants: tuple[str, ...] = ()
    members: tuple[int, ...]
    """Numbers of the events that were merged, rising."""


class Fusion(NamedTuple):
    """Events after fusion, and how they came about."""

    events: tuple[Fused, ...]
    """In the order of their first members."""
    decisions: tuple[Decision, ...]
    """In the order in which they were made."""


def in_words(event: Event) -> str:
    """Its name, and when and where unless the name says so."""
    told = [part for part in (event.time, event.place) if part and part not in event.name]
    return f"{event.name} ({', '.join(told)})" if told else event.name


def key_of(chunk: Chunk, event: Event) -> str:
    """By what an event is named in decisions: its text and where it was told."""
    where = chunk.source or chunk.title or str(chunk.paragraph)
    return f"{where}#{chunk.start}: {event.name}"


def alone(number: int, event: Event) -> Fused:
    """An event that nothing was merged into."""
    return Fused(
        names=(event.name,),
        text=in_words(event),
        times=(event.time,) if event.time else (),
        intervals=(event.interval,) if event.interval else (),
        places=(event.place,) if event.place else (),
        participants=event.participants,
        members=(number,),
    )


def merged(one: Fused, other: Fused) -> Fused:
    """Two events as one: attributes united, those of the first text first."""
    if other.members < one.members:
        one, other = other, one

    def union(part: str) -> tuple[str, ...]:
        known: dict[str, str] = {}
        for name in (*getattr(one, part), *getattr(other, part)):
            known.setdefault(name_key(name), name)
        return tuple(known.values())

    return Fused(
        names=union("names"), text=one.text, times=union("times"), intervals=union("intervals"),
        places=union("places"), participants=union("participants"),
        members=tuple(sorted((*one.members, *other.members))),
    )  # fmt: skip
