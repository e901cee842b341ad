"""What a language model is asked for to get triples, and how its replies are read."""

import json
from typing import Any

from bisrqa.chat import Messages
from bisrqa.data.records import Chunk, Triple
from bisrqa.extraction.base import MAX_PART, Extraction, Task, ends, sound
from bisrqa.text import normalise

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


def messages(chunk: Chunk) -> Messages:
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


TRIPLES = Task(name="triples", version=1, schema=SCHEMA, messages=messages, parse=parse)
