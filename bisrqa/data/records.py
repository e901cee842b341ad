"""What every data set is turned into: plain records, no tensors."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

_BARE_ID = re.compile(r"[mg]\.[0-9a-z_]+")


def is_bare_id(name: str) -> bool:
    """Whether a node is a Freebase id such as ``m.0x1y``: it has no name, or is a mediator."""
    return _BARE_ID.fullmatch(name) is not None


class Triple(NamedTuple):
    """One directed fact, by name."""

    head: str
    relation: str
    tail: str


class Event(NamedTuple):
    """Something that happened, as one text tells it."""

    name: str
    """In few words."""
    time: str = ""
    """As the text says it; empty where it does not."""
    place: str = ""
    participants: tuple[str, ...] = ()
    """Who and what took part, by name."""
    interval: str = ""
    """The time as days (ISO 8601), where it can be told."""


class Chunk(NamedTuple):
    """A piece of a text: one sentence, or a window of several."""

    title: str
    """What the text stands under; may be empty."""
    text: str
    paragraph: int
    """Which paragraph of its collection it was cut from: titles may repeat."""
    start: int
    """Number of its first sentence within the paragraph."""
    stop: int
    """One more than that of its last."""
    source: str = ""
    """Id of the passage in its collection, where that has ids."""
    written: str = ""
    """Date of the text (ISO 8601), where it is known."""

    @property
    def words(self) -> str:
        """The text with its title in front: what is embedded, ranked and read."""
        return f"{self.title}: {self.text}" if self.title else self.text


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, its gold answers and the graph it is asked over."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Gold answers by name, in the order of the source; may be empty only where none are known."""
    topics: tuple[str, ...]
    """Topic entities by name; empty where the data set has none."""
    graph: tuple[Triple, ...]
    """Directed triples, each once."""
    chunks: tuple[Chunk, ...] = ()
    """The texts that it is asked over, by paragraph and sentence; empty for a knowledge graph."""
    sources: tuple[int, ...] = ()
    """For each triple of ``graph`` the chunk that it was read from; empty without chunks."""
    named: tuple[tuple[int, str], ...] = ()
    """Names that were found in chunks, by the chunk's number, besides those in triples."""
    events: tuple[tuple[int, Event], ...] = ()
    """Events that were found in chunks, by the chunk's number."""
    lexical: tuple[tuple[float, ...], ...] | None = None
    """Of each chunk its BM25 for every word of the question, over the collection that the chunks
    were taken from; None where they are the collection."""
    support: tuple[tuple[str, int], ...] = ()
    """Gold supporting facts: title and sentence, title and paragraph, or id of a passage and 0, as
    ``support_unit`` says."""
    support_unit: Literal["sentence", "paragraph", "passage"] = "sentence"
    """What ``support`` names."""
    evidences: tuple[Triple, ...] | None = None
    """Gold triples on the way to the answer (2WikiMultihopQA); None where the set has none."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the answer, as good as it."""
    group: str = ""
    """Reported apart in the scores (for example ``unseen_path``); empty for no group."""
