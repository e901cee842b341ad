"""Evidence in words: the lines of the hard prompt, before any tokenizer.

An edge between named nodes reads ``head | relation | tail``. The edges of a mediator become one
line, from a topic or its best-scored neighbour: ``subject | relation | relation other, relation
other``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bisrqa import relations
from bisrqa.config import PromptConfig
from bisrqa.data.records import is_bare_id
from bisrqa.examples import Example
from bisrqa.graph.tensors import NodeKind
from bisrqa.heads.base import Evidence
from bisrqa.retrieval.passages import is_structure
from bisrqa.retrieval.subgraph import Reason
from bisrqa.text import normalise, stated

TOGETHER = "; "
"""Between the ends that share a line."""


class Fact(NamedTuple):
    """One line of the hard prompt."""

    text: str
    edges: tuple[int, ...]
    """The edges that it states; a mediator's edges are stated together."""
    score: float
    """The best of its edges', or its passage's."""
    passages: tuple[int, ...] = ()
    """The passages that it is the text of."""
    place: int = 0
    """Where it is read among the lines that fit; lines of equal place stay in order."""


def lines_of(evidence: Evidence, config: PromptConfig) -> list[Fact]:
    """All that may be stated, best first: passages where there are some, and triples.

    Triples without passages, or ``evidence: triples``, are :func:`facts`.
    """
    if not evidence.passages or config.evidence == "triples":
        return facts(evidence, config.relation_names, config.facts_together)
    reading = {node: at for at, node in enumerate(evidence.reading or evidence.passages)}
    texts = [
        Fact(
            " ".join(evidence.graph.node_text[node].split()),
            (),
            float(evidence.node_score[node]),
            (node,),
            reading[node],
        )
        for node in evidence.passages
    ]
    if config.evidence == "text":
        return texts
    triples = facts(evidence, config.relation_names, config.facts_together)
    return texts + [fact._replace(place=len(texts)) for fact in triples]


def stated_golds(example: Example, lines: Sequence[Fact]) -> list[str]:
    """The golds that some lines of the prompt hold: as an end of a triple, or in a passage."""
    graph = example.evidence.graph
    ends = graph.edge_index[:, [edge for line in lines for edge in line.edges]]
    names = {graph.node_text[node] for node in ends.flatten().tolist()}
    texts = [normalise(line.text) for line in lines if line.passages]
    return [
        gold
        for gold in dict.fromkeys(example.question.answers)
        if not is_bare_id(gold)
        and (gold in names or any(stated(normalise(gold), text) for text in texts))
    ]


def golds_as_told(example: Example, lines: Sequence[Fact]) -> list[str]:
    """Those of :func:`stated_golds`, by where they are first named in the lines."""
    text = "\n".join(line.text for line in lines)
    place = {gold: text.find(" ".join(gold.split())) for gold in stated_golds(example, lines)}
    # A passage may spell a gold in another way: such a gold comes last.
    return sorted(place, key=lambda gold: (place[gold] < 0, place[gold]))


def facts(evidence: Evidence, relation_names: str = "short", together: int = 1) -> list[Fact]:
    """Put the kept triples into words, best first.

    Args:
        evidence: Ids are never shown.
        relation_names: What relations are called is :mod:`bisrqa.relations`' matter; with
            ``readable`` a mediator's line tells one direction of those that go both ways.
        together: At most so many facts that say the same of one end share a line.
    """
    graph = evidence.graph
    name = [" ".join(text.split()) for text in graph.node_text]
    mediator = (graph.node_kind == NodeKind.MEDIATOR).tolist()
    edges = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))
    relation = relations.names(
        [" ".join(text.split()) for text in graph.relation_text],
        relation_names,
        # What leads away from a mediator is clear from what leads to it.
        {(kind, mediator[tail]) for head, tail, kind in edges if not mediator[head]},
    )
    one_way = relation_names == "readable"
    score = evidence.edge_score.tolist()
    # Topics first, then by walk score: whom a mediator's line is about.
    standing = (-evidence.node_score + 2.0 * (evidence.reason != Reason.TOPIC)).tolist()

    groups: dict[tuple[bool, int], list[int]] = {}
    structure = is_structure(graph).tolist()
    for edge, (head, tail, _) in enumerate(edges):
        if structure[edge]:  # that a text names an entity is no fact
            continue
        joint = head if mediator[head] else tail
        groups.setdefault((True, joint) if mediator[joint] else (False, edge), []).append(edge)
    said: dict[_Said, list[int]] = {}
    for (joined, joint), members in groups.items():
        if not joined:
            head, tail, kind = edges[joint]
            told = _Said(name[head], relation[kind], name[tail])
        else:
            others: dict[int, list[tuple[str, bool]]] = {}
            # An edge to a further mediator has nobody to name.
            members = [e for e in members if not (mediator[edges[e][0]] and mediator[edges[e][1]])]
            for edge in members:
                head, tail, kind = edges[edge]
                others.setdefault(tail if head == joint else head, []).append(
                    (relation[kind], head == joint)
                )
            if len(others) < 2:
                continue
            subject = min(others, key=lambda node: (standing[node], node))
            rest = [
                f"{_told(uses, True if one_way else None)} {name[other]}"
                for other, uses in others.items()
                if other != subject
            ]
            about = _told(others[subject], False if one_way else None)
            told = _Said(name[subject], about, ", ".join(rest))
        # Two mediators may say the same: one line states both.
        said.setdefault(told, []).extend(members)
    best = {told: max(score[edge] for edge in members) for told, members in said.items()}
    lines = sorted(said, key=lambda told: -best[told])
    return [
        Fact(text, tuple(edge for told in shared for edge in said[told]), best[shared[0]])
        for text, shared in _shared(lines, together)
    ]


class _Said(NamedTuple):
    subject: str
    relation: str
    object: str


def _shared(said: list[_Said], most: int) -> list[tuple[str, list[_Said]]]:
    """Lines, each with what it says: what has relation and one end in common stands together.

    Args:
        said: In the order that is kept; a line stands where the first that it says would.
        most: How many of them a line may hold.
    """
    if most == 1:
        return [(f"{s.subject} | {s.relation} | {s.object}", [s]) for s in said]
    of_subject = Counter((s.subject, s.relation) for s in said)
    of_object = Counter((s.relation, s.object) for s in said)
    lines: list[tuple[bool, list[_Said]]] = []
    open_lines: dict[tuple[bool, str, str], list[_Said]] = {}
    for one in said:
        ahead = of_subject[one.subject, one.relation] >= of_object[one.relation, one.object]
        key = (ahead, one.relation, one.subject if ahead else one.object)
        line = open_lines.get(key)
        if line is None or len(line) == most:
            line = open_lines[key] = []
            lines.append((ahead, line))
        line.append(one)
    texts = []
    for ahead, line in lines:
        ends = TOGETHER.join(s.object if ahead else s.subject for s in line)
        subject, obj = (line[0].subject, ends) if ahead else (ends, line[0].object)
        texts.append((f"{subject} | {line[0].relation} | {obj}", line))
    return texts


def _told(uses: Sequence[tuple[str, bool]], away: bool | None) -> str:
    """Relations between a mediator and one of its ends.

    Args:
        uses: Their names, and whether they lead away from the mediator.
        away: Leave out those of the other direction, which say the same, where there are both.
    """
    wanted = [name for name, leads_away in uses if leads_away == away]
    return " / ".join(dict.fromkeys(wanted or [name for name, _ in uses]))
