"""Spanning trees and depth-first order, against networkx and a plain walk."""

import random
import time

import networkx
import pytest
import torch

from bisrqa.retrieval.trees import spanning_forest


def case(seed: int):
    rng = random.Random(seed)
    nodes, edges = rng.randint(1, 12), rng.randint(0, 25)
    ends = [[rng.randrange(nodes) for _ in range(edges)] for _ in range(2)]
    weight = torch.tensor([rng.randint(-2, 3) / 3 for _ in range(edges)])
    return torch.tensor(ends, dtype=torch.long).reshape(2, edges), weight, nodes


def walked(tree: list[tuple[int, int]]) -> dict[int, int]:
    """Plain depth-first walk, branches in order, from the first end of each tree's first edge."""
    near: dict[int, list[int]] = {}
    for a, b in tree:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    place: dict[int, int] = {}
    for start, _ in tree:
        stack, count = [start], 0
        while stack:
            node = stack.pop()
            if node not in place:
                place[node] = count
                count += 1
                stack += [other for other in reversed(near[node]) if other not in place]
    return place


@pytest.mark.parametrize("seed", range(60))
def test_against_networkx_and_a_plain_walk(seed):
    ends, weight, nodes = case(seed)
    forest = spanning_forest(ends, weight, nodes)
    graph = networkx.MultiGraph()
    graph.add_nodes_from(range(nodes))
    for edge, (a, b) in enumerate(ends.T.tolist()):
        graph.add_edge(a, b, weight=float(weight[edge]))
    parts = [sorted(part) for part in networkx.connected_components(graph)]
    found: dict[int, list[int]] = {}
    for node, component in enumerate(forest.component.tolist()):
        found.setdefault(component, []).append(node)
    assert sorted(found.values()) == sorted(parts)
    loop = ends[0] == ends[1]
    best = networkx.maximum_spanning_edges(graph, data=True)
    total = sum(data["weight"] for *_, data in best)
    assert float(weight[forest.keep & ~loop].sum()) == pytest.approx(total, abs=1e-5)
    assert int((forest.keep & ~loop).sum()) == nodes - len(parts)
    order = torch.sort(weight, descending=True, stable=True).indices.tolist()
    tree = [tuple(ends[:, e].tolist()) for e in order if forest.keep[e] and not loop[e]]
    expected = walked(tree)
    assert forest.place.tolist() == [expected.get(node, 0) for node in range(nodes)]


@pytest.mark.parametrize("seed", range(20))
def test_a_graph_does_not_depend_on_its_company(seed):
    ends, weight, nodes = case(seed)
    other, heavy, more = case(seed + 100)
    both = torch.cat([other, ends + more], 1)
    together = spanning_forest(both, torch.cat([heavy, weight]), nodes + more)
    alone = spanning_forest(ends, weight, nodes)
    assert together.keep[len(heavy) :].tolist() == alone.keep.tolist()
    assert together.place[more:].tolist() == alone.place.tolist()


def test_a_loop_is_kept_only_where_there_is_nothing_else():
    ends = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 0, 2]])
    forest = spanning_forest(ends, torch.tensor([9.0, 1, 9, 1, 0]), 3)
    assert forest.keep.tolist() == [False, True, False, False, True]


def test_no_edges():
    forest = spanning_forest(torch.empty(2, 0, dtype=torch.long), torch.empty(0), 2)
    assert sorted(forest.component.tolist()) == [0, 1]
    assert forest.place.tolist() == [0, 0]


@pytest.mark.parametrize("shape", ["hub", "path"])
def test_a_component_of_50_000_edges(shape):
    count = 50_000
    at = torch.arange(count)
    ends = torch.stack([torch.zeros_like(at) if shape == "hub" else at, at + 1])
    weight = torch.linspace(1, 0, count)
    start = time.perf_counter()
    forest = spanning_forest(ends, weight, count + 1)
    assert time.perf_counter() - start < 10  # a quadratic walk takes minutes
    assert forest.keep.all()
    assert forest.place.tolist() == list(range(count + 1))
