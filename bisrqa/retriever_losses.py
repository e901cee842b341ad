"""What a trained retriever is trained for, question by question."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bisrqa.config import LearningConfig
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.learned import LearnedWalk
from bisrqa.retrieval.paths import distances, on_shortest_paths
from bisrqa.retrieval.segments import segment_sum
from bisrqa.retrieval.triple_scorer import TripleScorer


class Row(NamedTuple):
    """A question that can be learnt from."""

    graph: GraphTensors
    """Without embeddings of relations, and of nodes where only ``cosine`` counts: they would fill
    the memory."""
    question_x: Float[Tensor, " dim"]
    relation_x: Float[Tensor, "relations dim"]
    cosine: Float[Tensor, " nodes"]
    topics: Bool[Tensor, " nodes"]
    golds: Bool[Tensor, " nodes"]
    """Without topics and mediators."""
    key: Int[Tensor, ""]
    """What the question is known by later."""


class _Batch(NamedTuple):
    graph: GraphTensors
    question_x: Float[Tensor, "questions dim"]
    relation_x: Float[Tensor, "relations dim"]
    cosine: Float[Tensor, " nodes"]
    topics: Bool[Tensor, " nodes"]
    golds: Bool[Tensor, " nodes"]


def _collate(batch: Sequence[Row]) -> _Batch:
    return _Batch(
        GraphTensors.collate([row.graph for row in batch]),
        torch.stack([row.question_x for row in batch]),
        *(
            torch.cat([getattr(row, name) for row in batch])
            for name in ("relation_x", "cosine", "topics", "golds")
        ),
    )


def of_walk(
    model: LearnedWalk, batch: Sequence[Row], config: LearningConfig
) -> Float[Tensor, "members questions"]:
    """How far each gold falls behind the nodes that are none, its mean over a question's golds.

    ``log(1 + sum of z over those / z of the gold)``, of every member's own walk.
    """
    graph, question_x, relation_x, cosine, topics, golds = _collate(batch)
    score = model(graph, question_x, relation_x, cosine[None], topics[None], config.steps)
    others = ~topics & ~golds & (graph.node_kind != NodeKind.MEDIATOR)
    return behind(score, golds, others, graph.node_batch, len(batch))


def behind(
    score: Float[Tensor, "members nodes"],
    golds: Bool[Tensor, " nodes"],
    others: Bool[Tensor, " nodes"],
    question: Int[Tensor, " nodes"],
    questions: int,
) -> Float[Tensor, "members questions"]:
    """Golds do not compete with one another: each is held against what is none."""
    rest, mine = score[:, others], question[others]
    most = score.new_full((len(score), questions), -1e9)
    most = most.scatter_reduce(1, mine.expand_as(rest), rest.detach(), "amax")
    total = torch.zeros_like(most).index_add(1, mine, torch.exp(rest - most[:, mine]))
    against = most + torch.log(total.clamp_min(1e-20))
    asked = question[golds]
    loss = nn.functional.softplus(against[:, asked] - score[:, golds])
    count = torch.bincount(asked, minlength=questions).to(loss)
    return torch.zeros_like(most).index_add(1, asked, loss / count[asked])


def of_triples(
    model: TripleScorer, batch: Sequence[Row], config: LearningConfig
) -> Float[Tensor, "members questions"]:
    """Cross-entropy of whether a triple is on a shortest way from the topics to a gold.

    Its mean over the triples of a question; those on the way count ``positive_weight`` times.
    """
    graph, question_x, _, _, topics, golds = _collate(batch)
    _, on_way = on_shortest_paths(graph, distances(graph, topics), golds)
    logit = model(graph, question_x, topics)
    loss = nn.functional.binary_cross_entropy_with_logits(
        logit, on_way.to(logit).expand_as(logit), reduction="none",
        pos_weight=logit.new_tensor(config.positive_weight),
    )  # fmt: skip
    edges = graph.edge_ptr.diff().clamp_min(1)
    return segment_sum(loss, graph.edge_ptr) / edges
