"""GraphTensors: what its check names, and that batching, saving and moving lose nothing."""

import copy
import dataclasses
import json
import shutil

import pytest
import torch
from torch import Tensor

from bisrqa.data.records import Triple
from bisrqa.graph import tensors
from bisrqa.graph.build import from_triples
from bisrqa.graph.tensors import GraphTensors, NodeKind, batch_of

FIELDS = [field.name for field in dataclasses.fields(GraphTensors)]


def graph(edges: list[tuple[int, int, int, int]], kinds: str = "EEMP", relations: int = 2):
    """Edges are (head, relation, tail, passage); kinds one letter a node."""
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 4)
    seed = len(edges) + 100 * len(kinds)
    rng = torch.Generator().manual_seed(seed)
    kind = {"E": NodeKind.ENTITY, "M": NodeKind.MEDIATOR, "P": NodeKind.PASSAGE}
    return GraphTensors(
        x=torch.randn(len(kinds), 3, generator=rng),
        node_text=tuple(f"{letter}{i} of {seed}: é中" for i, letter in enumerate(kinds)),
        node_kind=torch.tensor([kind[letter] for letter in kinds], dtype=torch.int8),
        edge_index=table[:, [0, 2]].T.contiguous(),
        edge_type=table[:, 1].contiguous(),
        edge_passage=table[:, 3].contiguous(),
        relation_x=torch.randn(relations, 3, generator=rng),
        relation_text=tuple(f"r{i} of {seed}" for i in range(relations)),
        node_ptr=torch.tensor([0, len(kinds)]),
        edge_ptr=torch.tensor([0, len(edges)]),
        relation_ptr=torch.tensor([0, relations]),
    )


def multigraph():
    """Parallel edges, both directions, self-loops, a mediator, a passage, one edge twice."""
    edges = [(0, 0, 1, 3), (0, 1, 1, -1), (1, 0, 0, -1), (0, 0, 0, 3), (1, 1, 2, -1), (1, 1, 2, -1)]
    return graph(edges)


def nodes_only():
    return graph([], "EM", relations=0)


def empty():
    return graph([], "", relations=0)


def assert_same(one: GraphTensors, other: GraphTensors) -> None:
    for name in FIELDS:
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, Tensor):
            assert left.dtype == right.dtype, name
            assert torch.equal(left, right), name
        else:
            assert left == right, name


def damaged(whole: GraphTensors, **changes) -> GraphTensors:
    """A copy with fields changed behind the back of the shape checks at its construction."""
    other = copy.copy(whole)
    for name, value in changes.items():
        object.__setattr__(other, name, value)
    return other


def put(values: Tensor, place: int | tuple[int, ...], value: float) -> Tensor:
    values = values.clone()
    values[place] = value
    return values


def test_sound_graphs_pass():
    for sound in (multigraph(), nodes_only(), empty()):
        assert sound.check() is sound
        batch = GraphTensors.collate([sound, sound])
        assert batch.check() is batch


def test_counts_and_batch_vectors():
    batch = GraphTensors.collate([multigraph(), empty(), nodes_only(), multigraph()])
    assert batch.num_graphs == 4
    assert (batch.num_nodes, batch.num_edges, batch.num_relations) == (10, 12, 4)
    assert batch.node_batch.tolist() == [0] * 4 + [2] * 2 + [3] * 4
    assert batch.edge_batch.tolist() == [0] * 6 + [3] * 6
    assert batch.relation_batch.tolist() == [0, 0, 3, 3]
    assert batch_of(torch.tensor([0, 0, 2, 2, 3]), 3).tolist() == [1, 1, 3]
    assert batch.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda x: x[1:], "x has 3 rows, expected 4"),
        ("x", lambda x: put(x, (1, 0), torch.nan), r"x\[1\] holds .* not finite \(text 'E1 of"),
        ("relation_x", lambda x: x[:1], "relation_x has 1 rows, expected 2"),
        ("relation_x", lambda x: put(x, 1, -torch.inf), r"relation_x\[1\] holds .*'r1 of"),
        ("node_text", lambda t: t[1:], "x has 4 rows, expected 3"),
        ("relation_text", lambda t: (*t, "r"), "relation_x has 2 rows, expected 3"),
        ("node_kind", lambda k: k[1:], "node_kind has 3 rows"),
        ("node_kind", lambda k: put(k, 2, 4), r"node_kind\[2\] is 4, expected 0 to 3"),
        ("edge_index", lambda e: put(e, (1, 2), 4), r"edge_index\[1, 2\] is 4, expected 0 to 3"),
        ("edge_index", lambda e: put(e, (0, 5), -1), r"edge_index\[0, 5\] is -1"),
        ("edge_index", lambda e: e[:1], r"edge_index has shape \[1, 6\], expected \[2, edges\]"),
        ("edge_index", lambda e: e[0], r"edge_index has shape \[6\]"),
        ("edge_index", lambda e: e[:, 1:], "edge_type has 6 rows, expected 5"),
        ("edge_type", lambda t: t[1:], "edge_type has 5 rows"),
        ("edge_type", lambda t: put(t, 0, 2), r"edge_type\[0\] is 2, expected 0 to 1"),
        ("edge_passage", lambda p: p[1:], "edge_passage has 5 rows"),
        ("edge_passage", lambda p: put(p, 3, -2), r"edge_passage\[3\] is -2, expected -1 to 3"),
        ("node_ptr", lambda p: p[:1], "node_ptr must rise from 0 to 4, once a graph"),
        ("node_ptr", lambda p: p + 1, "node_ptr must rise"),
        ("edge_ptr", lambda p: torch.tensor([0, 3, 6]), "edge_ptr must rise"),
        ("edge_ptr", lambda p: p - 1, "edge_ptr must rise"),
        ("relation_ptr", lambda p: put(p, 1, 1), r"relation_ptr must rise .* got \[0, 1\]"),
    ],
)
def test_faults_are_named(name, change, message):
    whole = multigraph()
    with pytest.raises(ValueError, match=message):
        damaged(whole, **{name: change(getattr(whole, name))}).check()


def test_what_crosses_between_graphs_is_named():
    batch = GraphTensors.collate([multigraph(), multigraph()])
    for changes, message in (
        ({"edge_index": put(batch.edge_index, (1, 7), 0)}, "edge 7 leaves its graph"),
        ({"edge_index": put(batch.edge_index, (0, 2), 5)}, "edge 2 leaves its graph"),
        ({"edge_type": put(batch.edge_type, 8, 1)}, "edge 8 leaves its graph"),
        ({"edge_passage": put(batch.edge_passage, 6, 3)}, "edge 6 leaves its graph"),
        ({"node_ptr": torch.tensor([0, 9, 8])}, "node_ptr must rise"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(batch, **changes).check()


def test_collate_by_hand():
    one = graph([(0, 1, 1, 3)])
    batch = GraphTensors.collate([one, empty(), graph([(2, 0, 0, -1), (1, 1, 1, 0)], "EEE")])
    assert batch.edge_index.tolist() == [[0, 6, 5], [1, 4, 5]]
    assert batch.edge_type.tolist() == [1, 2, 3]
    assert batch.edge_passage.tolist() == [3, -1, 4]
    assert batch.node_ptr.tolist() == [0, 4, 4, 7]
    assert batch.edge_ptr.tolist() == [0, 1, 1, 3]
    assert batch.relation_ptr.tolist() == [0, 2, 2, 4]
    assert torch.equal(batch.x[:4], one.x)
    with pytest.raises(ValueError, match="at least one graph"):
        GraphTensors.collate([])


@pytest.mark.parametrize("order", [[0], [2], [0, 1, 2, 3], [2, 3, 2], [1, 1, 0, 2], [3, 2, 1, 0]])
def test_unbatch_undoes_collate(order):
    kinds = multigraph(), nodes_only(), empty(), graph([(1, 0, 1, 1)], "EP")
    parts = [kinds[i] for i in order]
    batch = GraphTensors.collate(parts)
    back = batch.unbatch()
    assert len(back) == len(parts)
    for part, again in zip(parts, back, strict=True):
        assert_same(again.check(), part)
    # Batches can be batched.
    assert_same(GraphTensors.collate([batch, parts[0]]), GraphTensors.collate([*parts, parts[0]]))


@pytest.mark.parametrize("make", [multigraph, nodes_only, empty])
def test_load_gives_what_was_saved(make, tmp_path):
    batch = GraphTensors.collate([make(), multigraph(), make()])
    for number, whole in enumerate([make(), batch, batch.unbatch()[1]]):
        whole.save(tmp_path / str(number))
        assert_same(GraphTensors.load(tmp_path / str(number)), whole)
    half = dataclasses.replace(batch, x=batch.x.half(), relation_x=batch.relation_x.half())
    half.save(tmp_path / "0")  # in place of another
    assert_same(GraphTensors.load(str(tmp_path / "0")), half)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    whole = tmp_path / "whole"
    multigraph().save(whole)
    header = json.loads((whole / "graph.json").read_text())
    names = sorted(path.name for path in whole.iterdir())
    assert names == [
        "graph.json",
        "node_text.parquet",
        "relation_text.parquet",
        "tensors.safetensors",
    ]

    def refuses(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            GraphTensors.load(folder)

    for name in names:
        content = (whole / name).read_bytes()
        for size in (None, 0, len(content) // 2, len(content) - 2):
            folder = tmp_path / f"{name}-{size}"
            shutil.copytree(whole, folder)
            if size is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content[:size])
            refuses(f"{folder}: not a whole saved graph")
    folder = tmp_path / "foreign"
    refuses(f"{folder}: not a whole saved graph")
    folder.mkdir()
    refuses(f"{folder}: not a whole saved graph")
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    for text in ("[]", '{"format": 0}', "{}"):
        (folder / "graph.json").write_text(text)
        refuses(rf"{folder}/graph\.json: format .*, this version reads 1")
    (folder / "graph.json").write_bytes(b"\xff\xfe")
    refuses(f"{folder}: not a whole saved graph")
    (folder / "graph.json").write_text(json.dumps(header))
    found = {k: v for k, v in vars(multigraph()).items() if isinstance(v, Tensor)}
    tensors.save_file({**found, "y": torch.ones(1)}, folder / "tensors.safetensors")
    refuses(rf"{folder}/tensors\.safetensors: holds .*'y'")
    tensors.save_file(found | {"edge_type": found["edge_type"] + 7}, folder / "tensors.safetensors")
    refuses(r"edge_type\[0\] is 7")
    tensors.save_file(found, folder / "tensors.safetensors")
    shutil.copy(whole / "relation_text.parquet", folder / "node_text.parquet")
    refuses("x has 4 rows, expected 2")
    column = tensors.pyarrow.table({"name": ["a"]})
    tensors.pyarrow.parquet.write_table(column, folder / "node_text.parquet")
    refuses(f"{folder}: not a whole saved graph")


@pytest.mark.parametrize("failing", ["save_file", "_write_table", "dumps"])
def test_a_save_that_fails_leaves_what_was_there(failing, tmp_path, monkeypatch):
    multigraph().save(tmp_path / "old")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    match failing:
        case "save_file":
            monkeypatch.setattr(tensors, "save_file", fail)
        case "_write_table":
            monkeypatch.setattr(tensors.pyarrow.parquet, "write_table", fail)
        case "dumps":
            monkeypatch.setattr(tensors.json, "dumps", fail)
    for name in ("old", "new"):
        with pytest.raises(OSError, match="disk full"):
            nodes_only().save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert_same(GraphTensors.load(tmp_path / "old"), multigraph())


def test_to_moves_every_tensor_and_nothing_else():
    whole = multigraph()
    moved = whole.to("meta")
    for name in FIELDS:
        value = getattr(moved, name)
        if isinstance(value, Tensor):
            assert value.device.type == "meta", name
            assert value.shape == getattr(whole, name).shape
        else:
            assert value == getattr(whole, name)
    assert moved.device.type == "meta"
    assert_same(whole.to(torch.device("cpu")), multigraph())


def test_modules_of_pyg_work_on_a_batch():
    from torch_geometric.nn import RGCNConv

    first = from_triples([Triple("a", "r", "b"), Triple("a", "s", "b")], letters)
    second = from_triples([Triple("c", "r", "d"), Triple("d", "r", "d")], letters)
    both = GraphTensors.collate([first, second])
    torch.manual_seed(0)
    layer = RGCNConv(first.x.shape[1], 4, num_relations=both.num_relations)
    out = layer(both.x, both.edge_index, both.edge_type)
    shifted = second.edge_type + first.num_relations
    alone = [
        layer(first.x, first.edge_index, first.edge_type),
        layer(second.x, second.edge_index, shifted),
    ]
    assert torch.allclose(out, torch.cat(alone), atol=1e-6)


def letters(texts):
    """Unit-norm rows, one direction a text."""
    rows = torch.zeros(len(texts), 26)
    for row, text in zip(rows, texts, strict=True):
        row[ord(text[0]) - ord("a")] = 1
    return rows
