"""Passages of a text graph and the entities that join them."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import TITLED


class Links(NamedTuple):
    """Which passage names which entity, each pair once, by passage; and what each is titled."""

    passage: Int[Tensor, " links"]
    entity: Int[Tensor, " links"]
    title: Int[Tensor, " nodes"]
    """Entity that a passage's title names; the passage itself where it has no title."""


def passage_rows(
    graph: GraphTensors,
) -> tuple[Int[Tensor, " passages"], Int[Tensor, " nodes"]]:
    """Node of each passage, rising; and of each node its number among them, -1 for others."""
    passage = (graph.node_kind == NodeKind.PASSAGE).nonzero().squeeze(1)
    row = torch.full((graph.num_nodes,), -1, device=graph.device)
    row[passage] = torch.arange(len(passage), device=graph.device)
    return passage, row


def verbalised(graph: GraphTensors) -> list[str]:
    """Every edge in words."""
    head, tail = graph.edge_index.tolist()
    names, relations = graph.node_text, graph.relation_text
    return [
        f"{names[h]} {relations[r].rsplit('.', 1)[-1].replace('_', ' ')} {names[t]}"
        for h, r, t in zip(head, graph.edge_type.tolist(), tail, strict=True)
    ]


def is_structure(graph: GraphTensors) -> Bool[Tensor, " edges"]:
    """Edges that say where an entity is named: they start at a passage, and are no facts."""
    return graph.node_kind[graph.edge_index[0]] == NodeKind.PASSAGE


def links(graph: GraphTensors) -> Links:
    """Title, mentions, and the ends of the triples that were read from a passage."""
    structure = is_structure(graph)
    head, tail = graph.edge_index
    named = torch.tensor(
        [text == TITLED for text in graph.relation_text], dtype=torch.bool, device=graph.device
    )
    titled = structure & named[graph.edge_type] if len(named) else structure
    title = torch.arange(graph.num_nodes, device=graph.device)
    title[head[titled]] = tail[titled]
    read = graph.edge_passage >= 0
    passage = torch.cat([head[structure], graph.edge_passage[read], graph.edge_passage[read]])
    entity = torch.cat([tail[structure], head[read], tail[read]])
    key = torch.unique(passage * graph.num_nodes + entity)
    size = max(graph.num_nodes, 1)
    return Links(key // size, key % size, title)


def lend_to_entities(
    graph: GraphTensors, score: Float[Tensor, " nodes"]
) -> Float[Tensor, " nodes"]:
    """Give each entity the score of the best passage that names it."""
    found = links(graph)
    best = torch.zeros_like(score)
    best = best.scatter_reduce(0, found.entity, score[found.passage], "amax")
    return torch.where(graph.node_kind == NodeKind.PASSAGE, score, best)


def best_neighbour(
    score: Float[Tensor, " nodes"], found: Links
) -> tuple[Float[Tensor, " nodes"], Int[Tensor, " nodes"]]:
    """For each passage the best score of a passage under another title that shares an entity.

    Args:
        score: Of passages; what other nodes have is not read.
        found: Of the graph.

    Returns:
        The score, ``-inf`` where no passage shares an entity; and the entity that is shared, -1
        where none is.
    """
    passage, entity, title = found
    nodes = len(score)
    # The best of each pair of an entity and a title.
    key, pair = torch.unique(entity * nodes + title[passage], return_inverse=True)
    best = score.new_full((len(key),), -torch.inf)
    best = best.scatter_reduce(0, pair, score[passage], "amax")
    of_entity, of_title = key // max(nodes, 1), key % max(nodes, 1)
    # The two best titles of each entity: a passage looks past its own.
    order = torch.argsort(best, descending=True, stable=True)
    order = order[torch.argsort(of_entity[order], stable=True)]
    ordered = of_entity[order]
    first = torch.searchsorted(ordered, torch.arange(nodes, device=score.device))
    place = torch.arange(len(order), device=score.device) - first[ordered]
    top = score.new_full((2, nodes), -torch.inf)
    whose = torch.full((2, nodes), -1, device=score.device)
    for rank in (0, 1):
        chosen = order[place == rank]
        top[rank, of_entity[chosen]] = best[chosen]
        whose[rank, of_entity[chosen]] = of_title[chosen]
    own = whose[0, entity] == title[passage]
    other = torch.where(own, top[1, entity], top[0, entity])
    value = score.new_full((nodes,), -torch.inf).scatter_reduce(0, passage, other, "amax")
    shared = torch.full((nodes,), -1, device=score.device)
    hit = torch.isfinite(other) & (other == value[passage])
    shared = shared.scatter_reduce(0, passage[hit], entity[hit], "amax")
    return value, shared
