"""Shortest paths in a batch of graphs; edges are walked both ways, all graphs at once."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors


def distances(graph: GraphTensors, sources: Bool[Tensor, " nodes"]) -> Int[Tensor, " nodes"]:
    """Steps from each node to the nearest source; -1 where no way leads to one."""
    start, end = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    distance = torch.where(sources, 0, -1)
    front, step = sources, 0
    while bool(front.any()):
        step += 1
        reached = torch.zeros_like(sources)
        reached[end[front[start]]] = True
        front = reached & (distance < 0)
        distance = distance.masked_fill(front, step)
    return distance


def carry_back(
    graph: GraphTensors, distance: Int[Tensor, " nodes"], value: Float[Tensor, " nodes"]
) -> Float[Tensor, " nodes"]:
    """Give every node the best value among itself and the nodes whose shortest ways lead over it.

    Args:
        graph: One graph or a batch.
        distance: What :func:`distances` gave.
        value: At least 0.
    """
    start, end = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    onward = (distance[start] >= 0) & (distance[end] == distance[start] + 1)
    start, end = start[onward], end[onward]
    value = value.clone()
    for step in range(int(distance.max()) if len(distance) else 0, 0, -1):
        last = distance[end] == step
        value = value.scatter_reduce(0, start[last], value[end[last]], "amax")
    return value


def on_shortest_paths(
    graph: GraphTensors, distance: Int[Tensor, " nodes"], targets: Bool[Tensor, " nodes"]
) -> tuple[Bool[Tensor, " nodes"], Bool[Tensor, " edges"]]:
    """Mark the nodes and edges on all shortest ways from the sources to any target."""
    found = targets & (distance >= 0)
    node = carry_back(graph, distance, found.float()) > 0
    head, tail = graph.edge_index
    apart = (distance[head] - distance[tail]).abs() == 1
    return node, node[head] & node[tail] & apart
