"""From walk scores to the subgraph that is kept."""

from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.segments import segment_top_k


class Reason(IntEnum):
    """Why a node was kept."""

    DROPPED = 0
    TOPIC = 1
    """It is named in the question."""
    TOP_K = 2
    """Its walk score is among the best."""
    MEDIATOR = 3
    """It joins two kept nodes."""


class Selection(NamedTuple):
    """What is kept of a graph or a batch."""

    reason: Int[Tensor, " nodes"]
    """:class:`Reason` of each node as int8; 0 for dropped ones."""
    keep_edges: Bool[Tensor, " edges"]
    """Every edge whose ends are both kept."""


def select(
    graph: GraphTensors, scores: Float[Tensor, " nodes"], topics: Bool[Tensor, " nodes"], top_k: int
) -> Selection:
    """Keep each graph's topics, its ``top_k`` best other nodes, and mediators between them.

    Equal scores are settled by node id. A mediator is kept when it touches at least two different
    kept nodes: it costs nothing of ``top_k``, since it is structure and not an answer.
    """
    mediator = graph.node_kind == NodeKind.MEDIATOR
    best = segment_top_k(scores, graph.node_ptr, ~mediator & ~topics, top_k)
    kept = best | topics
    joins = mediator & ~kept & (_kept_neighbours(graph, kept) >= 2)
    reason = torch.zeros_like(graph.node_kind)
    for mask, why in ((best, Reason.TOP_K), (topics, Reason.TOPIC), (joins, Reason.MEDIATOR)):
        reason = reason.masked_fill(mask, int(why))
    keep_edges = (reason != Reason.DROPPED)[graph.edge_index].all(0)
    return Selection(reason, keep_edges)


def _kept_neighbours(graph: GraphTensors, kept: Bool[Tensor, " nodes"]) -> Int[Tensor, " nodes"]:
    """How many different kept nodes each node touches, itself not counted."""
    pairs = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    pairs = pairs[:, kept[pairs[1]] & (pairs[0] != pairs[1])]
    pairs = torch.unique(pairs, dim=1)
    return torch.zeros_like(graph.node_kind, dtype=torch.long).index_add(
        0, pairs[0], torch.ones_like(pairs[0])
    )


def induced(
    graph: GraphTensors, keep_nodes: Bool[Tensor, " nodes"], keep_edges: Bool[Tensor, " edges"]
) -> tuple[GraphTensors, Int[Tensor, " kept_nodes"], Int[Tensor, " kept_edges"]]:
    """Cut out the kept nodes and edges, and the relations that still occur.

    Returns:
        The smaller graph (a batch stays a batch of as many graphs), and the ids that its nodes
        and edges had before.
    """
    node_ids, edge_ids = keep_nodes.nonzero().squeeze(1), keep_edges.nonzero().squeeze(1)
    keep_relations = torch.zeros(graph.num_relations, dtype=torch.bool, device=graph.device)
    keep_relations[graph.edge_type[edge_ids]] = True
    relation_ids = keep_relations.nonzero().squeeze(1)
    local_node, local_relation = keep_nodes.cumsum(0) - 1, keep_relations.cumsum(0) - 1
    passage = graph.edge_passage[edge_ids]
    has_passage = (passage >= 0) & keep_nodes[passage.clamp_min(0)]

    def cut(ptr: Tensor, keep: Tensor) -> Tensor:
        return torch.cat([ptr[:1], keep.cumsum(0)])[ptr] if len(keep) else torch.zeros_like(ptr)

    small = GraphTensors(
        x=graph.x[node_ids],
        node_text=tuple(graph.node_text[i] for i in node_ids.tolist()),
        node_kind=graph.node_kind[node_ids],
        edge_index=local_node[graph.edge_index[:, edge_ids]],
        edge_type=local_relation[graph.edge_type[edge_ids]],
        edge_passage=torch.where(has_passage, local_node[passage.clamp_min(0)], -1),
        relation_x=graph.relation_x[relation_ids],
        relation_text=tuple(graph.relation_text[i] for i in relation_ids.tolist()),
        node_ptr=cut(graph.node_ptr, keep_nodes),
        edge_ptr=cut(graph.edge_ptr, keep_edges),
        relation_ptr=cut(graph.relation_ptr, keep_relations),
    )
    return small, node_ids, edge_ids
