"""What extraction takes and gives."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bisrqa.data.records import Chunk, Triple
from bisrqa.text import normalise

MAX_PART = 120
"""A head, relation or tail with more characters is no name, and its triple is left out."""


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What was read from one chunk."""

    triples: tuple[Triple, ...] = ()
    entities: tuple[str, ...] = ()
    """Names that were found, in triples or not."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    bad_reply: str | None = None
    """A language model's reply that could not be understood; then there are no triples."""


@runtime_checkable  # the type checks of the tests need it
class Extractor(Protocol):
    """Reads triples out of texts."""

    identity: str
    """All that its output depends on: method, model, prompt, version."""
    cached: bool
    """Whether it is worth keeping what it gives."""

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        """Read some chunks; one extraction each, in order."""
        ...


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "triples": {
            "type": "array",
            "maxItems": 8,
            "items": {
                "type": "object",
                "properties": {
                    part: {"type": "string", "minLength": 1, "maxLength": MAX_PART}
                    for part in ("head", "relation", "tail")
                },
                "required": ["head", "relation", "tail"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["triples"],
    "additionalProperties": False,
}
"""What a language model has to answer with."""
INSTRUCTION = (
    "Extract the facts that the text states, as JSON with a list of triples: head, relation, tail. "
    "Heads and tails are names of people, places, works, organisations, dates or things, spelled "
    "as in the text; a relation is a few words. Write the name that a pronoun stands for."
)
EXAMPLE = (
    "Ada Blom: She was born in Bergen in 1901 and wrote The Lamp.",
    json.dumps(
        {
            "triples": [
                {"head": "Ada Blom", "relation": "born in", "tail": "Bergen"},
                {"head": "Ada Blom", "relation": "born on", "tail": "1901"},
                {"head": "Ada Blom", "relation": "wrote", "tail": "The Lamp"},
            ]
        }
    ),
)
VERSION = 1
"""Changes with the instruction, the example or the schema."""


def messages(chunk: Chunk) -> list[dict[str, str]]:
    """A chat that asks for the triples of a chunk."""
    asked, replied = EXAMPLE
    return [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": replied},
        {"role": "user", "content": chunk.words},
    ]


def parse(reply: str, chunk: Chunk, prompt_tokens: int = 0, reply_tokens: int = 0) -> Extraction:
    """A language model's reply; one that is not as :data:`SCHEMA` says is kept as it is.

    A triple with an end that shares no word with the text is made up, and is left out.
    """
    used: dict[str, Any] = {"prompt_tokens": prompt_tokens, "reply_tokens": reply_tokens}
    try:
        rows = json.loads(reply)["triples"]
        triples = [Triple(row["head"], row["relation"], row["tail"]) for row in rows]
        found = tuple(triple for triple in sound(triples) if _is_founded(triple, chunk))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Extraction(bad_reply=reply, **used)
    return Extraction(triples=found, entities=ends(found), **used)


def _is_founded(triple: Triple, chunk: Chunk) -> bool:
    said = set(normalise(chunk.words).split())
    return all(said & set(normalise(end).split()) for end in (triple.head, triple.tail))


def sound(triples: Sequence[Triple]) -> tuple[Triple, ...]:
    """Triples in one line, each once, without empty or endless parts."""
    tidy = (Triple(*(" ".join(part.split()) for part in triple)) for triple in triples)
    return tuple(dict.fromkeys(t for t in tidy if all(0 < len(p) <= MAX_PART for p in t)))


def ends(triples: Sequence[Triple]) -> tuple[str, ...]:
    """Heads and tails, each once."""
    return tuple(dict.fromkeys(end for triple in triples for end in (triple.head, triple.tail)))
