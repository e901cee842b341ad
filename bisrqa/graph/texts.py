"""From chunks of text and the triples read from them to :class:`GraphTensors`.

Nodes are the entities (titles, then ends of triples), behind them the events, if any, as EVENT
nodes, and behind these the chunks, as PASSAGE nodes. Edges are

- the triples, each with its passage;
- of every event, with the passage that says so: ``involves`` its participants, ``located in`` its
  place, ``dated`` its time, as an interval of days;
- from every passage: ``titled`` to the entity that its title names, ``mentions`` to every other
  entity whose name its text holds, ``describes`` to the events that it tells of, and ``continues``
  to the event that its text begins with, where it does not describe that: a text's main line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa import chinese
from bisrqa.data.records import Chunk, Event, Triple
from bisrqa.graph.alignment import Aligner
from bisrqa.graph.events import Decision, Fusion, alone, in_words
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.text import name_key, normalise

TITLED, MENTIONS, DESCRIBES, CONTINUES = "titled", "mentions", "describes", "continues"
INVOLVES, LOCATED, DATED = "involves", "located in", "dated"
_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
MAX_NAME_WORDS = 12
"""Longer names (in Chinese characters) are not looked for in texts."""


class Merge(NamedTuple):
    """A name that was taken for an entity known by another."""

    name: str
    entity: str
    why: str


@dataclass
class Entities:
    """Names of entities and what they stand for; every merge is recorded.

    Two names are one entity if they are equal as :func:`~bisrqa.text.name_key` has it. A title
    with a qualifier, ``Viva (TV channel)``, is also called what stands before it, unless another
    title is called just that. What else is one entity is told by :meth:`take`.
    """

    names: list[str] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)
    _short: dict[str, list[int]] = field(default_factory=dict)
    _longest: dict[str, int] = field(default_factory=dict)
    """By a name's first word: words of the longest such name."""

    def add_title(self, title: str) -> int:
        """The entity that a title names."""
        node = self.add(title)
        short = _QUALIFIER.sub("", title)
        if normalise(short) and (short := name_key(short)) != name_key(title):
            self._note(short)
            known = self._short.setdefault(short, [])
            if node not in known:
                known.append(node)
        return node

    def add(self, name: str) -> int:
        """The entity of a name; a new one if it is not known."""
        key = name_key(name)
        self._note(key)
        node = self._ids.get(key)
        if node is None and len(short := self._short.get(key, ())) == 1:
            node = self._ids[key] = short[0]
            self.merges.append(Merge(name, self.names[node], "title without its qualifier"))
        if node is None:
            node = self._ids[key] = len(self.names)
            self.names.append(name)
        elif name != self.names[node] and self._spelling(name, node):
            self.merges.append(Merge(name, self.names[node], "same when normalised"))
        return node

    def knows(self, name: str) -> bool:
        """Whether a name stands for an entity already."""
        key = name_key(name)
        return key in self._ids or len(self._short.get(key, ())) == 1

    def take(self, name: str, node: int, why: str) -> None:
        """From now on a name that was not known stands for an entity."""
        key = name_key(name)
        self._note(key)
        self._ids[key] = node
        self.merges.append(Merge(name, self.names[node], why))

    def _spelling(self, name: str, node: int) -> bool:
        return name_key(name) == name_key(self.names[node])

    def _note(self, key: str) -> None:
        words = chinese.spaced(key).split()
        if words and len(words) <= MAX_NAME_WORDS:
            self._longest[words[0]] = max(self._longest.get(words[0], 0), len(words))

    def in_text(self, text: str) -> Iterator[int]:
        """Entities whose names stand in a text, longest first from each place, each once."""
        words = chinese.spaced(normalise(chinese.plain(text))).split()
        found, place = set(), 0
        while place < len(words):
            most = min(self._longest.get(words[place], 0), len(words) - place)
            for length in range(most, 0, -1):
                key = chinese.joined(words[place : place + length])
                nodes = [self._ids[key]] if key in self._ids else self._short.get(key, ())
                if nodes and worth(key):
                    yield from (node for node in nodes if node not in found)
                    found.update(nodes)
                    place += length - 1
                    break
            place += 1


def worth(key: str) -> bool:
    """Whether a name means something wherever it stands: not ``he``, ``one``, ``3`` or ``京``."""
    return (
        len(key) > (1 if chinese.is_chinese(key) else 2)
        and not key.isdecimal()
        and key not in COMMON
    )


COMMON = frozenset(
    "he she it they his her its their him them who which this that these those there here was were "
    "are is been has had have not and but for with from into over after before during between both "
    "one two three four five six seven eight nine ten first second third new also later other many "
    "most some year years time".split()
)


class TextGraph(NamedTuple):
    """A graph of texts, and which names were taken for one entity."""

    graph: GraphTensors
    merges: tuple[Merge, ...]
    decisions: tuple[Decision, ...] = ()
    """Which events were taken for one, and which were not, in the order of decision."""


Fuse = Callable[[Sequence[tuple[Chunk, Event]]], Fusion]
"""Finds out which events are one."""


def each_alone(events: Sequence[tuple[Chunk, Event]]) -> Fusion:
    """No fusion: what two texts tell are two events."""
    return Fusion(tuple(alone(number, event) for number, (_, event) in enumerate(events)), ())


def from_texts(
    chunks: Sequence[Chunk],
    triples: Sequence[Triple],
    sources: Sequence[int],
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]],
    named: Sequence[tuple[int, str]] = (),
    aligner: Aligner | None = None,
    events: Sequence[tuple[int, Event]] = (),
    fuse: Fuse = each_alone,
) -> TextGraph:
    """Build one graph of entities, events and passages.

    Args:
        chunks: In order; passage node ``first + i`` is chunk i.
        triples: Directed, by name; the same fact read twice is two edges.
        sources: The chunk of each.
        embed: Gives unit-norm rows for texts.
        named: Names that a chunk mentions, by its number; looked for in all others too.
        aligner: Finds entities for names that are not known exactly.
        events: What chunks tell of, by their number, in the order of the chunks.
        fuse: Finds out which events are one.
    """
    entities = Entities()
    titles = [entities.add_title(chunk.title) if chunk.title else -1 for chunk in chunks]
    if aligner is not None:
        names = [end for t in triples for end in (t.head, t.tail)] + [name for _, name in named]
        _align(entities, names, aligner)
    relations: dict[str, int] = {}
    facts = dict.fromkeys(
        (
            entities.add(t.head),
            entities.add(t.tail),
            relations.setdefault(t.relation, len(relations)),
            source,
        )
        for t, source in zip(triples, sources, strict=True)
    )
    mentioned = [(c, entities.add(name)) for c, name in named]
    told = [(chunks[c], event) for c, event in events]
    fusion = fuse(told)
    of_events = [
        (number, kind, entities.add(name), events[member][0])
        for number, event in enumerate(fusion.events)
        for member in event.members
        for kind, name in _around(events[member][1])
    ]
    first_event = len(entities.names)
    first = first_event + len(fusion.events)
    # A triple may have a relation of this name: the two mean something else, and are two rows.
    kinds = (TITLED, MENTIONS, DESCRIBES, CONTINUES, INVOLVES, LOCATED, DATED)
    kinds = kinds if events else kinds[:2]
    of_kind = {kind: len(relations) + number for number, kind in enumerate(kinds)}
    titled, mentions = of_kind[TITLED], of_kind[MENTIONS]
    edges = [(head, tail, kind, first + source) for head, tail, kind, source in facts]
    edges += [(first + c, title, titled, -1) for c, title in enumerate(titles) if title >= 0]
    edges += dict.fromkeys(
        (first_event + number, node, of_kind[kind], first + chunk)
        for number, kind, node, chunk in of_events
    )
    for c, chunk in enumerate(chunks):
        mentioned += [(c, node) for node in entities.in_text(chunk.text)]
    edges += [
        (first + c, node, mentions, -1) for c, node in dict.fromkeys(mentioned) if node != titles[c]
    ]
    edges += [
        (first + chunk, first_event + event, of_kind[kind], -1)
        for chunk, event, kind in _lines(chunks, events, fusion)
    ]
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 4)
    texts = [*entities.names, *(event.text for event in fusion.events)]
    texts += [chunk.words for chunk in chunks]
    kind = torch.full((len(texts),), int(NodeKind.ENTITY), dtype=torch.int8)
    kind[first_event:] = int(NodeKind.EVENT)
    kind[first:] = int(NodeKind.PASSAGE)
    names = [*relations, *kinds]
    graph = GraphTensors(
        x=embed(texts),
        node_text=tuple(texts),
        node_kind=kind,
        edge_index=table[:, :2].T.contiguous(),
        edge_type=table[:, 2].contiguous(),
        edge_passage=table[:, 3].contiguous(),
        relation_x=embed(names),
        relation_text=tuple(names),
        node_ptr=torch.tensor([0, len(texts)]),
        edge_ptr=torch.tensor([0, len(table)]),
        relation_ptr=torch.tensor([0, len(names)]),
    )
    return TextGraph(graph, tuple(dict.fromkeys(entities.merges)), fusion.decisions)


def _around(event: Event) -> Iterator[tuple[str, str]]:
    """What an event has to do with: relation and name."""
    yield from ((INVOLVES, name) for name in event.participants)
    if event.place:
        yield LOCATED, event.place
    if event.interval:
        yield DATED, event.interval


def _lines(
    chunks: Sequence[Chunk], events: Sequence[tuple[int, Event]], fusion: Fusion
) -> Iterator[tuple[int, int, str]]:
    """Which chunk describes or continues which event."""
    group = {member: n for n, event in enumerate(fusion.events) for member in event.members}
    described = {(c, group[number]): None for number, (c, _) in enumerate(events)}
    main: dict[tuple[str, int], int] = {}
    for chunk, event in described:
        main.setdefault((chunks[chunk].source, chunks[chunk].paragraph), event)
    for chunk, event in described:
        yield chunk, event, DESCRIBES
    for number, chunk in enumerate(chunks):
        event = main.get((chunk.source, chunk.paragraph))
        if event is not None and (number, event) not in described:
            yield number, event, CONTINUES


def _align(entities: Entities, names: Sequence[str], aligner: Aligner) -> None:
    """Take names for entities: aliases first, then what is near a title or a name before it."""
    said = {name_key(name) for name in names}
    for alias, name in aligner.aliases:
        occurs = entities.knows(name) or name_key(name) in said
        if occurs and not entities.knows(alias):
            entities.take(alias, entities.add(name), "listed as an alias")
    first: dict[str, str] = {}
    for name in names:
        if not entities.knows(name):
            first.setdefault(name_key(name), name)
    unknown, known = list(first.values()), list(entities.names)
    for name, match in zip(unknown, aligner(unknown, known), strict=True):
        if match is None:
            entities.add(name)
        else:
            entities.take(name, entities.add(match.known), match.why)


def texts_of(
    chunks: Iterable[Chunk],
    triples: Iterable[Triple],
    named: Iterable[tuple[int, str]] = (),
    events: Iterable[tuple[int, Event]] = (),
) -> Iterator[str]:
    """Every text that :func:`from_texts` may ask embeddings of, repeated as it comes."""
    for chunk in chunks:
        yield chunk.words
        if chunk.title:
            yield chunk.title
    for triple in triples:
        yield from triple
    for _, name in named:
        yield name
    for _, event in events:
        yield in_words(event)
        yield from (name for _, name in _around(event))
    yield from (TITLED, MENTIONS, DESCRIBES, CONTINUES, INVOLVES, LOCATED, DATED)
