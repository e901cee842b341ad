"""The Triton kernels: on a CUDA device where there is one, else in Triton's interpreter.

``conftest.py`` chooses the interpreter. It takes a tenth of a second a
sweep, so walks are short here: mostly a large restart.
"""

import pytest
import torch

pytest.importorskip("triton")

from walk_cases import random_edges, random_graph, random_inputs

from bisrqa.graph.tensors import batch_of
from bisrqa.walk import WalkGraph, on_gpu, plain, reference, schedule, sppr

HAS_GPU = torch.cuda.is_available()
INTERPRETED = pytest.mark.skipif(HAS_GPU, reason="the kernels are compiled here")
COMPILED = pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=INTERPRETED),
        pytest.param("cuda", marks=[COMPILED, pytest.mark.gpu]),
    ]
)
def device(request) -> str:
    return request.param


def walk(graph: WalkGraph, p, weight, inverse, device: str, *, restart=0.9, **how):
    result = sppr(
        graph.to(device),
        p.to(device),
        weight.to(device),
        inverse_weight=inverse.to(device),
        restart=restart,
        backend="triton",
        **how,
    )
    return type(result)(*(t.cpu() for t in result))


def assert_exact(found, graph: WalkGraph, given, restart=0.9, bound=1e-5) -> None:
    """Within ``bound`` of the rest state in L1, with one unit of mass a graph."""
    given = [t.double() for t in given]
    exact = reference.solve(graph, *given, restart=restart, tol=1e-13, max_steps=3000)[0]
    assert (found.scores.double() - exact).abs().sum(1).max() < bound
    assert (found.scores.double().sum(1) - 1).abs().max() < 1e-6


def assert_same(many, one) -> None:
    assert all(torch.equal(a, b) for a, b in zip(many, one, strict=True))


@pytest.mark.parametrize("both_ways", [True, False])
def test_against_the_other_back_ends(both_ways, device):
    """In these inputs half of the weights are zero: which nodes dangle depends on the question."""
    graph = random_graph(2, nodes=40, both_ways=both_ways)
    given = random_inputs(graph, 3, 2)
    assert len(graph.loop_node) > 0
    found = walk(graph, *given, device, restart=0.5)
    assert_exact(found, graph, given, restart=0.5)
    usual = plain.solve(graph, *given, restart=0.5, tol=1e-6, max_steps=200)
    assert (found.scores - usual[0]).abs().sum(1).max() < 1e-5
    assert found.scores.dtype == found.residual.dtype == torch.float32
    assert (found.residual < 1e-6).all()
    assert (found.steps < usual[1]).all()


def test_double_precision(device):
    graph = random_graph(4, nodes=30, both_ways=False)
    given = random_inputs(graph, 2, 4, torch.float64)
    found = walk(graph, *given, device, restart=0.9, tol=1e-12)
    assert found.scores.dtype == found.residual.dtype == torch.float64
    assert_exact(found, graph, given, restart=0.9, bound=1e-10)


def test_questions_are_each_as_alone(device, monkeypatch):
    """However many lanes there are, and in whichever tile; and the same every time."""
    graph = random_graph(8, nodes=40)
    p, weight, inverse = random_inputs(graph, 3, 8)
    p[0] = torch.eye(40)[-1]  # on an isolated node: settled at once
    together = walk(graph, p, weight, inverse, device)
    assert len(set(together.steps.flatten().tolist())) > 1
    assert_same(walk(graph, p, weight, inverse, device), together)
    monkeypatch.setattr(on_gpu, "TILE_BYTES", 8)
    assert_same(walk(graph, p, weight, inverse, device), together)


def test_a_batch_is_exactly_its_graphs(device):
    parts = [random_edges(3, nodes=34), (torch.zeros(2, 0).long(), torch.zeros(0).long(), 0)]
    parts += [random_edges(5, nodes=7)]
    kinds = [6, 0, 6]
    node_ptr = torch.tensor([0, 34, 34, 41])
    relation_ptr = torch.tensor([0, 6, 6, 12])
    edge_index = torch.cat([e + n for (e, _, _), n in zip(parts, node_ptr, strict=False)], 1)
    edge_type = torch.cat([k + r for (_, k, _), r in zip(parts, relation_ptr, strict=False)])
    whole = WalkGraph.from_edges(edge_index, edge_type, 41, num_relations=12)
    batch = type(whole)(**{**vars(whole), "node_ptr": node_ptr, "relation_ptr": relation_ptr})
    assert batch.num_graphs == 3
    inputs = random_inputs(batch, 1, 5)
    p, (weight, inverse) = inputs[0], inputs[1:]
    p = p / torch.zeros(3).index_add(0, batch_of(node_ptr, 41), p[0])[batch_of(node_ptr, 41)]
    together = walk(batch, p, weight, inverse, device)
    for number, ((edges, kind, nodes), relations) in enumerate(zip(parts, kinds, strict=True)):
        if not nodes:
            assert (together.steps[0, number], together.residual[0, number]) == (0, 0)
            continue
        alone = WalkGraph.from_edges(edges, kind, nodes, num_relations=relations)
        at, of = (slice(*ptr[number : number + 2]) for ptr in (node_ptr, relation_ptr))
        one = walk(alone, p[:, at], weight[:, of], inverse[:, of], device)
        there = together.scores[:, at], together.steps[:, [number]], together.residual[:, [number]]
        assert_same(there, one)
    assert together.steps[0, 0] != together.steps[0, 2]


@pytest.mark.parametrize(("both_ways", "relations"), [(False, 100), (True, 20)])
def test_a_hub_is_summed_in_chunks(both_ways, relations, device, monkeypatch):
    """All relations lead from each of ten nodes to the first, and three arcs on from there."""
    monkeypatch.setattr(schedule, "CHUNK", relations - 4)  # a chunk and a bit from every node
    leaf = torch.arange(1, 11).repeat(relations)
    kind = torch.arange(relations).repeat_interleave(10)
    into = torch.stack([leaf, torch.zeros_like(leaf)])
    edge_index = torch.cat([into, torch.tensor([[0, 0, 1], [11, 12, 2]])], 1)
    edge_type = torch.cat([kind, torch.tensor([0, 1, 2])])
    graph = WalkGraph.from_edges(edge_index, edge_type, 14, both_ways=both_ways)
    chunks = len(schedule.of(graph).chunk_at)
    assert chunks == (13 + 2 * 10 if both_ways else 11)
    given = random_inputs(graph, 1, 6)
    assert_exact(walk(graph, *given, device), graph, given)


def test_wide_relations(device):
    edge_index, edge_type, nodes = random_edges(7, nodes=30)
    edge_type = edge_type * 17_000 + 1999
    graph = WalkGraph.from_edges(edge_index, edge_type, nodes, num_relations=70_000)
    assert graph.rel.dtype == torch.int32
    given = random_inputs(graph, 2, 7)
    assert_exact(walk(graph, *given, device), graph, given)


def test_weights_below_the_normal_numbers(device):
    graph = random_graph(9, nodes=20)
    p, weight, _ = random_inputs(graph, 1, 9)
    ones = torch.ones_like(weight)
    usual = walk(graph, p, ones, ones, device)
    tiny = ones * 2.0**-140
    assert_same(walk(graph, p, tiny, tiny, device), usual)


def test_max_steps(device):
    graph = random_graph(10, nodes=30)
    given = random_inputs(graph, 2, 10)
    free = walk(graph, *given, device)
    steps = int(free.steps.max())
    assert 3 < steps < 20
    assert_same(walk(graph, *given, device, max_steps=steps), free)
    short = walk(graph, *given, device, max_steps=3)
    assert (short.steps == 3).all()
    assert (short.residual >= 1e-6).all()


def test_smallest_graphs(device):
    one = torch.ones(1, 1)

    def lone(nodes: int, edges: list[tuple[int, int]], p, weight):
        ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
        graph = WalkGraph.from_edges(
            ends, torch.zeros(len(edges), dtype=torch.long), nodes, num_relations=weight.shape[1]
        )
        return walk(graph, p, weight, weight, device)

    assert lone(1, [], one, one[:, :0]).scores.tolist() == [[1]]
    assert lone(1, [(0, 0)], one, one).scores.tolist() == [[1]]
    p = torch.tensor([[0.5, 0.25, 0.25]])
    assert torch.allclose(lone(3, [], p, one).scores, p)
    empty = lone(0, [], one[:, :0], one)
    assert (empty.scores.shape, empty.steps.tolist()) == ((1, 0), [[0]])


def test_neighbours_are_in_different_groups():
    graph = random_graph(11, nodes=2000)
    group = schedule._groups(graph)
    assert torch.bincount(group, minlength=schedule.GROUPS).min() > 300
    within = (group[graph.src.long()] == group[graph.dst]).double().mean()
    assert within < 0.1  # a quarter if they were drawn
