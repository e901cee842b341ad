"""What extraction takes and gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bisrqa.chat import Messages
from bisrqa.data.records import Chunk, Event, Triple

MAX_PART = 120
"""A head, relation or tail with more characters is no name, and its triple is left out."""


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What was read from one chunk."""

    triples: tuple[Triple, ...] = ()
    entities: tuple[str, ...] = ()
    """Names that were found, in triples or events or not."""
    events: tuple[Event, ...] = ()
    prompt_tokens: int = 0
    reply_tokens: int = 0
    bad_reply: str | None = None
    """A language model's reply that could not be understood; then there is nothing else."""


@runtime_checkable  # the type checks of the tests need it
class Extractor(Protocol):
    """Reads triples or events out of texts."""

    identity: str
    """All that its output depends on: method, model, prompt, version."""
    cached: bool
    """Whether it is worth keeping what it gives."""

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        """Read some chunks; one extraction each, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a language model is asked for."""

    name: str
    version: int
    """Changes with the instructions, the examples or the schema."""
    schema: Mapping[str, Any]
    """What it has to answer with."""
    messages: Callable[[Chunk], Messages]
    """A chat that asks for it."""
    parse: Callable[[str, Chunk, int, int], Extraction]
    """Of a reply, the chunk, and the tokens of prompt and reply."""


def sound(triples: Sequence[Triple]) -> tuple[Triple, ...]:
    """Triples in one line, each once, without empty or endless parts."""
    tidy = (Triple(*(" ".join(part.split()) for part in triple)) for triple in triples)
    return tuple(dict.fromkeys(t for t in tidy if all(0 < len(p) <= MAX_PART for p in t)))


def ends(triples: Sequence[Triple]) -> tuple[str, ...]:
    """Heads and tails, each once."""
    return tuple(dict.fromkeys(end for triple in triples for end in (triple.head, triple.tail)))
