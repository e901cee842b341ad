"""Forward push: within the error that it reports, and worth its name."""

import pytest
import torch
from walk_cases import closed_form, random_edges, random_graph, random_inputs

from bisrqa.walk import WalkGraph, forward_push, native, push, sppr


@pytest.fixture(params=["kernel", "torch"])
def form(request, monkeypatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(forward_push.native, "available", lambda: False)
    else:
        assert native.available()
    return request.param


def test_two_nodes_by_hand(form):
    """n0 -> n1 -> nowhere, c = 1/2: n0 keeps 1, n1 gets 1/2; n1's mass belongs back on n0."""
    edges = torch.tensor([[0], [1]])
    graph = WalkGraph.from_edges(edges, torch.tensor([0]), 2, both_ways=False)
    seeds = torch.tensor([[1.0, 0]]).to_sparse()
    found = push(graph, seeds, torch.ones(1, 1), restart=0.5, threshold=1e-3)
    assert found.scores.to_dense()[0].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.error.tolist() == [0]
    assert found.arcs.tolist() == [1]


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_the_error_is_bounded_by_what_is_reported(seed, both_ways, form):
    edges, graph = random_edges(seed), random_graph(seed, both_ways=both_ways)
    restart = [0.05, 0.15, 0.5][seed % 3]
    p, weight, inverse = random_inputs(graph, 4, seed, torch.float64)
    errors = []
    for threshold in (0.1, 1e-3, 1e-6, 1e-12):
        found = push(
            graph, p.to_sparse(), weight, inverse_weight=inverse, restart=restart,
            threshold=threshold
        )  # fmt: skip
        scores = found.scores.to_dense()
        assert torch.allclose(scores.sum(1), torch.ones(4, dtype=torch.float64))
        for question in range(4):
            exact = torch.from_numpy(
                closed_form(
                    edges, p[question], weight[question], inverse[question], restart, both_ways
                )
            )
            assert (scores[question] - exact).abs().sum() <= found.error[question] + 1e-12
        errors.append(found.error.max().item())
    assert sorted(errors, reverse=True) == errors
    assert errors[0] <= 2
    assert errors[-1] < 1e-8


def test_both_forms_find_the_same(monkeypatch):
    graph = random_graph(3, nodes=300)
    p, weight, _ = random_inputs(graph, 3, 3, torch.float64)
    one = push(graph, p, weight, threshold=1e-13).scores
    monkeypatch.setattr(forward_push.native, "available", lambda: False)
    other = push(graph, p, weight, threshold=1e-13).scores
    assert torch.allclose(one.to_dense(), other.to_dense(), atol=1e-9)
    assert one.is_coalesced()
    assert other.is_coalesced()


def test_work_depends_on_the_neighbourhood_not_on_the_graph(form):
    """A ring of 50 and a ring of 50,000 nodes look alike from one seed."""
    arcs = []
    for nodes in (50, 50_000):
        ring = torch.arange(nodes)
        graph = WalkGraph.from_edges(
            torch.stack([ring, (ring + 1) % nodes]), torch.zeros(nodes, dtype=torch.long), nodes
        )
        seeds = torch.sparse_coo_tensor([[0], [7]], [1.0], (1, nodes), check_invariants=True)
        found = push(graph, seeds, torch.ones(1, 1), threshold=1e-2)
        arcs.append(found.arcs.item())
        assert found.scores._nnz() < 25
    assert arcs[0] == arcs[1] < 200


def test_the_best_are_those_of_the_walk():
    graph = random_graph(5, nodes=3000)
    _, weight, _ = random_inputs(graph, 6, 5, torch.float64)
    rng = torch.Generator().manual_seed(0)
    p = torch.zeros(6, 3000, dtype=torch.float64)
    for row in p:
        row[torch.randint(2000, (50,), generator=rng)] = 1 / 50
    p /= p.sum(1, keepdim=True)
    exact = sppr(graph, p, weight, tol=1e-10).scores.topk(100).indices
    found = push(graph, p, weight, threshold=1e-7).scores.to_dense().topk(100).indices
    shared = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert sum(shared) / 600 >= 0.99


def test_threads_and_company_change_nothing(set_threads):
    graph = random_graph(6, nodes=500)
    p, weight, _ = random_inputs(graph, 5, 6)
    set_threads(3)
    together = push(graph, p, weight, threshold=1e-5)
    set_threads(1)
    for question in range(5):
        alone = push(graph, p[[question]], weight[[question]], threshold=1e-5)
        assert torch.equal(alone.scores.to_dense()[0], together.scores.to_dense()[question])
        assert alone.error[0] == together.error[question]
        assert alone.arcs[0] == together.arcs[question]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": (1, 2, -0.5)}, "seeds must be .* got -0.5 at question 1, position 2"),
        ({"p": (0, 3, torch.nan)}, "seeds must be .* got nan at question 0, position 3"),
        ({"p": (1, 0, 2.0)}, r"seeds of question 1 must sum to 1, got 2.88"),
        ({"p": (0, slice(0, 9), 0.0)}, r"seeds of question 0 must sum to 1, got 0\.0"),
        ({"w": (0, 1, torch.inf)}, "relation_weight must be .* got inf at question 0"),
        ({"restart": 1.5}, r"restart must lie in \(0, 1\), got 1.5"),
        ({"threshold": 0.0}, "threshold must be positive, got 0.0"),
    ],
)
def test_bad_input_is_named(changes, message):
    graph = random_graph(1, nodes=9)
    p, weight = torch.full((2, 9), 1 / 9), torch.ones(2, 6)
    for value, name in ((p, "p"), (weight, "w")):
        if name in changes:
            row, column, new = changes.pop(name)
            value[row, column] = new
    with pytest.raises(ValueError, match=message):
        push(graph, p.to_sparse(), weight, **changes)


def test_weights_too_small_to_divide_by(form):
    graph = random_graph(2, nodes=20)
    p, weight, _ = random_inputs(graph, 2, 2, torch.float64)
    usual = push(graph, p, weight + 0.1, threshold=1e-9).scores.to_dense()
    tiny = push(graph, p, (weight + 0.1) * 1e-300, threshold=1e-9).scores.to_dense()
    assert torch.allclose(tiny, usual, atol=1e-7)


def test_a_batch_is_refused():
    one = random_graph(1, nodes=4)
    two = WalkGraph(
        **{
            **vars(one),
            "node_ptr": torch.tensor([0, 2, 4]),
            "relation_ptr": torch.tensor([0, 3, 6]),
        }
    )
    with pytest.raises(ValueError, match="one graph, got a batch of 2"):
        push(two, torch.full((1, 4), 0.25), torch.ones(1, 6))
