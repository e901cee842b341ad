"""Which events that texts tell of are one event (ED-RAG, event fusion).

In two steps. An index of the events' embeddings gives each its nearest others; pairs that are near
enough and share an entity are candidates. A judge then says of each candidate whether the two are
the *same*, *different*, or leave him *unsure*; only the same are merged. What is judged is always
the two events as they stand by then, with all that was merged into them: nothing is merged because
of what is merged with it.
"""

import json
import re
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa import chat, chinese, times
from bisrqa.chat import Chat, Messages
from bisrqa.config import FusionConfig
from bisrqa.data.records import Chunk, Event
from bisrqa.graph.alignment import Embed
from bisrqa.graph.events import Decision, Fused, Fusion, Verdict, alone, in_words, key_of, merged
from bisrqa.graph.texts import Fuse, each_alone
from bisrqa.retrieval.nearest import FaissIndex, nearest
from bisrqa.text import name_key


@runtime_checkable  # the type checks of the tests need it
class Judge(Protocol):
    """Says whether events are the same."""

    identity: str

    def __call__(self, pairs: Sequence[tuple[Fused, Fused, float]]) -> list[tuple[Verdict, str]]:
        """Of two events and their similarity: a verdict and its reason."""
        ...


@dataclass
class Fuser:
    """Fuses events.

    Args:
        config: Thresholds.
        judge: Looks at the candidates.
        overrides: Verdicts that are not asked for, by pairs of :func:`key_of`.
    """

    config: FusionConfig
    judge: Judge
    overrides: dict[frozenset[str], Verdict] = field(default_factory=dict)

    def __call__(
        self,
        events: Sequence[tuple[Chunk, Event]],
        x: Float[Tensor, "events dim"],
    ) -> Fusion:
        """Fuse some events.

        Args:
            events: Each with the chunk that tells of it.
            x: Unit-norm embeddings of the events in words.
        """
        keys = [key_of(chunk, event) for chunk, event in events]
        found = [alone(number, event) for number, (_, event) in enumerate(events)]
        group = list(range(len(events)))  # by number: in which of `found` it is
        decisions: list[Decision] = []
        waiting = deque(candidates(events, x, self.config))
        while waiting:
            some = min(self.config.batch_size, len(waiting))
            batch = [waiting.popleft() for _ in range(some)]
            asked: dict[tuple[int, int], tuple[int, int, float]] = {}
            for first, second, similarity in batch:
                pair = (group[first], group[second])
                pair = (min(pair), max(pair))
                if pair[0] != pair[1]:
                    asked.setdefault(pair, (first, second, similarity))
            said = self._judged(asked, found, keys)
            stale: set[int] = set()  # they have changed since they were judged
            late = []
            for (pair, (first, second, similarity)), (verdict, why) in zip(
                asked.items(), said, strict=True
            ):
                if stale & set(pair):
                    late.append((first, second, similarity))
                    continue
                decisions.append(Decision(keys[first], keys[second], verdict, why, similarity))
                if verdict == "same":
                    found[pair[0]] = merged(found[pair[0]], found[pair[1]])
                    for member in found[pair[0]].members:
                        group[member] = pair[0]
                    stale |= set(pair)
            waiting.extendleft(reversed(late))  # to be judged anew
        kept = sorted({*group})
        return Fusion(tuple(found[number] for number in kept), tuple(decisions))

    def _judged(
        self,
        asked: dict[tuple[int, int], tuple[int, int, float]],
        found: Sequence[Fused],
        keys: Sequence[str],
    ) -> list[tuple[Verdict, str]]:
        said: dict[tuple[int, int], tuple[Verdict, str]] = {}
        verdict: Verdict
        for pair in asked if self.overrides else ():
            forced = {
                self.overrides[name]
                for name in _names_of(found[pair[0]], found[pair[1]], keys)
                if name in self.overrides
            }
            if forced:
                verdict = next(one for one in STRICTEST if one in forced)
                said[pair] = (verdict, "said by the file of verdicts")
        left = [pair for pair in asked if pair not in said]
        replies = self.judge([(found[a], found[b], asked[a, b][2]) for a, b in left])
        said |= dict(zip(left, replies, strict=True))
        return [said[pair] for pair in asked]


STRICTEST: tuple[Verdict, ...] = ("different", "unsure", "same")


def _names_of(one: Fused, other: Fused, keys: Sequence[str]) -> Iterable[frozenset[str]]:
    return (frozenset((keys[a], keys[b])) for a in one.members for b in other.members)


MOST_EXACT = 20_000
"""So many events are compared in all pairs as fast as by an index."""
CHUNK_ROWS = 1024
"""Events that are compared with all at a time."""


def candidates(
    events: Sequence[tuple[Chunk, Event]], x: Float[Tensor, "events dim"], config: FusionConfig
) -> list[tuple[int, int, float]]:
    """Pairs of near events of different texts that share an entity; the nearest first.

    Each event is judged with its ``neighbours`` nearest only, and of many events these are found by
    an index: the work does not grow with all pairs.
    """
    if len(events) < 2:
        return []
    k = min(config.neighbours + 1, len(events))
    many = config.search == "auto" and len(events) > MOST_EXACT
    if config.search == "faiss" or many:
        with tempfile.TemporaryDirectory() as folder:
            similarity, ids = FaissIndex(x, Path(folder) / "events")(x.float(), k)
    else:
        parts = [nearest(some.float(), x, k) for some in x.split(CHUNK_ROWS)]
        similarity, ids = (torch.cat(part) for part in zip(*parts, strict=True))
    row = torch.arange(len(events))[:, None].expand_as(ids)
    near = (similarity >= config.threshold) & (ids != row)
    pairs = torch.stack([torch.minimum(row, ids)[near], torch.maximum(row, ids)[near]], 1)
    value: dict[tuple[int, int], float] = {}
    for (first, second), cosine in zip(pairs.tolist(), similarity[near].tolist(), strict=True):
        value.setdefault((first, second), round(cosine, 4))
    named = [{name_key(n) for n in (*e.participants, e.place) if n} for _, e in events]
    texts = [(chunk.source, chunk.title, chunk.paragraph) for chunk, _ in events]
    kept = [
        (first, second, cosine)
        for (first, second), cosine in value.items()
        if texts[first] != texts[second] and named[first] & named[second]
    ]
    return sorted(kept, key=lambda pair: (-pair[2], pair[0], pair[1]))


class Rules:
    """A judge without a language model.

    Different: times without a common day, places of which the other event names none, numbers of
    which none is shared. Unsure: too little is known of either. Same: much the same words, and a
    shared time or two shared participants; or all but the same sentence.
    """

    identity = "rules/3"

    def __init__(self, config: FusionConfig):
        self._overlap = config.overlap

    def __call__(self, pairs: Sequence[tuple[Fused, Fused, float]]) -> list[tuple[Verdict, str]]:
        return [self._one(*pair) for pair in pairs]

    def _one(self, one: Fused, other: Fused, similarity: float) -> tuple[Verdict, str]:
        if (conflict := conflicting(one, other)) is not None:
            return "different", conflict
        shared = _keys(one.participants + one.places) & _keys(other.participants + other.places)
        dated = bool(one.intervals and other.intervals)
        overlap = max(_overlap(name_key(a), name_key(b)) for a in one.names for b in other.names)
        if any(_SAYING.search(name) for event in (one, other) for name in event.names):
            return "unsure", "that somebody said something is told, but not what"
        if not dated and len(shared) < 2 and overlap < VERBATIM:
            return "unsure", "no time on both sides, and no two names are shared"
        if overlap < (self._overlap if dated else max(self._overlap, UNDATED)):
            return "unsure", f"the names have {overlap:.2f} of their words in common"
        why = f"names {overlap:.2f}, shared: {', '.join(sorted(shared))}"
        return "same", f"{why}; times agree" if dated else why


def conflicting(one: Fused, other: Fused) -> str | None:
    """Why two events cannot be the same; None if they can."""
    ours, theirs = (
        [known for text in some if (known := times.Interval.of(text)) is not None]
        for some in (one.intervals, other.intervals)
    )
    if ours and theirs and not all(a.meets(b) for a in ours for b in theirs):
        return f"times: {', '.join(map(str, ours))} and {', '.join(map(str, theirs))}"
    here, there = _keys(one.places), _keys(other.places)
    if here and there and not (_mentions(one, there) or _mentions(other, here)):
        return f"places: {', '.join(one.places)} and {', '.join(other.places)}"
    counts = _numbers(one.names), _numbers(other.names)
    if all(counts) and not counts[0] & counts[1]:
        return f"numbers: {', '.join(sorted(counts[0]))} and {', '.join(sorted(counts[1]))}"
    return None


def _mentions(event: Fused, places: set[str]) -> bool:
    """Whether any of some places is (part of) a place or name of an event, or the reverse."""
    named = _keys((*event.places, *event.participants))
    return any(a in b or b in a for a in places for b in named) or any(
        place in name_key(name) for place in places for name in event.names
    )


def _keys(names: Iterable[str]) -> set[str]:
    return {name_key(name) for name in names}


def _numbers(names: Iterable[str]) -> set[str]:
    """Numbers in names, besides those of times."""
    found = set[str]()
    for name in names:
        for mention in times.find(name):
            name = name.replace(mention.text, " ")
        found |= set(_NUMBER.findall(name))
    return found


VERBATIM, SENTENCE = 0.9, 12
"""Overlap of names that are one sentence, if they have as many characters."""
UNDATED = 0.8
"""Least overlap where one of the times is not known."""
_SAYING = re.compile(
    r"(?:表示|介绍|指出|宣布|认为|强调|透露|称|说|警示|谴责|回应|分析|显示|要求|提出|明确)$"
    r"|\b(?:said|says|stated|told|announced)$"
)


def _overlap(one: str, other: str) -> float:
    """Share of the shorter name's pairs of characters that the other has too."""
    ours, theirs = ({text[n : n + 2] for n in range(len(text) - 1)} for text in (one, other))
    overlap = len(ours & theirs) / max(min(len(ours), len(theirs)), 1)
    if min(len(one), len(other)) < SENTENCE:  # a few words are easily the same
        return min(overlap, VERBATIM - 0.01)
    return overlap


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def build(config: FusionConfig, embed: Embed, cache_dir: Path) -> Fuse:
    """What fuses events as a config says.

    Args:
        config: ``judge: none`` leaves each alone.
        embed: Gives unit-norm rows for events in words.
        cache_dir: Where converted models are.
    """
    if config.judge == "none":
        return each_alone
    judge: Judge = Rules(config)
    if config.judge != "rules":
        talker = chat.build(config.judge, config, cache_dir, "fusion.judge")
        judge = ModelJudge(talker)
    fuser = Fuser(config, judge, read_verdicts(config.verdicts))

    def fuse(events: Sequence[tuple[Chunk, Event]]) -> Fusion:
        return fuser(events, embed([in_words(event) for _, event in events]))

    return fuse


def read_verdicts(file: str) -> dict[frozenset[str], Verdict]:
    """Verdicts that overrule the judge, of lines ``["key", "key", "different"]``.

    Raises:
        ValueError: No such file, or another kind of line; names it.
    """
    said: dict[frozenset[str], Verdict] = {}
    if not file:
        return said
    try:
        lines = Path(file).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"fusion.verdicts: {file}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            first, second, verdict = json.loads(line)[:3]
        except (ValueError, TypeError) as error:
            raise ValueError(f"fusion.verdicts: {file}:{number}: {error}") from error
        if verdict not in get_args(Verdict) or not isinstance(first, str) or first == second:
            raise ValueError(
                f"fusion.verdicts: {file}:{number}: expected two keys and one of "
                f"{', '.join(get_args(Verdict))}, got {line[:80]!r}"
            )
        said[frozenset((first, second))] = verdict
    return said


class ModelJudge:
    """A language model as the judge; what cannot be the same by rule, it is not asked about.

    A reply that cannot be understood counts as *unsure*.
    """

    def __init__(self, chat: Chat):
        self._chat = chat
        self.identity = f"model/{MODEL_VERSION}/{chat.identity}"

    def __call__(self, pairs: Sequence[tuple[Fused, Fused, float]]) -> list[tuple[Verdict, str]]:
        ruled = [conflicting(one, other) for one, other, _ in pairs]
        open_to = [pair for pair, conflict in zip(pairs, ruled, strict=True) if conflict is None]
        replies = iter(self._chat([_question(one, other) for one, other, _ in open_to], SCHEMA))
        return [
            ("different", conflict) if conflict is not None else _verdict(next(replies).text)
            for conflict in ruled
        ]


def _question(one: Fused, other: Fused) -> Messages:
    language = "zh" if chinese.is_chinese(one.names[0] + other.names[0]) else "en"
    told = [json.dumps(_told(event), ensure_ascii=False) for event in (one, other)]
    return [
        {"role": "system", "content": INSTRUCTIONS[language]},
        {"role": "user", "content": "\n".join(told)},
    ]


def _told(event: Fused) -> dict[str, list[str]]:
    parts = {"name": event.names, "time": event.times, "place": event.places}
    parts["participants"] = event.participants
    return {name: list(values[:MAX_TOLD]) for name, values in parts.items()}


def _verdict(reply: str) -> tuple[Verdict, str]:
    try:
        row = json.loads(reply)
        verdict, why = row["verdict"], " ".join(str(row.get("reason", "")).split())
    except (ValueError, KeyError, TypeError, AttributeError):
        return "unsure", f"the judge's reply cannot be understood: {reply[:200]!r}"
    if verdict not in get_args(Verdict):
        return "unsure", f"the judge's reply cannot be understood: {reply[:200]!r}"
    return verdict, why


MODEL_VERSION = 1
MAX_TOLD = 8
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 200},
        "verdict": {"enum": list(get_args(Verdict))},
    },
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
INSTRUCTIONS = {
    "en": "Two texts tell of an event each, given as JSON. Say whether it is the same event: "
    '"same", "different", or "unsure" if too little is known. Give the reason first.',
    "zh": "下面两行JSON各描述一个事件。判断它们是否为同一事件：same（同一）、different（不同）、"
    "unsure（依据不足）。先给出理由。",
}
