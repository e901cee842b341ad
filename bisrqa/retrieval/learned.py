"""What SPPR learns: how much an edge of a relation matters to a question, and its own scalars.

Beyond the paper. A small network sees question and relation and corrects the cosine that the plain
walk goes by, along an edge and against it::

    log w(q, r, way) = cos(q, r) / tau_w + f(q, r)[way]
    s                = SPPR with these weights, and with trained tau_p, topic mass and restart
    log z(v)         = a log s(v) + log E[exp g(q, r, way)] + b cos(q, x_v)

The mean is over the arcs that a last step of the walk takes to v, each by the mass that it brings:
f says where to walk, g over what an answer is reached. Untrained, f and g are 0 and the walk is
SPPR. What ranks is ``(1 - doubt) softmax z + doubt s``: far down, where z has given up, the walk's
own mass still tells nodes apart.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bisrqa.config import RetrieverConfig
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.segments import segment_softmax, segment_sum, spread
from bisrqa.retrieval.sppr import with_topics
from bisrqa.retrieval.trained import SCALE, Trained
from bisrqa.walk import Arrivals, WalkGraph, arrivals, sppr

SMALLEST = -60.0
"""Log of the smallest weight beside the largest of a question."""
LEAST_MASS = 1e-9
TINY = 1e-20


class Relations(NamedTuple):
    """Of each relation, for each member; logarithms, until :func:`arcs` makes numbers of them."""

    along: Float[Tensor, "rows relations"]
    """Weight of an edge that is walked from head to tail."""
    against: Float[Tensor, "rows relations"]
    worth_along: Float[Tensor, "rows relations"]
    """What it says of a node that it leads there."""
    worth_against: Float[Tensor, "rows relations"]


class Scalars(NamedTuple):
    """Of each member, or their mean."""

    node: Any
    """Log of 1 / tau_p."""
    topic: Any
    """Log-odds of the topic mass."""
    restart: Any
    """Log-odds of going back."""
    mass: Any
    """a above."""
    cosine: Any
    """b above."""


class LearnedWalk(Trained):
    """Some small networks side by side, with scalars of their own; in use their mean counts.

    Args:
        dim: Width of the text embeddings.
        hidden: Width of the networks.
        members: How many.
        dropout: In training.
        doubt: Share of the walk's own mass in what ranks.
        seen: How many questions all members but one have learnt from.
    """

    head = "bisrqa"

    def __init__(
        self,
        dim: int,
        *,
        hidden: int = 256,
        members: int = 3,
        dropout: float = 0.4,
        doubt: float = 0.3,
        seen: int = 0,
    ):
        super().__init__(members, seen, {"dim": dim, "hidden": hidden, "doubt": doubt})
        self.doubt, self.dropout = doubt, dropout
        matrix = self.matrix
        self.question, self.relation = matrix(dim, hidden), matrix(dim, hidden)
        self.of_question, self.of_relation = matrix(hidden, hidden), matrix(hidden, hidden)
        self.of_both, self.of_cosine = matrix(hidden, hidden), matrix(1, hidden)
        self.inner_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.outer = nn.Parameter(torch.zeros(members, hidden, len(Relations._fields)))
        self.outer_bias = nn.Parameter(torch.zeros(members, 1, len(Relations._fields)))
        plain = RetrieverConfig()
        start = Scalars(
            node=-math.log(plain.node_temperature),
            topic=math.log(plain.topic_mass / (1 - plain.topic_mass)),
            restart=math.log(plain.restart / (1 - plain.restart)),
            mass=1.0,
            cosine=0.0,
        )
        self.scalars = nn.Parameter(torch.tensor(start).repeat(members, 1))
        self.sharpness = nn.Parameter(
            torch.full((members, 1), -math.log(plain.relation_temperature))
        )
        """Log of 1 / tau_w."""

    def relations(
        self,
        question_x: Float[Tensor, "questions dim"],
        relation_x: Float[Tensor, "relations dim"],
        question: Int[Tensor, " pairs"],
        relation: Int[Tensor, " pairs"],
    ) -> Relations:
        """Look at pairs of a question and a relation, with every member.

        Args:
            question_x: Unit-norm.
            relation_x: Unit-norm.
            question: Of each pair.
            relation: Of each pair.

        Raises:
            ValueError: Embeddings of another width than it was trained on.
        """
        self.fits(question_x)
        drop = nn.functional.dropout
        asked = question_x @ self.question * SCALE  # [members, questions, hidden]
        named = relation_x @ self.relation * SCALE
        cosine = (question_x[question] * relation_x[relation]).sum(-1)[:, None]
        asked, named = (drop(t, self.dropout, self.training) for t in (asked, named))
        inner = (asked @ self.of_question)[:, question] + (named @ self.of_relation)[:, relation]
        inner = inner + (asked[:, question] * named[:, relation]) @ self.of_both
        inner = nn.functional.gelu(inner + cosine @ self.of_cosine + self.inner_bias)
        found = drop(inner, self.dropout, self.training) @ self.outer + self.outer_bias
        along, against, *worth = found.unbind(-1)
        plain = cosine[:, 0] * self.sharpness.exp()
        return Relations(along + plain, against + plain, *worth)

    def mean(self, relations: Relations, share: Float[Tensor, "members pairs"]) -> Relations:
        """The members' mean, as one row: a walk is taken once, however many they are.

        Args:
            relations: What the members say of pairs.
            share: How much each counts, of :meth:`shares` for the question of each pair.
        """
        return Relations(*((value * share).sum(0, keepdim=True) for value in relations))

    def ranking(
        self,
        log_score: Float[Tensor, "rows nodes"],
        mass: Float[Tensor, "rows nodes"],
        candidates: Bool[Tensor, "rows nodes"],
        ptr: Int[Tensor, " graphs_and_one"],
    ) -> Float[Tensor, "rows nodes"]:
        """What nodes are ranked by, at most 1 in each graph; above 0 on all with a mass.

        Args:
            log_score: Of the head of this file.
            mass: Of the walk.
            candidates: True on the nodes that may be answers.
            ptr: Where each graph's nodes start, and the end.
        """
        sure = segment_softmax(log_score, ptr, candidates)
        total = segment_sum(mass * candidates, ptr).clamp_min(TINY)
        own = (mass / spread(total, ptr, mass.shape[1])).clamp_max(1.0)
        return (1 - self.doubt) * sure + self.doubt * own

    def settled(self, config: RetrieverConfig) -> RetrieverConfig:
        """The same settings with the trained scalars, the members' mean, in their places."""
        scalars = Scalars(*self.scalars.detach().mean(0).double())
        return replace(
            config,
            learned=None,
            personalization="softmax",
            reweight="exp",
            node_temperature=float(torch.exp(-scalars.node)),
            topic_mass=float(torch.sigmoid(scalars.topic)),
            restart=float(torch.sigmoid(scalars.restart)),
        )

    def forward(
        self,
        graph: GraphTensors,
        question_x: Float[Tensor, "questions dim"],
        relation_x: Float[Tensor, "relations dim"],
        cosine: Float[Tensor, "one nodes"],
        topics: Bool[Tensor, "one nodes"],
        steps: int,
    ) -> Float[Tensor, "members nodes"]:
        """``log z`` of every member, with gradients, for a batch with a graph for each question.

        Args:
            graph: The batch, whose embeddings are not read.
            question_x: Unit-norm.
            relation_x: Unit-norm.
            cosine: Of each node with its question.
            topics: True on topics.
            steps: So many of the walk.
        """
        scalars = Scalars(*self.scalars.T)
        named = (graph.node_kind != NodeKind.MEDIATOR)[None].expand(self.members, -1)
        semantic = segment_softmax(cosine * scalars.node.exp()[:, None], graph.node_ptr, named)
        p = with_topics(semantic, topics, graph.node_ptr, scalars.topic.sigmoid()[:, None])
        p = p / spread(segment_sum(p, graph.node_ptr), graph.node_ptr, graph.num_nodes).clamp_min(
            TINY
        )
        rows = torch.arange(graph.num_relations, device=graph.device)
        relations = self.relations(question_x, relation_x, graph.relation_batch, rows)
        known = arcs(relations, graph.relation_batch, graph.num_graphs)
        walk = WalkGraph.of(graph)
        mass = sppr(
            walk, p, known.along, inverse_weight=known.against, restart=scalars.restart.sigmoid(),
            max_steps=steps, backend="torch",
        ).scores  # fmt: skip
        arrived = arrivals(walk, mass, *known)
        return log_score(mass, arrived, cosine, self.scalars.T)


def arcs(relations: Relations, block: Int[Tensor, " relations"], blocks: int) -> Relations:
    """The same as numbers, at most 1 in each block of relations: only ratios matter.

    Args:
        relations: Logarithms.
        block: Graph of each relation; 0 everywhere where a row is a question.
        blocks: How many.
    """
    weight = _bounded(relations.along, relations.against, block, blocks)
    worth = _bounded(relations.worth_along, relations.worth_against, block, blocks)
    return Relations(*weight, *worth)


def _bounded(
    along: Float[Tensor, "rows relations"],
    against: Float[Tensor, "rows relations"],
    block: Int[Tensor, " relations"],
    blocks: int,
) -> tuple[Float[Tensor, "rows relations"], Float[Tensor, "rows relations"]]:
    both = torch.maximum(along, against).detach()
    most = both.new_full((len(both), blocks), -torch.inf)
    most = most.scatter_reduce(1, block.expand(len(both), -1), both, "amax")[:, block]
    one, other = (torch.exp((log - most).clamp_min(SMALLEST)) for log in (along, against))
    return one, other


def edge_shares(
    graph: GraphTensors,
    node: Float[Tensor, "one nodes"],
    mass: Float[Tensor, "one nodes"],
    arrived: Arrivals,
    known: Relations,
) -> Float[Tensor, " edges"]:
    """Score of each edge of a batch: the better end's, times how much of it came over the edge.

    Args:
        graph: The batch.
        node: Scores of nodes, 0 where an edge should not count for leading.
        mass: Of the walk.
        arrived: Of the same mass.
        known: Of :func:`arcs`, what ``arrived`` was weighed with.
    """
    head, tail = graph.edge_index
    sent = (mass / arrived.leaving)[0]
    share = node[0] / (arrived.worth[0] + TINY)
    there = sent[head] * (known.along * known.worth_along)[0, graph.edge_type] * share[tail]
    back = sent[tail] * (known.against * known.worth_against)[0, graph.edge_type] * share[head]
    return torch.maximum(there, back).clamp_min(torch.finfo(there.dtype).tiny)


def log_score(
    mass: Float[Tensor, "rows nodes"],
    arrived: Arrivals,
    cosine: Float[Tensor, "*rows nodes"],
    scalars: Float[Tensor, " *kinds"],
) -> Float[Tensor, "rows nodes"]:
    """``log z`` of the head of this file."""
    *_, a, b = scalars.reshape(5, -1, 1)
    worth = torch.log((arrived.worth + TINY) / (arrived.mass + TINY))
    return a * torch.log(mass + LEAST_MASS) + worth + b * cosine
