"""What the question makes of a graph: where the walk restarts and what its edges weigh.

With :func:`bisrqa.walk.sppr` this is BiS-RQA's explicit filtering. For a question q with unit-norm
embeddings throughout::

    p    = (1 - m) softmax(cos(q, x_i) / tau_p) + m [i is a topic] / number of topics
    w_e  = exp(cos(q, r_e) / tau_w)
    P_uv = sum of w over edges between u and v / sum of w over all edges at u
    s   <- (1 - c) P^T s + c p

Edges are walked both ways.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.graph.tensors import GraphTensors
from bisrqa.retrieval.segments import segment_softmax, segment_sum, spread


def edge_scores(
    graph: GraphTensors,
    scores: Float[Tensor, "rows nodes"],
    relation_weight: Float[Tensor, "rows relations"],
    question: Int[Tensor, " kept"],
    edge: Int[Tensor, " kept"],
) -> Float[Tensor, " kept"]:
    """How much an edge matters: the mass of its weaker end times the weight of its relation.

    Scaled so that the best edge of each question has 1. The mass that flows over an edge would
    favour the many leaves that hang on a big node by the same relation, which say little.

    Args:
        graph: One graph, or a batch.
        scores: One row a question, or a single one for a batch.
        relation_weight: The same.
        question: Which question, or graph of the batch, each edge is kept for.
        edge: Its id.
    """
    row = question if len(scores) > 1 else torch.zeros_like(question)
    head, tail = graph.edge_index[:, edge]
    value = relation_weight[row, graph.edge_type[edge]]
    value = value * torch.minimum(scores[row, head], scores[row, tail])
    graphs = max(len(scores), graph.num_graphs)
    best = value.new_zeros(graphs).scatter_reduce(0, question, value, "amax")
    return value / torch.where(best > 0, best, 1.0)[question]


def personalization(
    similarity: Float[Tensor, "rows nodes"],
    topics: Bool[Tensor, "rows nodes"],
    named: Bool[Tensor, "*rows nodes"],
    ptr: Int[Tensor, " graphs_and_one"],
    config: RetrieverConfig,
) -> Float[Tensor, "rows nodes"]:
    """Restart mass of each node: semantic over named nodes, mixed with the topics if any.

    With ``linear`` a block may be without any positive similarity; its semantic mass is then
    spread evenly over its named nodes (over all nodes where none has a name).

    Args:
        similarity: Cosine of question and node, each in its block.
        topics: True on topic entities.
        named: True on the nodes that may get semantic mass.
        ptr: Where each block's nodes start, and the end.
        config: ``personalization``, ``node_temperature`` and ``topic_mass`` are read.
    """
    if config.personalization == "softmax":
        semantic = segment_softmax(similarity / config.node_temperature, ptr, named)
    else:
        semantic = _share(similarity.clamp_min(0) * named, ptr)
    if (segment_sum(semantic, ptr) == 0).any():
        evenly = _share(named.expand_as(similarity).to(similarity), ptr)
        evenly = _where_empty(evenly, _share(torch.ones_like(similarity), ptr), ptr)
        semantic = _where_empty(semantic, evenly, ptr)
    return with_topics(semantic, topics, ptr, config.topic_mass)


def with_topics(
    semantic: Float[Tensor, "rows nodes"],
    topics: Bool[Tensor, "*rows nodes"],
    ptr: Int[Tensor, " graphs_and_one"],
    topic_mass: float | Float[Tensor, "rows one"],
) -> Float[Tensor, "rows nodes"]:
    """Put a share of each block's restart mass on its topics, where it has some."""
    topic = _share(topics.to(semantic), ptr)
    mixed = (1 - topic_mass) * semantic + topic_mass * topic
    return _where_empty(topic, semantic, ptr, otherwise=mixed)


def relation_weights(
    similarity: Float[Tensor, "questions relations"], config: RetrieverConfig
) -> Float[Tensor, "questions relations"]:
    """Weight of an edge of each relation, at most 1: a common factor cancels in the walk."""
    if config.reweight == "none":
        return torch.ones_like(similarity)
    if config.reweight == "linear":
        return similarity.clamp_min(0)
    return torch.exp((similarity - 1) / config.relation_temperature)


def _share(value: Tensor, ptr: Tensor) -> Tensor:
    total = segment_sum(value, ptr)
    return value / spread(torch.where(total > 0, total, 1.0), ptr, value.shape[1])


def _where_empty(
    value: Tensor, fallback: Tensor, ptr: Tensor, otherwise: Tensor | None = None
) -> Tensor:
    """``fallback`` in blocks where ``value`` has no mass, ``otherwise`` or ``value`` in others."""
    empty = spread(segment_sum(value, ptr) == 0, ptr, value.shape[1])
    return torch.where(empty, fallback, value if otherwise is None else otherwise)
