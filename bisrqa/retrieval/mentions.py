"""Entities that questions name: found in a graph, and weighed."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa import chinese
from bisrqa.extraction.clauses import names_in
from bisrqa.graph.alignment import by_spelling, numbers
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import MAX_NAME_WORDS, worth
from bisrqa.retrieval.passages import Links
from bisrqa.text import name_key

NAMED = 1.5
"""A name that stands out in the question (a title, a quotation, a proper name) counts so much."""
_WORD = r"[A-Z\d][\w&.'’-]*"
_ENGLISH = re.compile(
    r"[“\"']([^“”\"']{2,60})[”\"']|"
    rf"([A-Z][\w&.'’-]*(?: (?:(?:of|the|and|de|von|van|&) )?{_WORD})*)"
)
_OPENERS = frozenset(
    "what which who whom whose when where why how is are was were do does did in on at of the a an "
    "for from by to with has have had can could will would".split()
)

_key = lru_cache(maxsize=2**18)(name_key)


class Mentions(NamedTuple):
    """Entities that the questions of a batch name, by question."""

    question: Int[Tensor, " mentions"]
    node: Int[Tensor, " mentions"]
    weight: Float[Tensor, " mentions"]
    """Importance; sums to 1 in each question."""
    way: tuple[str, ...]
    """How each was found: ``exact``, ``spelling 0.95``, ``embedding 0.93``."""


def names_of(text: str) -> list[str]:
    """Names in a question, by rule."""
    if chinese.is_chinese(text):
        return names_in(text)
    found = [m[1] or m[2].strip() for m in _ENGLISH.finditer(text)]
    tidy = []
    for name in found:
        words = name.split()
        while words and words[0].lower() in _OPENERS:
            words = words[1:]
        if words:
            tidy.append(" ".join(words))
    return list(dict.fromkeys(tidy))


def mentions(
    asked: Sequence[str],
    graph: GraphTensors,
    found: Links,
    *,
    core: float = 0.0,
    fuzzy: float | None = None,
    embedding: float | None = None,
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]] | None = None,
) -> Mentions:
    """Find the entities that questions name, and say how much each means.

    A name counts by its rarity among the question's passages, and more if it stands out.

    Args:
        asked: A question for each graph.
        graph: A batch.
        found: Which passage names which entity.
        core: Entities that count less than this share of the most important are left out.
        fuzzy: Least likeness in spelling of a name that is no node's; None looks for equal ones.
        embedding: Least cosine of such a name and a node; None does without.
        embed: Gives unit-norm rows for names, for ``embedding``.
    """
    kinds, ptr = graph.node_kind.tolist(), graph.node_ptr.tolist()
    rows: list[tuple[int, int, float, str]] = []
    for number, text in enumerate(asked):
        nodes = [n for n in range(ptr[number], ptr[number + 1]) if kinds[n] == NodeKind.ENTITY]
        known = {_key(graph.node_text[n]): n for n in reversed(nodes)}
        names = names_of(text)
        standing = {_key(name) for name in names}
        here: dict[int, tuple[float, str]] = {}
        covered: list[str] = []
        for key in _in_text(text, known):
            covered.append(key)
            here[known[key]] = (NAMED if key in standing else 1.0, "exact")
        left = [name for name in names if not any(_key(name) in key for key in covered)]
        for node, way in _like(left, known, graph, fuzzy, embedding, embed):
            here.setdefault(node, (NAMED, way))
        rows += [(number, node, role, way) for node, (role, way) in here.items()]
    question = torch.tensor([row[0] for row in rows], dtype=torch.long, device=graph.device)
    node = torch.tensor([row[1] for row in rows], dtype=torch.long, device=graph.device)
    role = torch.tensor([row[2] for row in rows], device=graph.device).to(graph.x)
    having = torch.bincount(found.entity, minlength=graph.num_nodes)[node]
    passages = torch.bincount(
        graph.node_batch[graph.node_kind == NodeKind.PASSAGE], minlength=len(asked)
    )
    weight = role * torch.log1p(passages[question] / (1.0 + having)).clamp_min(1e-3)
    most = weight.new_zeros(len(asked)).scatter_reduce(0, question, weight, "amax")
    keep = weight >= core * most[question]
    question, node, weight = question[keep], node[keep], weight[keep]
    total = weight.new_zeros(len(asked)).index_add(0, question, weight)
    ways = tuple(row[3] for row, kept in zip(rows, keep.tolist(), strict=True) if kept)
    return Mentions(question, node, weight / total[question], ways)


def _in_text(text: str, known: dict[str, int]) -> list[str]:
    """Keys that stand in a text, longest first from each place."""
    words = chinese.spaced(_key(text)).split()
    found, place = [], 0
    while place < len(words):
        for length in range(min(MAX_NAME_WORDS, len(words) - place), 0, -1):
            key = chinese.joined(words[place : place + length])
            if key in known and worth(key):
                found.append(key)
                place += length - 1
                break
        place += 1
    return list(dict.fromkeys(found))


def _like(
    names: Sequence[str],
    known: dict[str, int],
    graph: GraphTensors,
    fuzzy: float | None,
    embedding: float | None,
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]] | None,
) -> list[tuple[int, str]]:
    """Nodes for names that are no node's, by spelling, then by meaning."""
    targets = [graph.node_text[node] for node in known.values()]
    found: list[tuple[int, str]] = []
    if not names or not targets:
        return found
    left = list(names)
    if fuzzy is not None:
        matches = [by_spelling([name], targets, fuzzy)[0] for name in left]
        for name, match in zip(list(left), matches, strict=True):
            if match is not None:
                found.append((known[_key(match.known)], match.why))
                left.remove(name)
    if embedding is not None and embed is not None and left:
        nodes = list(known.values())
        cosine = embed(left).to(graph.x) @ graph.x[nodes].T
        for name, row in zip(left, cosine, strict=True):
            best = int(row.argmax())
            same = numbers(name) == numbers(targets[best])
            if float(row[best]) >= embedding and same:
                found.append((nodes[best], f"embedding {float(row[best]):.3f}"))
    return found
