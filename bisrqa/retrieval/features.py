"""What is known of each passage of a text graph before a ranker looks at it.

All of a batch of graphs at once. Passages are compared within their own question only, so that a
question's features do not depend on its company.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.passages import Links, best_neighbour, links
from bisrqa.retrieval.segments import group_rank, standardise
from bisrqa.text import normalise

LEADERS = 5
"""Passages that could be the first step of an answer in two."""
NAMES = (
    "cosine, standardised", "bm25, standardised", "cosine", "lexical and dense",
    "neighbour by title", "has a neighbour by title", "neighbour by entity",
    "has a neighbour by entity", "neighbour with its own neighbour", "near a leader",
    "near question and leader", "cosine of title", "title in question", "best of title",
    "mean of title", "behind best of title", "first of title", "place in title", "log rank",
    "mentioned by", "is mentioned", "mentions", "has mentions", "length", "title of the best",
)  # fmt: skip


class Passages(NamedTuple):
    """The passages of a batch and what first-stage retrieval thinks of them."""

    node: Int[Tensor, " passages"]
    """Node ids, rising."""
    question: Int[Tensor, " passages"]
    """Graph of each."""
    cosine: Float[Tensor, " passages"]
    """Of question and passage."""
    lexical: Float[Tensor, " passages"]
    """BM25, 0 without a shared word."""
    links: Links
    """Of the batch."""

    @classmethod
    def of(
        cls,
        graph: GraphTensors,
        question_x: Float[Tensor, "questions dim"],
        lexical: Float[Tensor, " passages"],
    ) -> "Passages":
        """Look at a batch of graphs."""
        node = (graph.node_kind == NodeKind.PASSAGE).nonzero().squeeze(1)
        question = graph.node_batch[node]
        cosine = (graph.x[node] * question_x[question]).sum(-1)
        return cls(node, question, cosine, lexical, links(graph))


def combined(passages: Passages, questions: int, *, lexical: float) -> Float[Tensor, " passages"]:
    """Dense score plus ``lexical`` times BM25, each standardised within the question."""
    score = standardise(passages.cosine, passages.question, questions)
    if lexical:
        score = score + lexical * standardise(passages.lexical, passages.question, questions)
    return score


def neighbour(
    base: Float[Tensor, " passages"],
    passages: Passages,
    through: Links,
    num_nodes: int,
    questions: int,
) -> tuple[Float[Tensor, " passages"], Float[Tensor, " passages"]]:
    """Best score of a passage of another title that shares an entity; and whether there is one.

    Without one it is the lowest score of the question's passages.
    """
    score = base.new_full((num_nodes,), -torch.inf)
    score[passages.node] = base
    value = best_neighbour(score, through)[0][passages.node]
    found = torch.isfinite(value)
    return torch.where(found, value, _lowest(base, passages, questions)), found.to(base)


def by_title(found: Links) -> tuple[Links, Links]:
    """Links to entities that are titles, and the others."""
    is_title = torch.zeros(len(found.title), dtype=torch.bool, device=found.title.device)
    is_title[found.title[found.passage]] = True
    named = is_title[found.entity]
    return tuple(
        Links(found.passage[some], found.entity[some], found.title) for some in (named, ~named)
    )  # pyright: ignore[reportReturnType]


def features(
    graph: GraphTensors,
    question_x: Float[Tensor, "questions dim"],
    asked: Sequence[str],
    passages: Passages,
    *,
    lexical: float,
) -> Float[Tensor, "passages features"]:
    """Every feature of :data:`NAMES`.

    Args:
        graph: A batch, one graph a question.
        question_x: Unit-norm embeddings.
        asked: The questions.
        passages: Of the batch.
        lexical: Weight of BM25 in the score that neighbours are compared by.
    """
    node, question, cosine, _, found = passages
    questions, nodes = len(asked), graph.num_nodes
    base = combined(passages, questions, lexical=lexical)
    titles, entities = by_title(found)
    near, has_near = neighbour(base, passages, titles, nodes, questions)
    other, has_other = neighbour(base, passages, entities, nodes, questions)
    far, _ = neighbour(base + 0.5 * near, passages, titles, nodes, questions)

    title = found.title[node]
    place = group_rank(base, question)
    x = graph.x[node]
    leader, is_leader = _leaders(place, question, questions)
    leader_x = x[leader]
    joint = torch.nn.functional.normalize(leader_x + question_x[:, None], dim=-1)
    fits = is_leader[question] & (title[leader][question] != title[:, None])
    to_leader = torch.einsum("pd,pld->pl", x, leader_x[question])
    to_joint = torch.einsum("pd,pld->pl", x, joint[question])

    best = base.new_full((nodes,), -torch.inf).scatter_reduce(0, title, base, "amax")[title]
    count = torch.bincount(title, minlength=nodes)[title]
    mean = base.new_zeros(nodes).index_add(0, title, base)[title] / count
    first = torch.full((nodes,), nodes, device=node.device)
    first = first.scatter_reduce(0, title, node, "amin")[title]
    same = group_rank(-node.to(base), title)  # place among the passages of its title

    lowest = _lowest(base, passages, questions)
    # Through titles only: what triples add besides stands in features of its own.
    mention = found.title[titles.passage] != titles.entity
    who, whom = titles.passage[mention], titles.entity[mention]
    score = base.new_full((nodes,), -torch.inf)
    score[node] = base
    told = base.new_full((nodes,), -torch.inf).scatter_reduce(0, whom, score[who], "amax")[title]
    of_title = base.new_full((nodes,), -torch.inf).scatter_reduce(0, title, base, "amax")
    tells = base.new_full((nodes,), -torch.inf).scatter_reduce(0, who, of_title[whom], "amax")[node]

    spoken = [f" {normalise(text)} " for text in asked]
    where = question.tolist()
    names = [normalise(graph.node_text[t]) for t in title.tolist()]
    in_question = [bool(n) and f" {n} " in spoken[q] for n, q in zip(names, where, strict=True)]
    length = [len(graph.node_text[n].split()) for n in node.tolist()]
    top_title = title[leader[:, 0]][question] if len(node) else title
    title_cosine = (graph.x[title] * question_x[question]).sum(-1)
    columns = [
        standardise(cosine, question, questions),
        standardise(passages.lexical, question, questions),
        cosine,
        base,
        near - lowest,
        has_near,
        other - lowest,  # 0 without one: where no question has any, nothing is learnt of it
        has_other,
        far,
        to_leader.masked_fill(~fits, -1).amax(1),
        to_joint.masked_fill(~fits, -1).amax(1),
        title_cosine,
        torch.tensor(in_question, device=node.device).to(base),
        best,
        mean,
        base - best,
        (node == first).to(base),
        same.to(base) / 5,
        torch.log1p(place.to(base)),
        torch.where(torch.isfinite(told), told - lowest, 0),
        torch.isfinite(told).to(base),
        torch.where(torch.isfinite(tells), tells - lowest, 0),
        torch.isfinite(tells).to(base),
        torch.tensor(length, device=node.device).to(base) / 30,
        (title == top_title).to(base),
    ]
    return torch.stack(columns, 1)


def _lowest(base: Tensor, passages: Passages, questions: int) -> Float[Tensor, " passages"]:
    low = base.new_full((questions,), torch.inf)
    return low.scatter_reduce(0, passages.question, base, "amin")[passages.question]


def _leaders(
    place: Tensor, question: Tensor, questions: int
) -> tuple[Int[Tensor, "questions leaders"], Tensor]:
    """The best passages of each question, as rows; and which of these places are taken."""
    leader = torch.zeros(questions, LEADERS, dtype=torch.long, device=place.device)
    taken = torch.zeros_like(leader, dtype=torch.bool)
    rows = (place < LEADERS).nonzero().squeeze(1)
    leader[question[rows], place[rows]] = rows
    taken[question[rows], place[rows]] = True
    return leader, taken
