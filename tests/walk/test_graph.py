"""The prepared graph: its order, the same with and without the kernel, on disk, and its size."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from walk_cases import random_edges, random_graph

from bisrqa.walk import WalkGraph, native
from bisrqa.walk import graph as module

TENSORS = [f.name for f in dataclasses.fields(WalkGraph) if f.name != "both_ways"]


def assert_same(one: WalkGraph, other: WalkGraph) -> None:
    assert one.both_ways == other.both_ways
    for name in TENSORS:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype, name
        assert left.is_contiguous(), name
        assert right.is_contiguous(), name
        assert left.tolist() == right.tolist(), name


def test_by_hand():
    """n0 -r1-> n1 twice and -r0-> n1 once, n1 -r1-> n0, n2 with two self-loops, n3 alone."""
    edges = torch.tensor([[0, 0, 0, 1, 2, 2, 2], [1, 1, 1, 0, 2, 2, 2]])
    kinds = torch.tensor([1, 0, 1, 1, 1, 0, 1])
    graph = WalkGraph.from_edges(edges, kinds, 4)
    assert graph.ptr.tolist() == [0, 3, 6, 6, 6]
    assert graph.src.tolist() == [1, 1, 1, 0, 0, 0]
    assert graph.rel.tolist() == [1, 2, 3, 0, 2, 3]  # 2 r along, 2 r + 1 against
    assert graph.loop_node.tolist() == [2, 2]
    assert graph.loop_rel.tolist() == [0, 2]
    assert graph.dst.tolist() == [0, 0, 0, 1, 1, 1]
    assert (graph.ptr.dtype, graph.src.dtype, graph.rel.dtype) == (
        torch.int64,
        torch.int32,
        torch.uint16,
    )
    one_way = WalkGraph.from_edges(edges, kinds, 4, both_ways=False)
    assert one_way.src.tolist() == [1, 0, 0]
    assert one_way.rel.tolist() == [2, 0, 2]


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_and_torch_prepare_the_same(seed, both_ways, monkeypatch, set_threads):
    set_threads(1 + seed % 3)
    edge_index, edge_type, nodes = random_edges(seed, [None, 1, 3][seed % 3])
    edge_type = edge_type * [1, 9000][seed % 2]  # 9000 * 4 needs the wide type
    with_kernel = WalkGraph.from_edges(edge_index, edge_type, nodes, both_ways=both_ways)
    monkeypatch.setattr(native, "available", lambda: False)
    with_torch = WalkGraph.from_edges(edge_index, edge_type, nodes, both_ways=both_ways)
    assert_same(with_kernel, with_torch)
    assert (with_kernel.rel.dtype == torch.int32) == (int(edge_type.max()) >= 2**15)


def test_outward_arcs_are_the_edges():
    for both_ways in (True, False):
        graph = random_graph(2, both_ways=both_ways)
        out = graph.outward
        into = set(zip(graph.src.tolist(), graph.dst.tolist(), graph.rel.tolist(), strict=True))
        flip = int(both_ways)
        away = {
            (u, v, r ^ flip)
            for v, u, r in zip(out.src.tolist(), out.dst.tolist(), out.rel.tolist(), strict=True)
        }
        assert away == into
        assert out.loop_node.tolist() == graph.loop_node.tolist()
        assert out.loop_rel.tolist() == graph.loop_rel.tolist()


@pytest.mark.parametrize("mmap", [True, False])
def test_saved_and_loaded(tmp_path, mmap):
    for seed, graph in enumerate((random_graph(3), random_graph(4, both_ways=False))):
        graph.save(tmp_path / str(seed))
        before = {f.name: f.read_bytes() for f in (tmp_path / str(seed)).iterdir()}
        found = WalkGraph.load(tmp_path / str(seed), mmap=mmap)
        assert_same(found, graph)
        found.src[0] = 7  # a change stays in memory
        assert {f.name: f.read_bytes() for f in (tmp_path / str(seed)).iterdir()} == before


def test_what_cannot_be_loaded_is_named(tmp_path):
    graph = random_graph(3)
    for number, (file, content) in enumerate(
        [
            ("walk.json", b"{"),
            ("walk.json", b'{"format": 99}'),
            ("walk.json", b"[]"),
            ("src.npy", b"\x93NUMPY"),
            ("src.npy", None),
            ("rel.npy", graph),
            ("walk.json", b'{"format": 1}'),
        ]
    ):
        folder = tmp_path / str(number)
        graph.save(folder)
        if content is None:
            (folder / file).unlink()
        elif isinstance(content, bytes):
            (folder / file).write_bytes(content)
        else:
            np.save(folder / file, content.rel.numpy()[:-1])
        with pytest.raises(ValueError, match=f"{folder}: not a whole prepared graph"):
            WalkGraph.load(folder)


@pytest.mark.parametrize(
    ("edge_index", "edge_type", "message"),
    [
        ([[0, 1, 2], [1, 2, 4]], [0, 0, 0], r"edge_index of edge 2 is \[2, 4\], expected 0 to 3"),
        ([[0, -1], [1, 1]], [0, 0], r"edge_index of edge 1 is \[-1, 1\], expected 0 to 3"),
        ([[0, 0], [1, 1]], [0, 2], "edge_type of edge 1 is 2, expected 0 to 1"),
        ([[0, 0], [1, 1]], [-3, 0], "edge_type of edge 0 is -3, expected 0 to 1"),
    ],
)
def test_ids_out_of_range_are_named(edge_index, edge_type, message):
    with pytest.raises(ValueError, match=message):
        WalkGraph.from_edges(torch.tensor(edge_index), torch.tensor(edge_type), 4, num_relations=2)


def test_shapes_that_do_not_fit_are_named():
    ptrs = (torch.tensor([0, 4]),) * 3
    for rows, edges, kinds in ((2, 2, 1), (2, 2, 3), (3, 2, 3)):
        ends = torch.zeros(rows, edges, dtype=torch.long)
        with pytest.raises(ValueError, match=r"edge_index and edge_type have shapes .* expected"):
            module._build(ends, torch.zeros(kinds, dtype=torch.long), *ptrs, True)
    none = torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match="num_nodes must not be negative, got -1"):
        WalkGraph.from_edges(*none, -1)


@pytest.mark.parametrize("kernel", [True, False])
def test_an_edge_that_leaves_its_graph_is_named(kernel, monkeypatch, set_threads):
    set_threads(2)
    monkeypatch.setattr(native, "available", lambda: kernel)
    ptr = torch.tensor([0, 2, 4])
    for ends, kinds in (([[0, 1], [1, 2]], [0, 2]), ([[0, 2], [1, 3]], [0, 1])):
        with pytest.raises(ValueError, match="edge 1 leaves its graph"):
            module._build(
                torch.tensor(ends), torch.tensor(kinds), torch.tensor([0, 1, 2]), ptr, ptr, True
            )


def test_parts_that_do_not_fit_are_refused():
    graph = random_graph(3)
    assert len(graph.loop_node)
    for name, change, message in (
        ("loop_rel", graph.loop_rel[:-1], "loop_node has .* rows and loop_rel"),
        ("rel", graph.rel[:-1], "src has .* rows and rel"),
        ("node_ptr", graph.node_ptr - 1, "node_ptr must end at"),
        ("ptr", graph.ptr - 1, "ptr must end at"),
        ("src", graph.src.long(), r"src must be one row of torch.int32, got torch.int64"),
        ("rel", graph.rel.long(), r"rel must be one row of torch.uint16, got torch.int64"),
    ):
        other = copy.copy(graph)
        object.__setattr__(other, name, change)  # past the annotations, which tests check
        with pytest.raises(ValueError, match=message):
            other.__post_init__()


def test_more_than_the_layout_holds_is_refused():
    none = torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match="at most 2147483647 nodes, got 2147483648"):
        WalkGraph.from_edges(*none, 2**31)
    with pytest.raises(ValueError, match="at most 1073741824 relations"):
        WalkGraph.from_edges(*none, 1, num_relations=2**30 + 1)


def test_size_grows_by_what_the_layout_says():
    """Six bytes an arc and eight a node: 1.4 GB for 100 million edges walked both ways.

    That offsets of such a size are read rightly is tested with the solver.
    """
    graph = random_graph(1, nodes=3000)
    assert graph.num_bytes == (
        8 * (graph.num_nodes + 1) + 6 * graph.num_arcs + 8 * len(graph.loop_node) + 2 * 2 * 8
    )
    assert graph.num_arcs > 2 * 8000
