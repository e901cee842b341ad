"""From chunks of text and the triples read from them to :class:`GraphTensors`.

Nodes are the entities (titles, then ends of triples) and behind them the chunks, as PASSAGE nodes.
Edges are the triples, each with its passage; then, from every passage, ``titled`` to the entity
that its title names, and ``mentions`` to every other entity whose name its text holds.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.data.records import Chunk, Triple
from bisrqa.graph.alignment import Aligner
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.text import normalise

TITLED, MENTIONS = "titled", "mentions"
_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
MAX_NAME_WORDS = 8
"""Longer names are not looked for in texts."""


class Merge(NamedTuple):
    """A name that was taken for an entity known by another."""

    name: str
    entity: str
    why: str


@dataclass
class Entities:
    """Names of entities and what they stand for; every merge is recorded.

    Two names are one entity if they are equal as :func:`~bisrqa.text.normalise` has it. A title
    with a qualifier, ``Viva (TV channel)``, is also called what stands before it, unless another
    title is called just that. What else is one entity is told by :meth:`take`.
    """

    names: list[str] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)
    _short: dict[str, list[int]] = field(default_factory=dict)

    def add_title(self, title: str) -> int:
        """The entity that a title names."""
        node = self.add(title)
        if (short := normalise(_QUALIFIER.sub("", title))) and short != normalise(title):
            known = self._short.setdefault(short, [])
            if node not in known:
                known.append(node)
        return node

    def add(self, name: str) -> int:
        """The entity of a name; a new one if it is not known."""
        key = normalise(name) or name
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
        key = normalise(name) or name
        return key in self._ids or len(self._short.get(key, ())) == 1

    def take(self, name: str, node: int, why: str) -> None:
        """From now on a name that was not known stands for an entity."""
        self._ids[normalise(name) or name] = node
        self.merges.append(Merge(name, self.names[node], why))

    def _spelling(self, name: str, node: int) -> bool:
        return normalise(name) == normalise(self.names[node])

    def in_text(self, words: Sequence[str]) -> Iterator[int]:
        """Entities whose names stand in a text, longest first from each place, each once."""
        found, place = set(), 0
        while place < len(words):
            for length in range(min(MAX_NAME_WORDS, len(words) - place), 0, -1):
                key = " ".join(words[place : place + length])
                nodes = [self._ids[key]] if key in self._ids else self._short.get(key, ())
                if nodes and worth(key):
                    yield from (node for node in nodes if node not in found)
                    found.update(nodes)
                    place += length - 1
                    break
            place += 1


def worth(key: str) -> bool:
    """Whether a name means something wherever it stands: not ``he``, ``one`` or ``3``."""
    return len(key) > 2 and not key.isdecimal() and key not in COMMON


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


def from_texts(
    chunks: Sequence[Chunk],
    triples: Sequence[Triple],
    sources: Sequence[int],
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]],
    named: Sequence[tuple[int, str]] = (),
    aligner: Aligner | None = None,
) -> TextGraph:
    """Build one graph of entities and passages.

    Args:
        chunks: In order; passage node ``first + i`` is chunk i.
        triples: Directed, by name; the same fact read twice is two edges.
        sources: The chunk of each.
        embed: Gives unit-norm rows for texts.
        named: Names that a chunk mentions, by its number; looked for in all others too.
        aligner: Finds entities for names that are not known exactly.
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
    first = len(entities.names)
    # A triple may have a relation of this name: the two mean something else, and are two rows.
    titled, mentions = len(relations), len(relations) + 1
    edges = [(head, tail, kind, first + source) for head, tail, kind, source in facts]
    edges += [(first + c, title, titled, -1) for c, title in enumerate(titles) if title >= 0]
    for c, chunk in enumerate(chunks):
        mentioned += [(c, node) for node in entities.in_text(normalise(chunk.text).split())]
    edges += [
        (first + c, node, mentions, -1) for c, node in dict.fromkeys(mentioned) if node != titles[c]
    ]
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 4)
    texts = [*entities.names, *(chunk.words for chunk in chunks)]
    kind = torch.full((len(texts),), int(NodeKind.ENTITY), dtype=torch.int8)
    kind[first:] = int(NodeKind.PASSAGE)
    names = [*relations, TITLED, MENTIONS]
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
    return TextGraph(graph, tuple(dict.fromkeys(entities.merges)))


def _align(entities: Entities, names: Sequence[str], aligner: Aligner) -> None:
    """Take names for entities: aliases first, then what is near a title or a name before it."""
    said = {normalise(name) for name in names}
    for alias, name in aligner.aliases:
        occurs = entities.knows(name) or normalise(name) in said
        if occurs and not entities.knows(alias):
            entities.take(alias, entities.add(name), "listed as an alias")
    first: dict[str, str] = {}
    for name in names:
        if not entities.knows(name):
            first.setdefault(normalise(name) or name, name)
    unknown, known = list(first.values()), list(entities.names)
    for name, match in zip(unknown, aligner(unknown, known), strict=True):
        if match is None:
            entities.add(name)
        else:
            entities.take(name, entities.add(match.known), match.why)


def texts_of(
    chunks: Iterable[Chunk], triples: Iterable[Triple], named: Iterable[tuple[int, str]] = ()
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
    yield TITLED
    yield MENTIONS
