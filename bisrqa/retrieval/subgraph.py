"""From walk scores to the subgraph that is kept.

What is kept is held as pairs of a question and a node or an edge, so that the same code cuts many
questions' subgraphs out of one graph, or each question's out of its own graph of a batch.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors, NodeKind, ragged_range
from bisrqa.retrieval.segments import segment_rank
from bisrqa.retrieval.segments import top_k as largest


class Reason(IntEnum):
    """Why a node was kept."""

    DROPPED = 0
    TOPIC = 1
    """It is named in the question."""
    TOP_K = 2
    """Its walk score is among the best."""
    MEDIATOR = 3
    """It joins two kept nodes."""
    PASSAGE = 4
    """Its text is among the best."""


class Selection(NamedTuple):
    """What is kept, by question and then by id."""

    question: Int[Tensor, " kept_nodes"]
    """Which question each node is kept for; in a batch, its graph."""
    node: Int[Tensor, " kept_nodes"]
    reason: Int[Tensor, " kept_nodes"]
    """:class:`Reason` of each node, as int8."""
    edge_question: Int[Tensor, " kept_edges"]
    """The same for every edge whose ends are both kept for a question."""
    edge: Int[Tensor, " kept_edges"]


class Links(NamedTuple):
    """The edges at each node of one graph, for looking up those of a few nodes."""

    head_ptr: Int[Tensor, " nodes_and_one"]
    by_head: Int[Tensor, " edges"]
    """Edge ids by head: those of node v are ``by_head[head_ptr[v]:head_ptr[v + 1]]``."""
    tail_ptr: Int[Tensor, " nodes_and_one"]
    by_tail: Int[Tensor, " edges"]
    """The same by tail."""

    @classmethod
    def of(cls, edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> "Links":
        """Index a graph's edges."""
        parts = []
        for end in edge_index:
            ptr = torch.zeros(num_nodes + 1, dtype=torch.long, device=end.device)
            ptr[1:] = torch.bincount(end, minlength=num_nodes).cumsum(0)
            parts += [ptr, torch.sort(end, stable=True).indices]
        return cls(*parts)


class Ranked(NamedTuple):
    """The best nodes of a kind that are no topics, by question, best first.

    Equal scores are settled by node id, and a node that no mass reached has no place.
    """

    question: Int[Tensor, " ranked"]
    """Which question, or graph of the batch, each is ranked for."""
    node: Int[Tensor, " ranked"]
    place: Int[Tensor, " ranked"]
    """0 for the best of its question."""


def rank(
    graph: GraphTensors,
    scores: Float[Tensor, "rows nodes"],
    topics: Bool[Tensor, "rows nodes"],
    depth: int,
    kinds: tuple[NodeKind, ...] = (NodeKind.ENTITY, NodeKind.EVENT, NodeKind.PASSAGE),
) -> Ranked:
    """The first ``depth`` of each question.

    Args:
        graph: One graph for all questions, or a batch with one for each.
        scores: One row a question, or a single one for a batch.
        topics: The same shape; they are left out.
        depth: How many of each question at most.
        kinds: Only these nodes have a place.
    """
    ranked = torch.zeros_like(graph.node_kind, dtype=torch.bool)
    for kind in kinds:
        ranked |= graph.node_kind == kind
    value = scores.masked_fill(~ranked | topics, 0)
    if graph.num_graphs == 1:
        best, node = largest(value, depth)
        question, place = (best > 0).nonzero().unbind(1)
        return Ranked(question, node[question, place], place)
    place = segment_rank(value[0], graph.node_ptr)
    node = ((value[0] > 0) & (place < depth)).nonzero().squeeze(1)
    question, place = graph.node_batch[node], place[node]
    order = torch.argsort(question * max(depth, 1) + place)
    return Ranked(question[order], node[order], place[order])


def select(
    graph: GraphTensors,
    ranked: Ranked,
    topics: Bool[Tensor, "one nodes"],
    top_k: int,
    passages: Int[Tensor, " kept_passages"] | None = None,
) -> Selection:
    """Keep of each graph its topics, its ``top_k`` best other nodes, and mediators between them.

    A mediator is kept when it touches at least two different kept nodes: it costs nothing of
    ``top_k``, since it is structure and not an answer. ``passages`` are kept besides.
    """
    topic = topics[0]
    mediator = graph.node_kind == NodeKind.MEDIATOR
    best = torch.zeros_like(topic)
    best[ranked.node[ranked.place < top_k]] = True
    kept = best | topic
    pairs = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    pairs = pairs[:, kept[pairs[1]] & mediator[pairs[0]] & ~kept[pairs[0]]]
    joins = torch.zeros_like(kept)
    joins[_joining(pairs[0], pairs[1], graph.num_nodes)] = True
    reason = torch.zeros_like(graph.node_kind)
    for mask, why in ((best, Reason.TOP_K), (topic, Reason.TOPIC), (joins, Reason.MEDIATOR)):
        reason = reason.masked_fill(mask, int(why))
    if passages is not None:
        reason[passages] = int(Reason.PASSAGE)
    node = reason.nonzero().squeeze(1)
    edge = (reason > 0)[graph.edge_index].all(0).nonzero().squeeze(1)
    return Selection(graph.node_batch[node], node, reason[node], graph.edge_batch[edge], edge)


def select_shared(
    graph: GraphTensors,
    links: Links,
    ranked: Ranked,
    topics: Bool[Tensor, "questions nodes"],
    top_k: int,
) -> Selection:
    """The same for many questions on one graph; looks at the edges of kept nodes only."""
    nodes = max(graph.num_nodes, 1)
    mediator = graph.node_kind == NodeKind.MEDIATOR
    reason = torch.zeros(topics.numel(), dtype=torch.int8, device=topics.device)
    best = ranked.place < top_k
    reason[ranked.question[best] * nodes + ranked.node[best]] = int(Reason.TOP_K)
    reason[topics.flatten()] = int(Reason.TOPIC)

    kept = reason.nonzero().squeeze(1)
    ends = []
    for ptr, edges, other in (
        (links.head_ptr, links.by_head, graph.edge_index[1]),
        (links.tail_ptr, links.by_tail, graph.edge_index[0]),
    ):
        row, edge = _edges_of(kept % nodes, ptr, edges)
        near = kept[row] // nodes * nodes + other[edge]
        found = mediator[other[edge]] & (reason[near] == 0)
        ends.append(torch.stack([near[found], kept[row][found] % nodes]))
    near, by = torch.cat(ends, 1)
    reason[_joining(near, by, nodes)] = int(Reason.MEDIATOR)

    kept = reason.nonzero().squeeze(1)
    question, node = kept // nodes, kept % nodes
    row, edge = _edges_of(node, links.head_ptr, links.by_head)
    inside = reason[question[row] * nodes + graph.edge_index[1, edge]] > 0
    row, edge = question[row][inside], edge[inside]
    order = torch.argsort(row * graph.num_edges + edge)
    return Selection(question, node, reason[kept], row[order], edge[order])


def _edges_of(
    node: Int[Tensor, " rows"], ptr: Int[Tensor, " nodes_and_one"], edges: Int[Tensor, " edges"]
) -> tuple[Int[Tensor, " found"], Int[Tensor, " found"]]:
    """Every edge of each row's node: the row, and the edge."""
    row, place = ragged_range(ptr[node], ptr[node + 1])
    return row, edges[place]


def _joining(
    mediator: Int[Tensor, " pairs"], kept: Int[Tensor, " pairs"], nodes: int
) -> Int[Tensor, " joining"]:
    """The mediators that touch at least two different kept nodes."""
    pairs = torch.unique(mediator * nodes + kept)
    found, touched = torch.unique_consecutive(
        pairs.div(max(nodes, 1), rounding_mode="floor"), return_counts=True
    )
    return found[touched >= 2]


def induced(graph: GraphTensors, selection: Selection, questions: int) -> GraphTensors:
    """Cut out what is kept, with the relations that still occur: a graph for each question.

    Nodes, edges and relations keep their order.
    """
    nodes, relations = graph.num_nodes, graph.num_relations
    question, node, _, edge_question, edge = selection
    key = question * nodes + node  # rising

    def local(of: Tensor, ids: Tensor) -> Tensor:
        return torch.searchsorted(key, of * nodes + ids)

    relation_key, edge_type = torch.unique(
        edge_question * relations + graph.edge_type[edge], return_inverse=True
    )
    relation_question, relation = (
        relation_key // max(relations, 1),
        relation_key % max(relations, 1),
    )
    passage = graph.edge_passage[edge]
    place = local(edge_question, passage.clamp_min(0)).clamp_max(max(len(key) - 1, 0))
    found = (passage >= 0) & (key[place] == edge_question * nodes + passage)

    def ptr(of: Tensor) -> Tensor:
        return torch.searchsorted(of, torch.arange(questions + 1, device=of.device))

    head, tail = graph.edge_index[:, edge]
    return GraphTensors(
        x=graph.x[node],
        node_text=tuple(graph.node_text[i] for i in node.tolist()),
        node_kind=graph.node_kind[node],
        edge_index=torch.stack([local(edge_question, head), local(edge_question, tail)]),
        edge_type=edge_type,
        edge_passage=torch.where(found, place, -1),
        relation_x=graph.relation_x[relation],
        relation_text=tuple(graph.relation_text[i] for i in relation.tolist()),
        node_ptr=ptr(question),
        edge_ptr=ptr(edge_question),
        relation_ptr=ptr(relation_question),
    )
