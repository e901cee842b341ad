"""What a language model is asked for to get events and entities, and how its replies are read.

Both in one call (ED-RAG, joint extraction); instruction and example are in the chunk's language.
"""

import json
from datetime import date
from typing import Any

from bisrqa import chinese, times
from bisrqa.chat import Messages
from bisrqa.data.records import Chunk, Event
from bisrqa.extraction.base import MAX_PART, Extraction, Task
from bisrqa.text import name_key, normalise

_TEXT = {"type": "string", "maxLength": MAX_PART}
_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_PART}
_EVENT_PARTS = ("name", "time", "place", "participants")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "events": {
            "type": "array",
            "maxItems": 6,
            "items": {
                "type": "object",
                "properties": {
                    "name": _NAME,
                    "time": _TEXT,
                    "place": _TEXT,
                    "participants": {"type": "array", "maxItems": 8, "items": _NAME},
                },
                "required": list(_EVENT_PARTS),
                "additionalProperties": False,
            },
        },
        "entities": {"type": "array", "maxItems": 16, "items": _NAME},
    },
    "required": ["events", "entities"],
    "additionalProperties": False,
}
INSTRUCTIONS = {
    "en": "Extract the events that the text tells of, and the entities that it names, as JSON. An "
    "event has a name (one short sentence that says what happened), a time, a place, and "
    "participants. Spell times, places and names as the text does; leave out, as an empty string "
    "or list, what the text does not say. Write the name that a pronoun stands for.",
    "zh": "从文本中抽取事件和实体，以JSON输出。"
    "每个事件包括名称（用一个短句说明发生了什么）、时间、地点和参与者。"
    "时间、地点和名称按原文书写；原文没有说明的，用空字符串或空列表。代词要写成它所指的名称。",
}
EXAMPLES = {
    "en": (
        "Ada Blom: On 4 July 1931 she opened a lamp factory in Bergen with Nils Dahl.",
        {
            "events": [
                {
                    "name": "Ada Blom opened a lamp factory",
                    "time": "4 July 1931",
                    "place": "Bergen",
                    "participants": ["Ada Blom", "Nils Dahl"],
                }
            ],
            "entities": ["Ada Blom", "Nils Dahl", "Bergen"],
        },
    ),
    "zh": (
        "7月5日，青禾公司在泰州启用新码头，市长周远出席仪式。",
        {
            "events": [
                {
                    "name": "青禾公司启用新码头",
                    "time": "7月5日",
                    "place": "泰州",
                    "participants": ["青禾公司", "周远"],
                }
            ],
            "entities": ["青禾公司", "泰州", "周远"],
        },
    ),
}


def messages(chunk: Chunk) -> Messages:
    """A chat that asks for the events of a chunk, in its language."""
    language = "zh" if chinese.is_chinese(chunk.words) else "en"
    asked, replied = EXAMPLES[language]
    return [
        {"role": "system", "content": INSTRUCTIONS[language]},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": json.dumps(replied, ensure_ascii=False)},
        {"role": "user", "content": chunk.words},
    ]


def parse(reply: str, chunk: Chunk, prompt_tokens: int = 0, reply_tokens: int = 0) -> Extraction:
    """A language model's reply; one that is not as :data:`SCHEMA` says is kept as it is.

    Names, times and places that the text does not hold are made up, and are left out; so is an
    event whose name shares nothing with the text.
    """
    used: dict[str, Any] = {"prompt_tokens": prompt_tokens, "reply_tokens": reply_tokens}
    try:
        row = json.loads(reply)
        listed = [_texts(event) for event in row["events"]]
        entities = _names(row["entities"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return Extraction(bad_reply=reply, **used)
    said = name_key(chunk.words)
    written = date.fromisoformat(chunk.written) if chunk.written else None
    found = []
    for name, time, place, participants in listed:
        if not name or not _shares(name, chunk.words):
            continue
        time = time if _is_said(time, said) else ""
        interval = times.first(time, written) if time else None
        found.append(
            Event(
                name=name,
                time=time,
                place=place if _is_said(place, said) else "",
                participants=tuple(p for p in participants if _is_said(p, said)),
                interval=str(interval) if interval else "",
            )
        )
    known = dict.fromkeys(entity for entity in entities if _is_said(entity, said))
    return Extraction(events=tuple(dict.fromkeys(found)), entities=tuple(known), **used)


def _texts(event: dict[str, Any]) -> tuple[str, str, str, list[str]]:
    name, time, place = (" ".join(event[part].split()) for part in _EVENT_PARTS[:3])
    return name[:MAX_PART], time, place, _names(event["participants"])


def _names(listed: Any) -> list[str]:
    if not isinstance(listed, list):
        raise TypeError
    return [
        name for name in (" ".join(part.split()) for part in listed) if 0 < len(name) <= MAX_PART
    ]


def _is_said(name: str, said: str) -> bool:
    return bool(name) and name_key(name) in said


def _shares(name: str, text: str) -> bool:
    """Whether a name has anything of a text: a word, or two Chinese characters in a row."""
    if chinese.is_chinese(name):
        return any(name[n : n + 2] in text for n in range(len(name) - 1))
    return bool(set(normalise(name).split()) & set(normalise(text).split()))


EVENTS = Task(name="events", version=1, schema=SCHEMA, messages=messages, parse=parse)
