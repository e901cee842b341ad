"""The walk with every back end: by hand, against a dense closed form, in any company."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from walk_cases import closed_form, random_edges, random_graph, random_inputs, transition

import bisrqa
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.walk import WalkGraph, native, solve, sppr

ON_CPU = ("torch", "scipy", "native")
FINE = {"tol": 1e-12, "max_steps": 5000}


@pytest.fixture(params=ON_CPU)
def backend(request) -> str:
    return request.param


def walk_graph(nodes: int, edges: list[tuple[int, int, int]], relations: int, **options):
    """Edges are (head, relation, tail)."""
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 3)
    return WalkGraph.from_edges(
        table[:, [0, 2]].T, table[:, 1], nodes, num_relations=relations, **options
    )


FIVE = walk_graph(5, [(0, 0, 1), (1, 1, 0), (2, 2, 1), (3, 0, 3)], 3)


def test_the_package_shows_it():
    assert bisrqa.sppr is sppr
    assert bisrqa.WalkGraph is WalkGraph
    assert {"sppr", "push", "WalkGraph"} <= set(dir(bisrqa))
    with pytest.raises(AttributeError, match="no attribute 'sspr'"):
        bisrqa.__getattr__("sspr")


def test_five_nodes_by_hand(backend):
    """Half of the mass starts at n0, a quarter each at n3 and n4; c = 1/2.

        n0 --r0--> n1 <--r2-- n2      n3 --r0--> n3      n4
           <--r1--                    (a self-loop)      (alone)

    r0 and r1 weigh 1, r2 weighs 2, so n1 sends half of its mass each way. Let m = 1/2 + s4/2 be
    what restarts, with what n4 gives back. s4 = m/4, so m = 4/7 and s4 = 1/7.
    s3 = s3/2 + m/4, so s3 = 2/7. s0 = s1/4 + m/2, s1 = (s0 + s2)/2 and s2 = s1/4, so
    s1 = 4/21, s0 = 7/21, s2 = 1/21.
    """
    p, weight = torch.tensor([[0.5, 0, 0, 0.25, 0.25]]), torch.tensor([[1.0, 1, 2]])
    result = sppr(FIVE, p, weight, restart=0.5, tol=1e-7, backend=backend)
    expected = [7 / 21, 4 / 21, 1 / 21, 6 / 21, 3 / 21]
    assert result.scores[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("backend", ["torch", "scipy"])
def test_first_steps_by_hand(backend):
    """From n0 alone, r0 and r1 weighing 1 and 3, r2 nothing: n0 <-> n1 is all there is."""
    p, weight = torch.tensor([[1.0, 0, 0, 0, 0]]), torch.tensor([[1.0, 3, 0]])
    for steps, scores, residual in (
        (1, [0.25, 0.75, 0], 1.5),
        (2, [0.8125, 0.1875, 0], 1.125),
        (3, [0.390625, 0.609375, 0], 0.84375),
    ):
        result = sppr(FIVE, p, weight, restart=0.25, max_steps=steps, backend=backend)
        assert result.scores[0].tolist() == pytest.approx([*scores, 0, 0])
        assert result.steps.tolist() == [[steps]]
        assert result.residual.tolist() == [[pytest.approx(residual)]]


def test_a_node_whose_edges_weigh_nothing_gives_its_mass_back(backend):
    p, weight = torch.tensor([[0, 0, 1.0, 0, 0]]), torch.tensor([[1.0, 3, 0]])
    result = sppr(FIVE, p, weight, restart=0.25, backend=backend)
    assert result.scores.tolist() == [[0, 0, 1, 0, 0]]
    assert result.residual.item() == 0


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_against_the_closed_form(seed, both_ways, backend):
    edges = random_edges(seed)
    graph = random_graph(seed, both_ways=both_ways)
    restart = [0.05, 0.15, 0.5, 0.9][seed % 4]
    p, weight, inverse = random_inputs(graph, 5, seed, torch.float64)
    weight[3] = inverse[3] = 0
    how = {"inverse_weight": inverse, "restart": restart, "backend": backend}
    scores = sppr(graph, p, weight, **how, **FINE).scores
    for question in range(5):
        exact = closed_form(
            edges, p[question], weight[question], inverse[question], restart, both_ways
        )
        np.testing.assert_allclose(scores[question], exact, atol=1e-10)
    assert torch.allclose(scores[3], p[3])
    # As in use: single precision and the usual tolerance.
    how["inverse_weight"] = inverse.float()
    result = sppr(graph, p.float(), weight.float(), **how, max_steps=1000)
    assert result.scores.dtype == torch.float32
    assert (result.residual < 1e-6).all()
    assert (result.scores - scores).abs().sum(1).max() < 1e-5 / restart
    assert torch.allclose(result.scores.sum(1), torch.ones(5), atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_every_step_of_power_iteration(seed):
    edges, graph = random_edges(seed), random_graph(seed)
    p, weight, inverse = random_inputs(graph, 1, seed, torch.float64)
    dense, now = transition(edges, p[0], weight[0], inverse[0], True), p[0].numpy()
    for steps in range(1, 8):
        now = 0.85 * now @ dense + 0.15 * p[0].numpy()
        for backend in ("torch", "scipy"):
            result = sppr(
                graph, p, weight, inverse_weight=inverse, tol=1e-30, max_steps=steps,
                backend=backend
            )  # fmt: skip
            np.testing.assert_allclose(result.scores[0], now, atol=1e-12)


def test_equal_order_of_the_best_with_every_back_end():
    """Scores that are told apart by less than the tolerance may stand either way round."""
    graph = random_graph(7, nodes=600)
    p, weight, inverse = random_inputs(graph, 8, 7, torch.float64)
    exact = sppr(graph, p, weight, inverse_weight=inverse, backend="scipy", **FINE).scores
    for backend in ON_CPU:
        given = (t.float() for t in (p, weight, inverse))
        found = sppr(graph, *next_two(given), inverse_weight=next(given), backend=backend).scores
        best = torch.sort(found, descending=True, stable=True).indices[:, :100]
        ranked = exact.gather(1, best)
        assert (ranked[:, 1:] - ranked[:, :-1]).max() < 1e-6
        assert (exact.topk(100).values - ranked).abs().max() < 1e-6


def next_two(values):
    return next(values), next(values)


def test_ties_are_exact(backend):
    """Twenty leaves of one hub, alike in all: whichever comes first, all score the same."""
    graph = walk_graph(21, [(0, 0, leaf) for leaf in range(1, 21)], 1)
    p = torch.zeros(1, 21)
    p[0, 0] = 1
    leaves = sppr(graph, p, torch.ones(1, 1), backend=backend).scores[0, 1:]
    assert len(set(leaves.tolist())) == 1


@pytest.mark.parametrize("seed", range(3))
def test_fewer_sweeps_than_power_iteration(seed):
    """Gauss-Seidel with the mass held takes at most 0.6 of the steps on graphs of some size."""
    graph = random_graph(seed, nodes=5000)
    p, weight, _ = random_inputs(graph, 8, seed)
    weight = weight + 0.05
    sweeps, steps = (
        sppr(graph, p, weight, backend=backend).steps.double().mean()
        for backend in ("native", "torch")
    )
    assert sweeps <= 0.6 * steps


def tree_and_more(nodes: int, seed: int) -> WalkGraph:
    """Hubs with many leaves, and half as many edges again: what a neighbourhood looks like."""
    rng = np.random.default_rng(seed)
    child = np.arange(1, nodes)
    parent = (child * rng.random(nodes - 1) ** 2.2).astype(np.int64)
    more = rng.integers(0, nodes, (2, nodes // 2))
    ends = np.concatenate([np.stack([parent, child]), more], 1)
    kinds = rng.integers(0, 20, ends.shape[1])
    return WalkGraph.from_edges(torch.from_numpy(ends), torch.from_numpy(kinds), nodes)


@pytest.mark.parametrize(("restart", "most"), [(0.5, 10), (0.15, 17), (0.05, 28), (0.01, 55)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_over_relaxation_where_edges_weigh_the_same_both_ways(restart, most, kind):
    """Gauss-Seidel alone takes 10, 34, 90 and 326 sweeps, and errs by up to four times as much."""
    graph = tree_and_more(2000, 3)
    p, _, _ = random_inputs(graph, 9, 3, kind)
    rng = torch.Generator().manual_seed(3)
    weight = torch.exp(2 * torch.randn(9, 20, generator=rng)).to(kind)
    exact = sppr(graph, p.double(), weight.double(), restart=restart, backend="scipy", **FINE)
    found = sppr(graph, p, weight, restart=restart, backend="native")
    assert found.steps.max() <= most
    assert (found.residual < 1e-6).all()
    assert (found.scores - exact.scores).abs().sum(1).max() < 1e-6 / restart
    assert (found.scores >= 0).all()


def test_a_personalization_on_one_node_of_a_pair_that_holds_mass(backend):
    """Where all mass starts far above its place, a step beyond that place stays positive."""
    edges = [(0, 0, 1), (1, 1, 2), (1, 2, 2)]
    weight = torch.tensor([[0.0232, 1.1666, 2.5323]]).double()
    for p in torch.tensor([[0.18, 0.81, 0.01], [0, 0, 1], [1, 0, 0], [0, 1, 0]]).double():
        graph = walk_graph(3, edges, 3)
        ends = torch.tensor(edges)[:, [0, 2]].T
        for restart in (0.15, 0.01):
            found = sppr(graph, p[None], weight, restart=restart, max_steps=3000, backend=backend)
            exact = closed_form(
                (ends, torch.tensor([0, 1, 2]), 3), p, weight[0], weight[0], restart
            )
            assert (found.residual < 1e-6).all()
            assert np.abs(found.scores[0].numpy() - exact).sum() < 10 * 1e-6 / restart


def test_max_steps_and_residual(backend):
    graph = random_graph(3)
    p, weight, inverse = random_inputs(graph, 3, 3, torch.float64)
    how = {"inverse_weight": inverse, "tol": 1e-4, "backend": backend}
    free = sppr(graph, p, weight, **how)
    assert (free.residual < 1e-4).all()
    assert free.steps.max() < 200
    for question in range(3):
        steps = int(free.steps[question])
        one = {**how, "inverse_weight": inverse[[question]]}
        at, before = (
            sppr(graph, p[[question]], weight[[question]], max_steps=most, **one)
            for most in (steps, steps - 1)
        )
        assert torch.equal(at.scores[0], free.scores[question])
        assert at.residual[0] == free.residual[question]
        assert before.steps.item() == steps - 1
        assert before.residual.item() >= 1e-4
        if backend != "native":  # where a step is the next of one sequence
            change = (at.scores - before.scores).abs().sum().item()
            assert at.residual.item() == pytest.approx(change, rel=1e-4)


def test_mass_does_not_drift_in_many_steps(backend):
    for nodes in (4, 400):
        graph = random_graph(5, nodes)
        p, weight, _ = random_inputs(graph, 2, 0)
        result = sppr(graph, p, weight, restart=0.01, tol=1e-15, max_steps=100, backend=backend)
        assert (result.scores.double().sum(1) - 1).abs().max() < 6e-7


def random_batch(seed: int) -> tuple[list[GraphTensors], list[tuple[torch.Tensor, ...]]]:
    graphs, inputs = [], []
    for number in range(5):
        edge_index, edge_type, nodes = random_edges(seed * 5 + number)
        if number == seed % 5:
            edge_index, edge_type, nodes = edge_index[:, :0], edge_type[:0], 0
        elif number == (seed + 1) % 5:
            edge_index, edge_type, nodes = edge_index[:, :0], edge_type[:0], 3
        relations = 6 if nodes > 3 else 0
        graphs.append(as_tensors(edge_index, edge_type, nodes, relations))
        inputs.append(
            random_inputs(WalkGraph.of(graphs[-1]), 2, number)
            if nodes
            else (torch.zeros(2, 0),) * 3
        )
    return graphs, inputs


def as_tensors(edge_index, edge_type, nodes: int, relations: int) -> GraphTensors:
    return GraphTensors(
        x=torch.zeros(nodes, 2),
        node_text=tuple(f"n{i}" for i in range(nodes)),
        node_kind=torch.full((nodes,), int(NodeKind.ENTITY), dtype=torch.int8),
        edge_index=edge_index,
        edge_type=edge_type,
        edge_passage=torch.full((len(edge_type),), -1),
        relation_x=torch.zeros(relations, 2),
        relation_text=tuple(f"r{i}" for i in range(relations)),
        node_ptr=torch.tensor([0, nodes]),
        edge_ptr=torch.tensor([0, len(edge_type)]),
        relation_ptr=torch.tensor([0, relations]),
    ).check()


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_is_exactly_its_graphs(seed, backend):
    graphs, inputs = random_batch(seed)
    batch = GraphTensors.collate(graphs)
    p, weight, inverse = (torch.cat(parts, 1) for parts in zip(*inputs, strict=True))
    together = sppr(batch, p, weight, inverse_weight=inverse, backend=backend)
    for number, (graph, given) in enumerate(zip(graphs, inputs, strict=True)):
        alone = sppr(graph, *given[:2], inverse_weight=given[2], backend=backend)
        nodes = slice(*batch.node_ptr[number : number + 2].tolist())
        assert torch.equal(together.scores[:, nodes], alone.scores)
        assert torch.equal(together.steps[:, number], alone.steps[:, 0])
        assert torch.equal(together.residual[:, number], alone.residual[:, 0])
    assert len(set(together.steps[0].tolist())) > 2  # each stops at its own step


def test_many_questions_on_one_graph_are_each_as_alone(backend):
    graph = random_graph(8)
    p, weight, inverse = random_inputs(graph, 37, 8)
    together = sppr(graph, p, weight, inverse_weight=inverse, backend=backend)
    for question in range(37):
        rows = [question]
        alone = sppr(graph, p[rows], weight[rows], inverse_weight=inverse[rows], backend=backend)
        for many, one in zip(together, alone, strict=True):
            assert torch.equal(many[question], one[0])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("nodes", [150, 1500])
def test_instruction_sets_widths_and_threads_change_no_bit(kind, nodes, set_threads):
    graph = random_graph(9, nodes=nodes)
    p, weight, inverse = random_inputs(graph, 21, 9, kind)
    inverse[::3] = weight[::3]  # these are over-relaxed
    how = {"restart": 0.15, "tol": 1e-6, "max_steps": 200}
    usual = native.solve(graph, p, weight, inverse, **how)
    best = native.INSTRUCTION_SETS.index(native.instruction_set())
    for isa in native.INSTRUCTION_SETS[: best + 1]:
        for width in (1, 2, 3, 4, 8, 16):
            set_threads(1 + width % 3)
            found = native.solve(graph, p, weight, inverse, **how, isa=isa, width=width)
            if isa == "plain" and best > 0:  # has no fused step
                torch.testing.assert_close(found[0], usual[0], atol=1e-6, rtol=0)
                if width == 1:
                    first = found
                assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
            else:
                assert all(torch.equal(a, b) for a, b in zip(found, usual, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_numbering_order_and_direction_do_not_matter(seed, backend):
    edge_index, edge_type, nodes = random_edges(seed)
    graph = random_graph(seed)
    p, weight, _ = random_inputs(graph, 2, seed, torch.float64)
    how = {"backend": backend, **FINE}
    scores = sppr(graph, p, weight, **how).scores
    rng = torch.Generator().manual_seed(seed)
    new_id = torch.randperm(nodes, generator=rng)
    moved = torch.empty_like(p)
    moved[:, new_id] = p
    renumbered = WalkGraph.from_edges(new_id[edge_index], edge_type, nodes, num_relations=6)
    assert torch.allclose(sppr(renumbered, moved, weight, **how).scores[:, new_id], scores)
    order = torch.randperm(len(edge_type), generator=rng)
    shuffled = WalkGraph.from_edges(edge_index[:, order], edge_type[order], nodes, num_relations=6)
    assert torch.equal(sppr(shuffled, p, weight, **how).scores, scores)
    # Both directions weigh alike, so which way an edge is written makes no difference.
    turned = WalkGraph.from_edges(edge_index.flip(0), edge_type, nodes, num_relations=6)
    assert torch.allclose(sppr(turned, p, weight, **how).scores, scores)
    # Only the ratio of weights counts.
    assert torch.allclose(sppr(graph, p, weight * 1e-3, **how).scores, scores)


@pytest.mark.parametrize("small", [1e-30, 1e-38, 1e-40, 1e-44])
def test_weights_too_small_for_a_normal_number(small, backend):
    p = torch.tensor([[1.0, 0, 0, 0, 0]])
    edges = [(0, 0, 1), (1, 0, 0), (2, 0, 1), (3, 1, 4)]
    usual = sppr(walk_graph(5, edges, 2), p, torch.ones(1, 2), backend=backend).scores
    for other in (1.0, small):  # beside large weights, and alone
        weight = torch.tensor([[small, other]])
        found = sppr(walk_graph(5, edges, 2), p, weight, backend=backend).scores
        assert torch.allclose(found, usual, atol=1e-6)


def test_weights_too_far_apart_for_single_precision_are_refused():
    p, weight = torch.full((2, 5), 0.2), torch.ones(2, 3)
    weight[1] = torch.tensor([1e38, 1.0, 1e-40])
    with pytest.raises(ValueError, match=r"weights of question 1 lie too far apart .* float64"):
        sppr(FIVE, p, weight)
    found = sppr(FIVE, p.double(), weight.double(), tol=1e-12).scores
    exact = sppr(FIVE, p.double(), weight.double(), tol=1e-12, backend="scipy").scores
    assert torch.allclose(found, exact, atol=1e-9)


def test_a_personalization_that_sums_nearly_to_one(backend):
    """What is accepted costs no accuracy: it is walked as if it summed to 1."""
    graph = random_graph(2)
    p, weight, _ = random_inputs(graph, 2, 2, torch.float64)
    usual = sppr(graph, p, weight, backend=backend, **FINE).scores
    found = sppr(graph, p * (1 + 9e-5), weight, backend=backend, **FINE).scores
    assert (found - usual).abs().sum(1).max() < 1e-9


def test_a_device_that_is_not_the_graphs_is_named():
    p, weight = torch.full((1, 5), 0.2), torch.ones(1, 3)
    for name, given in (
        ("personalization", (p.to("meta"), weight, None)),
        ("relation_weight", (p, weight.to("meta"), None)),
        ("inverse_weight", (p, weight, weight.to("meta"))),
    ):
        with pytest.raises(ValueError, match=f"{name} is on meta, and the graph on cpu"):
            solve._checked(FIVE, *given)


def test_a_slow_pair_of_nodes(backend):
    """Two nodes that only lead to each other hold mass longest: still within the tolerance."""
    graph = walk_graph(4, [(0, 0, 1), (2, 0, 3), (3, 0, 2), (2, 1, 2)], 2)
    p, weight = torch.tensor([[0.9, 0, 0.1, 0]], dtype=torch.float64), torch.tensor([[1.0, 5.0]])
    weight = weight.double()
    exact = sppr(graph, p, weight, restart=0.01, backend="scipy", **FINE).scores
    found = sppr(graph, p, weight, restart=0.01, max_steps=5000, backend=backend).scores
    assert (found - exact).abs().sum() < 10 * 1e-6 / 0.01


def test_smallest_graphs(backend):
    one = torch.ones(1, 1)
    assert sppr(walk_graph(1, [], 0), one, one[:, :0], backend=backend).scores.tolist() == [[1]]
    loop = walk_graph(1, [(0, 0, 0)], 1)
    assert sppr(loop, one, one, backend=backend).scores.tolist() == [[1]]
    empty = sppr(walk_graph(0, [], 0), one[:, :0], one[:, :0], backend=backend)
    assert (empty.scores.shape, empty.steps.tolist(), empty.residual.tolist()) == (
        (1, 0),
        [[0]],
        [[0]],
    )
    p = torch.tensor([[0.5, 0.25, 0.25]])
    assert torch.allclose(sppr(walk_graph(3, [], 2), p, torch.ones(1, 2), backend=backend)[0], p)
    none = sppr(FIVE, torch.zeros(0, 5), torch.zeros(0, 3), backend=backend)
    assert none.scores.shape == (0, 5)


def test_seventy_thousand_relations(backend):
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(50, (2, 300), generator=rng)
    edge_type = torch.randint(70_000, (300,), generator=rng)
    edge_type[0] = 69_999
    graph = WalkGraph.from_edges(edge_index, edge_type, 50)
    assert graph.num_relations == 70_000
    assert graph.rel.dtype == torch.int32
    p, weight, inverse = random_inputs(graph, 2, 1, torch.float64)
    found = sppr(graph, p, weight, inverse_weight=inverse, backend=backend, **FINE).scores
    for question in range(2):
        exact = closed_form(
            (edge_index, edge_type, 50), p[question], weight[question], inverse[question], 0.15
        )
        np.testing.assert_allclose(found[question], exact, atol=1e-10)


def test_layouts_and_types_of_the_inputs(backend):
    graph = random_graph(4)
    p, weight, _ = random_inputs(graph, 3, 4)
    usual = sppr(graph, p, weight, backend=backend).scores
    strided_p, strided_w = p.T.contiguous().T, torch.cat([weight, weight], 1)[:, :6]
    assert not strided_p.is_contiguous()
    assert not strided_w.is_contiguous()
    assert torch.equal(sppr(graph, strided_p, strided_w, backend=backend).scores, usual)
    assert torch.equal(sppr(graph, p.to_sparse(), weight, backend=backend).scores, usual)
    half = sppr(graph, p.half(), weight.half(), backend=backend).scores
    assert half.dtype == torch.float32
    mixed = sppr(graph, p.double(), weight, backend=backend).scores
    assert mixed.dtype == torch.float64
    assert torch.allclose(mixed.float(), usual, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"p": (1, 2, torch.nan)},
            "personalization must be .* got nan at question 1, graph 1, position 0",
        ),
        ({"p": (0, 4, -0.1)}, "personalization .* got -0.1.* question 0, graph 1, position 2"),
        ({"p": (0, 5, torch.inf)}, "personalization .* got inf at question 0, graph 1, position 3"),
        ({"p": (1, 0, 0.4)}, "personalization of question 1, graph 0 must sum to 1, got 0.9"),
        ({"p": (0, 5, 0.0)}, "personalization of question 0, graph 1 must sum to 1, got 0.5"),
        ({"p": (1, slice(2, 6), 0.0)}, "question 1, graph 1 must sum to 1, got 0.0"),
        ({"w": (1, 3, torch.inf)}, "relation_weight .* got inf at question 1, graph 1, position 1"),
        ({"w": (0, 1, -1.0)}, "relation_weight .* got -1.0 at question 0, graph 0, position 1"),
        ({"w": (0, 2, torch.nan)}, "relation_weight .* got nan at question 0, graph 1, position 0"),
        ({"v": (1, 1, -2.0)}, "inverse_weight .* got -2.0 at question 1, graph 0, position 1"),
        ({"restart": 0.0}, r"restart must lie in \(0, 1\), got 0.0"),
        ({"restart": 1.0}, r"restart must lie in \(0, 1\), got 1.0"),
        ({"tol": 0.0}, "tol must be positive, got 0.0"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(changes, message):
    edge = torch.tensor([[0], [1]]), torch.tensor([0])
    batch = GraphTensors.collate([as_tensors(*edge, nodes, 2) for nodes in (2, 4)])
    p = torch.tensor([[0.5, 0.5, 0, 0.5, 0, 0.5]] * 2)
    weight, inverse = torch.ones(2, 4), torch.ones(2, 4)
    for value, name in ((p, "p"), (weight, "w"), (inverse, "v")):
        if name in changes:
            row, column, new = changes.pop(name)
            value[row, column] = new
    with pytest.raises(ValueError, match=message):
        sppr(batch, p, weight, inverse_weight=inverse, **changes)


def test_shapes_and_names_that_do_not_fit():
    """By way of the parts: in these tests the annotations would already refuse them."""
    p, weight = torch.full((2, 5), 0.2), torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"personalization has shape \[2, 4\], .* 5 nodes"):
        solve._checked(FIVE, p[:, :4], weight, None)
    for bad in (weight[:1], weight[:, :2]):
        with pytest.raises(ValueError, match=r"relation_weight has shape .* 2 questions and 3 rel"):
            solve._checked(FIVE, p, bad, None)
        with pytest.raises(ValueError, match=r"inverse_weight has shape .* 2 questions and 3 rel"):
            solve._checked(FIVE, p, weight, bad)
    with pytest.raises(
        ValueError, match=r"backend must be 'auto' or one of .*'native'.* got 'cupy'"
    ):
        solve._solver("cupy", FIVE, p, weight, weight)


def test_gradient_in_weights_and_personalization():
    graph = walk_graph(4, [(0, 0, 1), (1, 1, 2), (0, 1, 1), (2, 2, 2), (2, 0, 0)], 3)  # n3 alone
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[0.5, 1.0, 0.2]], dtype=torch.float64, requires_grad=True)
    inverse = torch.tensor([[0.7, 0.1, 0.9]], dtype=torch.float64, requires_grad=True)

    def walk(p, weight, inverse):
        return sppr(graph, p, weight, inverse_weight=inverse, tol=1e-15, max_steps=6).scores

    assert torch.autograd.gradcheck(walk, (p, weight, inverse))

    # At rest: more weight on r1, which leads from n0 by n1 to n2 and to no other place.
    def at_n2(w1: float) -> float:
        changed = torch.tensor([[0.5, w1, 0.2]], dtype=torch.float64)
        return sppr(graph, p.detach(), changed, **FINE).scores[0, 2].item()

    sppr(graph, p, weight, **FINE).scores[0, 2].backward()
    slope = (at_n2(1 + 1e-5) - at_n2(1 - 1e-5)) / 2e-5
    assert weight.grad[0, 1].item() == pytest.approx(slope, rel=1e-5)
    assert slope != 0


def test_gradient_stays_finite_where_weights_are_zero():
    graph = random_graph(4)
    p, weight, _ = random_inputs(graph, 3, 4)
    weight[1] = 0
    p.requires_grad_()
    weight.requires_grad_()
    sppr(graph, p, weight).scores.square().sum().backward()
    assert torch.isfinite(p.grad).all()
    assert torch.isfinite(weight.grad).all()
    for backend in ("native", "scipy"):
        with pytest.raises(ValueError, match=f"'{backend}' gives no gradient"):
            sppr(graph, p, weight, backend=backend)
        with torch.no_grad():
            sppr(graph, p, weight, backend=backend)


def test_without_the_kernel_scipy_does_the_work(monkeypatch, tmp_path, caplog):
    graph = random_graph(1)
    p, weight, _ = random_inputs(graph, 2, 1)
    usual = sppr(graph, p, weight, backend="scipy")
    (tmp_path / "_native.so").write_text("not a library")
    native._library.cache_clear()
    for missing in ("absent.so", "_native.so"):
        monkeypatch.setattr(native, "LIBRARY", tmp_path / missing)
        caplog.clear()
        for _ in range(3):
            again = random_graph(1)  # prepared without the kernel, too
            assert torch.equal(sppr(again, p, weight).scores, usual.scores)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "C++ kernel is not there" in caplog.text
        with pytest.raises(RuntimeError, match="was not built"):
            sppr(graph, p, weight, backend="native")
        native._library.cache_clear()


def test_a_kernel_of_another_version_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(native, "ABI", -1)
    native._library.cache_clear()
    assert not native.available()
    assert "is of another version" in caplog.text
    native._library.cache_clear()


def test_a_compiler_that_fails_leaves_a_package_that_works(tmp_path):
    """The same build as at installation, in a copy, with a compiler that always fails."""
    root = Path(native.__file__).parents[2]
    for name in ("setup.py", "bisrqa/walk/native.cpp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=tmp_path, text=True,
        capture_output=True, env=os.environ | {"CC": "false", "CXX": "false"}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "failed" in done.stdout + done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_auto_takes_the_kernel(monkeypatch):
    called = []
    monkeypatch.setattr(
        solve.native,
        "solve",
        lambda *given, **options: called.append(1) or native_solve(*given, **options),
    )
    graph = random_graph(1)
    p, weight, _ = random_inputs(graph, 2, 1)
    sppr(graph, p, weight)
    assert called == [1]


native_solve = native.solve


def test_offsets_beyond_32_bits(tmp_path):
    """The arcs stand behind 2**31 others that no node uses; the file is sparse and never read."""
    graph = random_graph(6)
    p, weight, inverse = random_inputs(graph, 3, 6)
    usual = sppr(graph, p, weight, inverse_weight=inverse, backend="native")
    far = 2**31 + 11
    moved = {"ptr": graph.ptr + far}
    for name in ("src", "rel"):
        value = getattr(graph, name).numpy()
        shape = (far + len(value),)
        behind = np.memmap(tmp_path / name, value.dtype, mode="w+", shape=shape)
        behind[far:] = value
        moved[name] = torch.from_numpy(behind)
    assert (tmp_path / "src").stat().st_blocks * 512 < 2**20
    found = native.solve(
        dataclasses.replace(graph, **moved), p, weight, inverse, restart=0.15, tol=1e-6,
        max_steps=200
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(found, usual, strict=True))


def test_each_question_may_have_a_restart_of_its_own():
    graph = random_graph(3)
    p, weight, inverse = random_inputs(graph, 3, 3)
    restart = torch.tensor([0.1, 0.3, 0.6])
    found = sppr(graph, p, weight, inverse_weight=inverse, restart=restart, backend="auto").scores
    for q, value in enumerate(restart.tolist()):
        rows = slice(q, q + 1)
        alone = sppr(
            graph, p[rows], weight[rows], inverse_weight=inverse[rows], restart=value,
            backend="torch",
        )  # fmt: skip
        torch.testing.assert_close(found[rows], alone.scores, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="'native' takes one restart"):
        sppr(graph, p, weight, restart=restart, backend="native")
    with pytest.raises(ValueError, match=r"restart must lie in \(0, 1\), got 1.5"):
        sppr(graph, p, weight, restart=torch.tensor([0.1, 0.2, 1.5]))


def test_the_walk_has_a_gradient_in_all_that_steers_it():
    graph = random_graph(5, nodes=6)
    p, weight, inverse = random_inputs(graph, 2, 5, dtype=torch.float64)
    values = (p + 0.1, weight + 0.2, inverse + 0.2, torch.tensor([0.2, 0.4], dtype=torch.float64))

    def walk(p, weight, inverse, restart):
        return sppr(
            graph, p / p.sum(1, keepdim=True), weight, inverse_weight=inverse, restart=restart,
            max_steps=8, tol=1e-30, backend="torch",
        ).scores  # fmt: skip

    assert torch.autograd.gradcheck(walk, [value.requires_grad_() for value in values])
