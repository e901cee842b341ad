"""What every data set is turned into: plain records, no tensors."""

import re
from dataclasses import dataclass
from typing import NamedTuple

_BARE_ID = re.compile(r"[mg]\.[0-9a-z_]+")


def is_bare_id(name: str) -> bool:
    """Whether a node is a Freebase id such as ``m.0x1y``: it has no name, or is a mediator."""
    return _BARE_ID.fullmatch(name) is not None


class Triple(NamedTuple):
    """One directed fact, by name."""

    head: str
    relation: str
    tail: str


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
    group: str = ""
    """Reported apart in the scores (for example ``unseen_path``); empty for no group."""
