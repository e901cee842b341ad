"""What speaks for each passage of a text graph by the events that it tells of (ED-RAG, reranking).

All of a batch of graphs at once; passages are compared within their own question only.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa import chinese, times
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import COMMON, CONTINUES, DATED, DESCRIBES, INVOLVES, LOCATED
from bisrqa.retrieval.mentions import Mentions
from bisrqa.retrieval.passages import Links, passage_rows
from bisrqa.retrieval.segments import group_rank, standardise

SIGNALS = (
    "words", "pieces", "cosine", "coverage", "event", "line", "main event", "time", "slot",
)  # fmt: skip
"""Of every passage: words shared with the question (BM25); share of the question's pieces of words;
cosine to it; importance of its entities that are named; nearest event that is told of; words shared
by all passages of the same event or text; cosine of the text's main event; whether times agree;
whether what is asked for is there."""

_WHEN = re.compile(
    r"什么时候|何时|哪一?年|哪一?天|哪个?月|几月|几点|日期|时间|"
    r"\bwhen\b|\bwhat (?:year|date|day)\b",
    re.IGNORECASE,
)
_WHERE = re.compile(
    r"哪里|哪儿|何地|在哪|哪个(?:城市|国家|地方|省|市|县)|地点|"
    r"\bwhere\b|\bwhat (?:city|country|place)\b",
    re.IGNORECASE,
)
_WHO = re.compile(r"谁|哪位|何人|哪些人|\bwhom?\b", re.IGNORECASE)
_COUNT = re.compile(
    r"多少|几[个位名人次项家条]|多大|多长|多高|\bhow (?:many|much|long|old|tall)\b", re.IGNORECASE
)
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")


class EventLinks(NamedTuple):
    """How passages, events and entities of a batch hang together."""

    passage: Int[Tensor, " told"]
    event: Int[Tensor, " told"]
    """Which passage describes or continues which event."""
    describes: Bool[Tensor, " told"]
    """Whether it tells of it; else the event is what its text began with."""
    of_event: Int[Tensor, " parts"]
    entity: Int[Tensor, " parts"]
    """Which event has to do with which entity, each pair once."""
    dated: Int[Tensor, " times"]
    when: Int[Tensor, " times"]
    """Which event has which time."""
    located: Bool[Tensor, " nodes"]
    """Events whose place is known."""

    @classmethod
    def of(cls, graph: GraphTensors) -> "EventLinks":
        """Read them off the edges."""
        head, tail = graph.edge_index

        def kind(*names: str) -> Bool[Tensor, " edges"]:
            rows = torch.tensor([text in names for text in graph.relation_text], dtype=torch.bool)
            is_kind = rows.to(graph.device)[graph.edge_type] if len(rows) else rows
            event = NodeKind.EVENT
            return is_kind & ((graph.node_kind[head] == event) | (graph.node_kind[tail] == event))

        told = kind(DESCRIBES, CONTINUES)
        parts = torch.unique(graph.edge_index[:, kind(INVOLVES, LOCATED)], dim=1)
        dated = torch.unique(graph.edge_index[:, kind(DATED)], dim=1)
        located = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        located[head[kind(LOCATED)]] = True
        return cls(
            head[told], tail[told], kind(DESCRIBES)[told], parts[0], parts[1], dated[0], dated[1],
            located,
        )  # fmt: skip


def reached(found: EventLinks, named: Mentions, graph: GraphTensors) -> Bool[Tensor, " nodes"]:
    """Passages on a way from a named entity through an event (``entity -> event -> passage``)."""
    is_named = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    is_named[named.node] = True
    involves = torch.zeros_like(is_named)
    involves[found.of_event[is_named[found.entity]]] = True
    hit = torch.zeros_like(is_named)
    hit[found.passage[found.describes & involves[found.event]]] = True
    return hit


def signals(
    graph: GraphTensors,
    question_x: Float[Tensor, "questions dim"],
    asked: Sequence[str],
    words: Float[Tensor, "passages words"],
    named: Mentions,
    links: Links,
    found: EventLinks,
) -> Float[Tensor, "passages signals"]:
    """Every signal of :data:`SIGNALS`, as it is.

    Args:
        graph: A batch, one graph a question.
        question_x: Unit-norm embeddings.
        asked: The questions.
        words: BM25 of each passage for each word of its question.
        named: Entities that the questions name.
        links: Which passage names which entity.
        found: The events of the graph.
    """
    nodes = graph.num_nodes
    passage, row = passage_rows(graph)
    question = graph.node_batch[passage]
    cosine = (graph.x * question_x[graph.node_batch]).sum(-1)
    own = words.sum(1)

    weight = cosine.new_zeros(nodes)
    weight[named.node] = named.weight
    coverage = cosine.new_zeros(nodes).index_add(0, links.passage, weight[links.entity])

    # The best that any passage of an event has for each word, summed.
    at = row[found.passage]
    best = words.new_zeros(nodes, words.shape[1])
    best = best.scatter_reduce(
        0, found.event[:, None].expand(-1, words.shape[1]), words[at], "amax"
    )
    together = best.sum(1)
    line = own.scatter_reduce(0, at, together[found.event], "amax")

    least = cosine.new_full((len(asked),), torch.inf)
    least = least.scatter_reduce(0, graph.node_batch, cosine, "amin")[question]

    def nearest(some: Tensor) -> Tensor:
        value = cosine.new_full((len(passage),), -torch.inf)
        value = value.scatter_reduce(0, at[some], cosine[found.event[some]], "amax")
        return torch.where(torch.isfinite(value), value, least)

    is_main = torch.zeros(nodes, dtype=torch.bool, device=graph.device)
    is_main[found.event[~found.describes]] = True
    columns = [
        own,
        _pieces(graph, asked, passage),
        cosine[passage],
        coverage[passage],
        nearest(found.describes),
        line,
        nearest(is_main[found.event] | ~found.describes),
        _times(graph, asked, question, found, row),
        _slots(graph, asked, passage, question, found, row),
    ]
    return torch.stack([column.to(cosine) for column in columns], 1)


def pieces_of(question: str) -> tuple[str, ...]:
    """What is left of a question whose words may be cut or bent otherwise in a text.

    Of Chinese, pairs of characters; of other scripts, the beginnings of words. Words that ask are
    left out.
    """
    if chinese.is_chinese(question):
        runs = [_ASKING.sub(" ", run) for run in _RUN.findall(question.lower())]
        parts = [part for run in runs for part in run.split()]
        return tuple(dict.fromkeys(p[n : n + 2] for p in parts for n in range(len(p) - 1)))
    words = [word for word in _RUN.findall(question.lower()) if word not in COMMON]
    return tuple(dict.fromkeys(f" {word[:BEGINNING]}" for word in words))


def _pieces(
    graph: GraphTensors, asked: Sequence[str], passage: Int[Tensor, " passages"]
) -> Float[Tensor, " passages"]:
    """Share of the question's pieces that a passage has, rare ones counting more."""
    counts = torch.bincount(graph.node_batch[passage], minlength=len(asked)).tolist()
    texts = iter([graph.node_text[n] for n in passage.tolist()])
    parts = []
    for count, question in zip(counts, asked, strict=True):
        own = [f" {text.lower()}" for text in islice(texts, count)]
        has = torch.tensor([[piece in text for piece in pieces_of(question)] for text in own])
        has = has.reshape(count, -1).float()
        rare = torch.log1p((count + 1) / (has.sum(0) + 0.5))
        parts.append(has @ rare / rare.sum().clamp_min(1e-6))
    return torch.cat(parts).to(graph.x)


BEGINNING = 5
"""Letters of a word's beginning."""
_RUN = re.compile(r"[^\W_]+")
_ASKING = re.compile("什么|哪|谁|多少|几|吗|怎么|为何|是否|如何|的")


def _times(
    graph: GraphTensors, asked: Sequence[str], question: Tensor, found: EventLinks, row: Tensor
) -> Float[Tensor, " passages"]:
    """Whether the times of a passage's events have a day in common with the one asked about.

    1 if one has, -1 if none of some has, 0 where the question or the passage names no time.
    """
    result = graph.x.new_zeros(len(question))
    wanted = [_asked_time(text) for text in asked]
    if not any(wanted):
        return result
    agrees = torch.zeros(graph.num_nodes, device=graph.device).to(result)
    whose = graph.node_batch[found.dated].tolist()
    for event, when, number in zip(found.dated.tolist(), found.when.tolist(), whose, strict=True):
        time, known = wanted[number], _interval(graph.node_text[when])
        if time is not None and known is not None:
            agrees[event] = (
                max(float(agrees[event]), 1.0)
                if time.meets(known)
                else (float(agrees[event]) or -1.0)
            )
    at, value = row[found.passage[found.describes]], agrees[found.event[found.describes]]
    good = result.scatter_reduce(0, at, value, "amax")
    bad = result.scatter_reduce(0, at, value, "amin")
    return torch.where(good > 0, good, bad)


def _slots(
    graph: GraphTensors, asked: Sequence[str], passage: Tensor, question: Tensor,
    found: EventLinks, row: Tensor,
) -> Float[Tensor, " passages"]:  # fmt: skip
    """How much a passage has of the kind that is asked for: times, places, people, numbers."""
    kinds = torch.tensor(
        [[bool(p.search(text)) for p in (_WHEN, _WHERE, _WHO, _COUNT)] for text in asked],
        device=graph.device,
    )[question]
    told = found.describes
    at, event = row[found.passage[told]], found.event[told]
    dated = torch.zeros_like(found.located)
    dated[found.dated] = True
    people = torch.bincount(found.of_event, minlength=graph.num_nodes)

    def count(of_event: Tensor) -> Tensor:
        zero = graph.x.new_zeros(len(passage))
        return torch.log1p(zero.index_add(0, at, of_event[event].to(zero)))

    counted = kinds[:, 3].nonzero().squeeze(1).tolist()
    texts = passage.tolist()
    numbers = graph.x.new_zeros(len(passage))
    if counted:
        found_numbers = [float(len(_DIGITS.findall(graph.node_text[texts[p]]))) for p in counted]
        numbers[counted] = torch.tensor(found_numbers).to(numbers).log1p()
    values = torch.stack([count(dated), count(found.located), count(people), numbers], 1)
    return (values * kinds).sum(1)


@lru_cache(maxsize=4096)
def _asked_time(text: str) -> times.Interval | None:
    return times.first(text)


@lru_cache(maxsize=2**16)
def _interval(text: str) -> times.Interval | None:
    return times.Interval.of(text)


def redundant(
    score: Float[Tensor, " passages"], graph: GraphTensors, found: EventLinks
) -> Bool[Tensor, " passages"]:
    """Passages that only tell of events that a better passage tells of too."""
    _, row = passage_rows(graph)
    told = found.describes
    at, event = row[found.passage[told]], found.event[told]
    place = group_rank(score[at], event)
    first = torch.full((len(score),), len(score), device=score.device)
    first = first.scatter_reduce(0, at, place, "amin")
    return (first > 0) & (first < len(score))


FEATURES = (
    *SIGNALS, *(f"{name}, standardised" for name in SIGNALS), "reached", "together",
    "log rank", "best of line", "behind best of line", "of the best line", "length",
)  # fmt: skip
"""What a ranker is given."""


def features(
    value: Float[Tensor, "passages signals"],
    together: Float[Tensor, " passages"],
    graph: GraphTensors,
    found: EventLinks,
    hit: Bool[Tensor, " nodes"],
) -> Float[Tensor, "passages features"]:
    """Every feature of :data:`FEATURES`.

    Args:
        value: The signals.
        together: Their weighted sum.
        graph: A batch.
        found: Its events.
        hit: Passages that were reached through the graph.
    """
    passage, row = passage_rows(graph)
    question, questions = graph.node_batch[passage], graph.num_graphs
    standard = torch.stack([standardise(column, question, questions) for column in value.T], 1)
    at = row[found.passage]
    best = value.new_full((graph.num_nodes,), -torch.inf)
    best = best.scatter_reduce(0, found.event, together[at], "amax")
    line = together.scatter_reduce(0, at, best[found.event], "amax")
    most = value.new_full((questions,), -torch.inf).scatter_reduce(0, question, together, "amax")
    length = torch.tensor([len(graph.node_text[n]) for n in passage.tolist()], device=graph.device)
    others = [
        hit[passage].to(value), together, group_rank(together, question).to(value).log1p(), line,
        together - line, (line == most[question]).to(value), length.to(value) / 100,
    ]  # fmt: skip
    return torch.cat([value, standard, torch.stack(others, 1)], 1)
