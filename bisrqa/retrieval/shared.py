"""One graph that all questions are asked over, prepared once and read from disk."""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import torch
from filelock import FileLock
from jaxtyping import Bool
from torch import Tensor

from bisrqa.data.records import is_bare_id
from bisrqa.files import sha256, write_folder
from bisrqa.graph.embed import EmbeddingStore
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.nearest import FaissIndex
from bisrqa.retrieval.subgraph import Links
from bisrqa.walk import WalkGraph
from bisrqa.walk import graph as walk_graph

logger = logging.getLogger(__name__)

FORMAT = 1
COLUMNS = ("head", "relation", "tail")
CHUNK_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedGraph:
    """A whole knowledge graph, and what retrieval needs beside it."""

    graph: GraphTensors
    """Named nodes first, mediators after them; edges by head. ``x`` is in half precision."""
    walk: WalkGraph
    links: Links
    num_named: int
    folder: Path
    """Where it is kept; its name changes with triples and encoder."""
    source: str
    """Hash of the file of triples."""

    @classmethod
    def open(
        cls, file: str | Path, store: EmbeddingStore, cache_dir: Path, *, progress: bool = False
    ) -> "SharedGraph":
        """Read a parquet file of triples (columns ``head``, ``relation``, ``tail``).

        The first time every distinct text is embedded and the graph is prepared, in a folder below
        ``cache_dir``; from then on embeddings and arcs are memory-mapped from there.

        Raises:
            ValueError: A file or column that is missing, or a cell without text; names the row.
        """
        file = Path(file)
        if not file.is_file():
            raise ValueError(f"data.graph_path: {file} is not a file")
        source = sha256(file)
        key = f"{FORMAT}\0{walk_graph.FORMAT}\0{source}\0{store.folder.name}"
        folder = cache_dir / "graphs" / hashlib.sha256(key.encode()).hexdigest()[:16]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):  # others wait, and find it done
            if not (folder / "shared.json").exists():
                _prepare(file, store, folder, progress)
        return cls._load(folder, source)

    @classmethod
    def _load(cls, folder: Path, source: str) -> "SharedGraph":
        try:
            header = json.loads((folder / "shared.json").read_text("utf8"))
            array: dict[str, Any] = {
                name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))
                for name in ("x", "edge_index", "edge_type")
            }
            texts: dict[str, Any] = {
                name: tuple(
                    pyarrow.parquet.read_table(folder / f"{name}.parquet")["text"].to_pylist()
                )
                for name in ("node_text", "relation_text")
            }
            relation_x = torch.from_numpy(np.load(folder / "relation_x.npy"))
            walk = WalkGraph.load(folder / "walk")
            named = int(header["named"])
            nodes, edges, relations = (len(t) for t in (array["x"], array["edge_type"], relation_x))
            found = {"nodes": nodes, "edges": edges, "relations": relations}
            if any(header[name] != size for name, size in found.items()) or (
                array["edge_index"].shape != (2, edges)
                or walk.num_nodes != nodes
                or [len(texts["node_text"]), len(texts["relation_text"])] != [nodes, relations]
            ):
                raise ValueError(f"its parts are not of one graph with {header}")
        except (
            *(OSError, ValueError, EOFError, KeyError, TypeError),
            pyarrow.ArrowException,
        ) as error:
            raise ValueError(
                f"{folder}: damaged shared graph ({error}); delete this folder to prepare it anew"
            ) from error
        kind = torch.full((nodes,), int(NodeKind.ENTITY), dtype=torch.int8)
        kind[named:] = int(NodeKind.MEDIATOR)
        graph = GraphTensors(
            **array,
            **texts,
            node_kind=kind,
            edge_passage=torch.tensor(-1).expand(edges),
            relation_x=relation_x,
            node_ptr=torch.tensor([0, nodes]),
            edge_ptr=torch.tensor([0, edges]),
            relation_ptr=torch.tensor([0, relations]),
        )
        return cls(
            graph=graph,
            walk=walk,
            links=Links.of(graph.edge_index, nodes),
            num_named=named,
            folder=folder,
            source=source,
        )

    @cached_property
    def ids(self) -> dict[str, int]:
        """Node of each name, and of each mediator's id."""
        return {name: node for node, name in enumerate(self.graph.node_text)}

    @cached_property
    def index(self) -> FaissIndex:
        """An index of the named nodes for approximate search, built when first asked for."""
        return FaissIndex(self.graph.x[: self.num_named], self.folder.with_suffix(".faiss"))

    @property
    def device(self) -> torch.device:
        return self.walk.device

    def to(self, device: torch.device | str) -> "SharedGraph":
        """The same graph with its tensors on ``device``."""
        if self.device == torch.device(device):
            return self
        return replace(
            self,
            graph=self.graph.to(device),
            walk=self.walk.to(device),
            links=Links(*(part.to(device) for part in self.links)),
        )

    def mask(self, names: Sequence[Iterable[str]]) -> Bool[Tensor, "questions nodes"]:
        """Mark each question's nodes, as far as the graph has them."""
        pairs = [
            (question, self.ids[name])
            for question, some in enumerate(names)
            for name in some
            if name in self.ids
        ]
        mask = torch.zeros(len(names), self.graph.num_nodes, dtype=torch.bool, device=self.device)
        if pairs:
            mask[tuple(torch.tensor(pairs, device=self.device).T)] = True
        return mask


def _prepare(file: Path, store: EmbeddingStore, folder: Path, progress: bool) -> None:
    """Number nodes and relations, embed their texts, and lay the arcs out for the walk."""
    logger.info("preparing %s in %s", file, folder)
    head, relation, tail = _columns(file)
    if not len(head):
        raise ValueError(f"data.graph_path: {file} holds no triples")
    ends = pyarrow.chunked_array([*head.chunks, *tail.chunks]).combine_chunks().dictionary_encode()
    kinds = relation.combine_chunks().dictionary_encode()
    node_text, relation_text = ends.dictionary.to_pylist(), kinds.dictionary.to_pylist()
    mediator = np.array([is_bare_id(name) for name in node_text], dtype=bool)
    if mediator.all():
        raise ValueError(
            f"data.graph_path: {file} has no named entity, only ids such as {node_text[0]!r}"
        )
    order = np.argsort(mediator, kind="stable")  # named nodes first
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    node_text = [node_text[i] for i in order]
    triples = np.stack(
        [*number[ends.indices.to_numpy()].reshape(2, -1), kinds.indices.to_numpy().astype(np.int64)]
    )
    triples = triples[:, np.lexsort((triples[1], triples[2], triples[0]))]
    new = np.ones(triples.shape[1], dtype=bool)
    new[1:] = (triples[:, 1:] != triples[:, :-1]).any(0)
    triples = triples[:, new]
    named = len(order) - int(mediator.sum())
    store.fill(node_text[:named] + relation_text, describe="embedding the graph", progress=progress)

    with write_folder(folder) as partial:
        x = np.lib.format.open_memmap(
            partial / "x.npy", mode="w+", dtype=np.float16, shape=(len(order), store.dim)
        )  # what is never written, the rows of mediators, takes no room on disk
        for start in range(0, named, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, named)
            x[start:stop] = store(node_text[start:stop]).numpy()
        x.flush()
        np.save(partial / "relation_x.npy", store(relation_text).numpy())
        np.save(partial / "edge_index.npy", triples[:2])
        np.save(partial / "edge_type.npy", triples[2])
        for name, texts in (("node_text", node_text), ("relation_text", relation_text)):
            column = pyarrow.table({"text": pyarrow.array(texts, pyarrow.large_string())})
            pyarrow.parquet.write_table(column, partial / f"{name}.parquet")
        edges = torch.from_numpy(triples)
        WalkGraph.from_edges(
            edges[:2], edges[2], len(order), num_relations=len(relation_text)
        ).save(partial / "walk")
        header = {
            "format": FORMAT,
            "named": named,
            "nodes": len(order),
            "edges": triples.shape[1],
            "relations": len(relation_text),
            "source": file.name,
        }
        (partial / "shared.json").write_text(json.dumps(header) + "\n", "utf8")


def _columns(file: Path) -> list[pyarrow.ChunkedArray]:
    try:
        names = pyarrow.parquet.read_schema(file).names
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise ValueError(
                f"data.graph_path: {file}: missing column {', '.join(missing)} "
                f"(it has {', '.join(names)})"
            )
        table = pyarrow.parquet.read_table(file, columns=list(COLUMNS))
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"data.graph_path: {file} cannot be read: {error}") from error
    compute: Any = pyarrow.compute  # its functions are made at run time
    columns = []
    for name in COLUMNS:
        column = table[name]
        try:
            column = column.cast(pyarrow.large_string())
        except pyarrow.ArrowException as error:
            raise ValueError(f"data.graph_path: {file}: column {name}: {error}") from error
        blank = compute.equal(compute.utf8_trim_whitespace(column), "")
        blank = compute.fill_null(blank, True)
        if compute.any(blank).as_py():
            row = compute.index(blank, True).as_py()
            raise ValueError(f"data.graph_path: {file} row {row}: column {name} has no text")
        columns.append(column)
    return columns
