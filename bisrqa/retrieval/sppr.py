"""SPPR: a personalized PageRank whose restart and transitions follow the question.

This is BiS-RQA's explicit filtering. For a question q with unit-norm embeddings throughout::

    p    = (1 - m) softmax(cos(q, x_i) / tau_p) + m [i is a topic] / number of topics
    w_e  = exp(cos(q, r_e) / tau_w)
    P_uv = sum of w over edges between u and v / sum of w over all edges at u
    s   <- (1 - c) P^T s + c p

Edges are walked both ways. Mass on a node whose edges all weigh nothing goes back to p, so s
keeps summing to 1.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.segments import segment_softmax, segment_sum


class SPPRResult(NamedTuple):
    """Where the walk came to rest."""

    scores: Float[Tensor, "questions nodes"]
    """Mass per node; sums to 1 for each question."""
    steps: Int[Tensor, "questions graphs"]
    """Steps taken."""
    residual: Float[Tensor, "questions graphs"]
    """L1 change of the last step; above the tolerance where ``max_steps`` ended the walk."""


def sppr(
    graph: GraphTensors,
    personalization: Float[Tensor, "questions nodes"],
    relation_weight: Float[Tensor, "questions relations"],
    *,
    restart: float = 0.15,
    tolerance: float = 1e-6,
    max_steps: int = 200,
) -> SPPRResult:
    """Walk a graph from each question's personalization until the mass settles.

    The graph is either one graph shared by all questions, or a block-diagonal batch in which each
    question has its own block; then there is one row, and mass, steps and convergence are counted
    for each block on its own. A block stops at its own step, so a question's result does not
    depend on what else is in the batch.

    Args:
        graph: Only ``edge_index``, ``edge_type`` and the offsets are read.
        personalization: Non-negative; sums to 1 over each block that has nodes.
        relation_weight: Non-negative weight of an edge of each relation.
        restart: In (0, 1). Larger stays closer to the personalization.
        tolerance: On the L1 change of a block's unit mass. Single precision stalls near 1e-7.
        max_steps: Most steps taken.

    Raises:
        ValueError: Values that are negative or not finite, or rows that do not sum to 1; names
        question and block.
    """
    if not 0.0 < restart < 1.0:
        raise ValueError(f"restart must lie in (0, 1), got {restart}")
    graphs, node_batch = graph.num_graphs, graph.node_batch
    _check(
        personalization,
        relation_weight,
        node_batch,
        graph.node_ptr.diff() > 0,
        graph.relation_batch,
    )
    source, target, edge, norm = _both_ways(graph, relation_weight)
    dangling = norm == 0
    # Not by way of 1 / norm, which is infinite where weights are below the normal numbers.
    share = relation_weight[:, graph.edge_type][:, edge]
    share = share / torch.where(dangling, 1.0, norm)[:, source]

    scores = personalization
    steps = torch.zeros(len(scores), graphs, dtype=torch.long, device=scores.device)
    residual = (
        torch.where(graph.node_ptr.diff() > 0, torch.inf, 0.0)
        .to(scores)
        .expand(len(scores), graphs)
    )
    for _ in range(max_steps):
        active = residual >= tolerance
        if not active.any():
            break
        flow = share * scores[:, source]
        spread = torch.zeros_like(scores).index_add(1, target, flow)
        lost = segment_sum(scores * dangling, node_batch, graphs)
        new = (1 - restart) * (
            spread + lost[:, node_batch] * personalization
        ) + restart * personalization
        # Rounding would let the mass drift by about 1e-7 a step: hold it at 1.
        new = (
            new
            / segment_sum(new, node_batch, graphs).clamp_min(torch.finfo(new.dtype).tiny)[
                :, node_batch
            ]
        )
        new = torch.where(active[:, node_batch], new, scores)
        change = segment_sum((new - scores).abs(), node_batch, graphs).detach()
        residual = torch.where(active, change, residual)
        steps = steps + active
        scores = new
    return SPPRResult(scores, steps, residual)


def edge_scores(
    graph: GraphTensors,
    scores: Float[Tensor, "questions nodes"],
    relation_weight: Float[Tensor, "questions relations"],
) -> Float[Tensor, "questions edges"]:
    """How much an edge matters: the mass of its weaker end times the weight of its relation.

    Scaled so that the best edge of each block has 1. The mass that flows over an edge would
    favour the many leaves that hang on a big node by the same relation, which say little.
    """
    head, tail = graph.edge_index
    weight = relation_weight[:, graph.edge_type]
    value = weight * torch.minimum(scores[:, head], scores[:, tail])
    batch = graph.edge_batch.expand_as(value)
    best = value.new_zeros(len(value), graph.num_graphs).scatter_reduce(1, batch, value, "amax")
    return value / torch.where(best > 0, best, 1.0)[:, graph.edge_batch]


def personalization(
    graph: GraphTensors,
    similarity: Float[Tensor, "questions nodes"],
    topics: Bool[Tensor, "questions nodes"],
    config: RetrieverConfig,
) -> Float[Tensor, "questions nodes"]:
    """Restart mass of each node: semantic over named nodes, mixed with the topics if any.

    With ``linear`` a block may be without any positive similarity; its semantic mass is then
    spread evenly over its named nodes (over all nodes where none has a name).

    Args:
        graph: One graph or a block-diagonal batch.
        similarity: Cosine of question and node, each in its block.
        topics: True on topic entities.
        config: ``personalization``, ``node_temperature`` and ``topic_mass`` are read.
    """
    batch, graphs = graph.node_batch, graph.num_graphs
    named = graph.node_kind != NodeKind.MEDIATOR
    if config.personalization == "softmax":
        semantic = segment_softmax(similarity / config.node_temperature, batch, graphs, named)
    else:
        semantic = _share(similarity.clamp_min(0) * named, batch, graphs)
    evenly = _share(named.expand_as(similarity).to(similarity), batch, graphs)
    evenly = _where_empty(evenly, _share(torch.ones_like(similarity), batch, graphs), batch, graphs)
    semantic = _where_empty(semantic, evenly, batch, graphs)
    topic = _share(topics.to(similarity), batch, graphs)
    mixed = (1 - config.topic_mass) * semantic + config.topic_mass * topic
    return _where_empty(topic, semantic, batch, graphs, otherwise=mixed)


def relation_weights(
    similarity: Float[Tensor, "questions relations"], config: RetrieverConfig
) -> Float[Tensor, "questions relations"]:
    """Weight of an edge of each relation, at most 1: a common factor cancels in the walk."""
    if config.reweight == "linear":
        return similarity.clamp_min(0)
    return torch.exp((similarity - 1) / config.relation_temperature)


def _both_ways(
    graph: GraphTensors, relation_weight: Float[Tensor, "questions relations"]
) -> tuple[Tensor, Tensor, Tensor, Float[Tensor, "questions nodes"]]:
    """Each edge once in each direction (a self-loop once), and the total weight at each node."""
    head, tail = graph.edge_index
    back = (head != tail).nonzero().squeeze(1)
    edge = torch.cat([torch.arange(graph.num_edges, device=head.device), back])
    source, target = torch.cat([head, tail[back]]), torch.cat([tail, head[back]])
    weight = relation_weight[:, graph.edge_type][:, edge]
    norm = weight.new_zeros(len(weight), graph.num_nodes).index_add(1, source, weight)
    return source, target, edge, norm


def _share(value: Tensor, batch: Tensor, graphs: int) -> Tensor:
    total = segment_sum(value, batch, graphs)
    return value / torch.where(total > 0, total, 1.0)[:, batch]


def _where_empty(
    value: Tensor, fallback: Tensor, batch: Tensor, graphs: int, otherwise: Tensor | None = None
) -> Tensor:
    """``fallback`` in blocks where ``value`` has no mass, ``otherwise`` or ``value`` in others."""
    empty = segment_sum(value, batch, graphs) == 0
    return torch.where(empty[:, batch], fallback, value if otherwise is None else otherwise)


def _check(
    p: Tensor, weight: Tensor, batch: Tensor, has_nodes: Tensor, relation_batch: Tensor
) -> None:
    if len(p) != len(weight):
        raise ValueError(
            f"personalization is for {len(p)} questions, relation_weight for {len(weight)}"
        )
    for name, value, block in (
        ("personalization", p, batch),
        ("relation_weight", weight, relation_batch),
    ):
        bad = ~(torch.isfinite(value) & (value >= 0))
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            place = f"question {row}, graph {int(block[column])}, position {column}"
            raise ValueError(
                f"{name} must be finite and not negative, "
                f"got {value[row, column].item()} at {place}"
            )
    total = segment_sum(p, batch, len(has_nodes))
    off = has_nodes & ((total - 1).abs() > 1e-4)
    if off.any():
        row, block = off.nonzero()[0].tolist()
        raise ValueError(
            f"personalization of question {row}, graph {block} must sum to 1, "
            f"got {total[row, block].item():.6f}"
        )
