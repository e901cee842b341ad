"""A corpus of texts: a folder of passages and the graph that is made of them.

The graph depends on the passages, the settings and nothing else: passages stand in the order of
their ids, and every change builds it anew from what is there. So a corpus from which a passage was
removed is, to the last byte, the corpus that never had it. What takes long, the extraction of
triples and the embeddings, is kept by content and done for new texts only.
"""

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa import chinese, data, fusion
from bisrqa.config import CorpusConfig, RunConfig, to_dict
from bisrqa.data import CORPUS
from bisrqa.data.passages import Passage, chunks_of
from bisrqa.data.records import Chunk, Question
from bisrqa.data.tally import Tally
from bisrqa.extraction import Extraction, Reader
from bisrqa.files import sha256, write_folder
from bisrqa.graph.alignment import Aligner
from bisrqa.graph.embed import EmbeddingStore
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import Merge, TextGraph, from_texts, texts_of
from bisrqa.retrieval.lexical import WordIndex
from bisrqa.retrieval.nearest import FaissIndex, nearest, similarity
from bisrqa.retrieval.surroundings import Surroundings, best_of
from bisrqa.text import normalise

logger = logging.getLogger(__name__)

FORMAT = 2
PASSAGES, MERGES, GRAPH, WORDS = "passages.jsonl", "merges.jsonl", "graph", "words"
DECISIONS = "fusion.jsonl"
MANY = 20
"""A product of all questions and chunks costs no more than a 20th of its pairs one by one."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an update did, and what the corpus holds now."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    passages: int = 0
    chunks: int = 0
    entities: int = 0
    triples: int = 0
    merges: int = 0
    events: int = 0
    fused: int = 0
    """Events that were taken for another, and so are none of their own."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A corpus that is ready to be asked."""

    folder: Path
    graph: GraphTensors
    """Entities, then chunks in the order of their passages' ids; ``x`` in half precision."""
    chunks: tuple[Chunk, ...]
    ids: tuple[str, ...]
    """Passages, by which ``Chunk.paragraph`` numbers them."""
    merges: tuple[Merge, ...]
    digest: str
    """Changes with passages and settings."""

    @classmethod
    def open(cls, folder: str | Path, identity: str | None = None) -> "Corpus":
        """Read what :func:`update` wrote.

        Args:
            folder: Of the corpus.
            identity: Of the encoder that questions will be embedded with; checked.

        Raises:
            ValueError: No corpus, a damaged one, or one of another encoder.
        """
        folder = Path(folder)
        header, passages = _read(folder)
        if identity is not None and identity != header["settings"]["embedder"]:
            raise ValueError(
                f"{folder}: its texts were embedded by {header['settings']['embedder']}, the "
                f"config's encoder is {identity}; build the corpus anew with this config"
            )
        try:
            graph = GraphTensors.load(folder / GRAPH)
            lines = (folder / MERGES).read_text("utf8").splitlines()
            merges = tuple(Merge(*json.loads(line)) for line in lines)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{folder}: damaged corpus ({error}); build it anew") from error
        chunks = tuple(_chunks(passages.values(), header["settings"]))
        if int((graph.node_kind == NodeKind.PASSAGE).sum()) != len(chunks):
            raise ValueError(f"{folder}: damaged corpus: its graph is of other texts")
        return cls(
            folder=folder, graph=graph, chunks=chunks, ids=tuple(passages), merges=merges,
            digest=sha256(folder / CORPUS),
        )  # fmt: skip

    @property
    def first(self) -> int:
        """Node of the first chunk."""
        return self.graph.num_nodes - len(self.chunks)

    @cached_property
    def surroundings(self) -> Surroundings:
        """Sorted when first asked for."""
        return Surroundings.of(self.graph)

    @cached_property
    def words(self) -> WordIndex:
        """Of the chunks, for search by shared words; kept in the folder once it is made."""
        texts = self.graph.node_text[self.first :]
        return WordIndex.open(self.folder / WORDS, texts)

    @cached_property
    def index(self) -> FaissIndex:
        """Of the chunks, for approximate search; kept in the folder once it is made."""
        return FaissIndex(self.graph.x[self.first :], self.folder / "faiss")

    @cached_property
    def merged(self) -> dict[str, tuple[Merge, ...]]:
        """The merges by the entity that names were taken for."""
        found: dict[str, list[Merge]] = {}
        for merge in self.merges:
            found.setdefault(merge.entity, []).append(merge)
        return {entity: tuple(some) for entity, some in found.items()}

    @cached_property
    def _said(self) -> str:
        """All texts, normalised, so that answers can be looked for."""
        texts = self.graph.node_text[self.first :]
        return f" {' | '.join(chinese.spaced(normalise(text)) for text in texts)} "

    def states(self, answer: str) -> bool:
        """Whether an answer, normalised, stands in any of the texts."""
        return f" {chinese.spaced(answer)} " in self._said

    def candidates(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        config: CorpusConfig,
    ) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """The chunks that each question gets to see: pairs of question and node, sorted."""
        chunk_x = self.graph.x[self.first :]
        if config.search == "faiss":
            _, ids = self.index(question_x, config.seeds)
        else:
            _, ids = nearest(question_x, chunk_x, config.seeds)
        found = [ids]
        if config.lexical:
            asked = [question.question for question in questions]
            found.append(self.words.best(asked, config.seeds).to(ids))
        ids = torch.cat(found, 1)
        seeds = ids.shape[1]
        row = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        row, ids = row[ids >= 0], ids[ids >= 0]
        question, passage = self.surroundings.expand(
            row, ids + self.first, config.hops, config.max_degree
        )
        cosine = self._cosine(question_x, question, passage)
        size = self.graph.num_nodes
        is_seed = torch.isin(question * size + passage, row * size + ids + self.first)
        keep = best_of(cosine + 2 * is_seed, question, max(config.candidates, seeds))
        return question[keep], passage[keep]

    def _cosine(
        self,
        question_x: Float[Tensor, "questions dim"],
        question: Int[Tensor, " pairs"],
        passage: Int[Tensor, " pairs"],
    ) -> Float[Tensor, " pairs"]:
        """Of each pair; where many of all pairs are wanted, by one product of matrices."""
        if MANY * len(passage) > len(question_x) * len(self.chunks):
            return similarity(question_x, self.graph.x[self.first :])[
                question, passage - self.first
            ]
        return (self.graph.x[passage].to(question_x) * question_x[question]).sum(-1)

    def cut(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        config: CorpusConfig,
    ) -> tuple[list[Question], GraphTensors]:
        """Give each question its own texts and graph, as if it had brought them."""
        question, passage = self.candidates(questions, question_x, config)
        batch = self.surroundings.cut(self.graph, question, passage, len(questions))
        counts = torch.bincount(question, minlength=len(questions)).tolist()
        numbers = (passage - self.first).split(counts)
        asked = []
        for one, some in zip(questions, numbers, strict=True):
            score = None
            if config.lexical:  # over the whole corpus: among the few, every word is frequent
                score = tuple(map(tuple, self.words.by_word(one.question, some).tolist()))
            chunks = tuple(self.chunks[n] for n in some.tolist())
            asked.append(dataclasses.replace(one, chunks=chunks, lexical=score))
        return asked, batch


def update(
    folder: str | Path,
    config: RunConfig,
    store: EmbeddingStore,
    cache_dir: Path,
    *,
    put: Iterable[Passage] = (),
    remove: Iterable[str] = (),
    progress: bool = False,
) -> Change:
    """Add, replace and remove passages; the folder is exchanged in one step.

    Args:
        folder: Of the corpus; made if there is none.
        config: ``data`` (how texts are cut), ``extraction`` and ``alignment`` are read.
        store: Embeds.
        cache_dir: Extractions are kept below it.
        put: New passages, and new texts of old ones: by their ids.
        remove: Ids; after ``put``.
        progress: Show progress bars.

    Raises:
        ValueError: Passages without or with one id, an id that is not there, other settings than
            the corpus was made with.
    """
    started, folder = time.perf_counter(), Path(folder)
    reader = None
    if config.extraction.method != "none":
        reader = Reader(config.extraction, cache_dir, progress=progress)
    settings = _settings(config, store, reader)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        old: dict[str, Passage] = {}
        if folder.exists():
            header, old = _read(folder)
            for name, value in settings.items():
                if header["settings"].get(name) != value:
                    raise ValueError(
                        f"{folder} was made with {name} {header['settings'].get(name)!r}, the "
                        f"config says {value!r}: use the same settings, or another folder"
                    )
        now, counts = _changed(old, put, remove)
        chunks = list(_chunks(now.values(), settings))
        read = [Extraction()] * len(chunks) if reader is None else reader(chunks)[0]
        built = _build(chunks, read, config, store, cache_dir, progress=progress)
        events = [event for extraction in read for event in extraction.events]
        header = {"format": FORMAT, "passages": len(now), "settings": settings}
        with write_folder(folder) as partial:
            _write(partial, header, now, built)
    graph = built.graph
    kinds = [int((graph.node_kind == kind).sum()) for kind in (NodeKind.ENTITY, NodeKind.EVENT)]
    of_event = graph.node_kind[graph.edge_index[0]] == NodeKind.EVENT
    return Change(
        **counts, passages=len(now), chunks=len(chunks), merges=len(built.merges),
        entities=kinds[0], triples=int(((graph.edge_passage >= 0) & ~of_event).sum()),
        events=kinds[1], fused=len(events) - kinds[1],
        seconds=round(time.perf_counter() - started, 2),
    )  # fmt: skip


def made_of(
    texts: str | Path,
    config: RunConfig,
    store: EmbeddingStore,
    cache_dir: Path,
    *,
    progress: bool = False,
) -> Path:
    """The corpus of some texts, in a folder below ``cache_dir``; made if it is not there.

    The folder's name changes with the texts and the settings.

    Raises:
        ValueError: No texts there, or as :func:`update` says.
    """
    path = Path(texts)
    if (path / CORPUS).is_file():
        return path
    if not path.exists():
        raise ValueError(f"data.graph_path: {path}: neither a corpus nor texts are there")
    reader = None
    if config.extraction.method != "none":
        reader = Reader(config.extraction, cache_dir)
    settings = json.dumps(_settings(config, store, reader), sort_keys=True)
    digest = hashlib.sha256(f"{FORMAT}{data.digest_of_texts(path)}{settings}".encode()).hexdigest()
    folder = cache_dir / "corpora" / f"{path.resolve().name}-{digest[:16]}"
    if not (folder / CORPUS).is_file():
        tally = Tally()
        put = list(data.texts(path, tally))
        for line in tally.lines():
            logger.warning("%s: %s", path, line)
        logger.info("making a corpus of %d texts in %s, once", len(put), folder)
        update(folder, config, store, cache_dir, put=put, progress=progress)
    return folder


def passages_of(folder: str | Path) -> list[Passage]:
    """The passages of a corpus, by id."""
    return list(_read(Path(folder))[1].values())


def _changed(
    old: dict[str, Passage], put: Iterable[Passage], remove: Iterable[str]
) -> tuple[dict[str, Passage], dict[str, int]]:
    now, new = dict(old), set[str]()
    for passage in put:
        if not passage.id:
            raise ValueError(f"passage {passage.title!r} has no id")
        if passage.id in new:
            raise ValueError(f"two of the passages have the id {passage.id!r}")
        new.add(passage.id)
        now[passage.id] = passage
    gone = dict.fromkeys(remove)
    for name in gone:
        if name not in now:
            raise ValueError(f"there is no passage {name!r} to remove")
        del now[name]
    kept = [name for name in new if name in now]
    counts = {
        "added": sum(name not in old for name in kept),
        "replaced": sum(name in old and old[name] != now[name] for name in kept),
        "unchanged": sum(name in old and old[name] == now[name] for name in kept),
        "removed": sum(name in old for name in gone),
    }
    return dict(sorted(now.items())), counts


def _settings(config: RunConfig, store: EmbeddingStore, reader: Reader | None) -> dict[str, Any]:
    alignment = to_dict(config.alignment)
    if config.alignment.aliases:
        alignment["aliases"] = sha256(Path(config.alignment.aliases))
    return {
        "data.chunks": config.data.chunks,
        "data.window": config.data.window,
        "data.overlap": config.data.overlap,
        "extraction": "none" if reader is None else reader.identity,
        "alignment": alignment,
        "fusion": _fusion_settings(config),
        "embedder": store.folder.name,
    }


def _fusion_settings(config: RunConfig) -> dict[str, Any]:
    """What the fusion of events depends on; nothing where there are none."""
    if config.extraction.method == "none" or config.extraction.what != "events":
        return {}
    own = to_dict(config.fusion) | {"rules": fusion.Rules.identity}
    if config.fusion.verdicts:
        own["verdicts"] = sha256(Path(config.fusion.verdicts))
    for key in ("url", "concurrency", "timeout_s", "retries"):
        del own[key]
    return own


def _chunks(passages: Iterable[Passage], settings: dict[str, Any]) -> Iterable[Chunk]:
    return chunks_of(
        passages, settings["data.chunks"], settings["data.window"], settings["data.overlap"]
    )


def _build(
    chunks: Sequence[Chunk],
    read: Sequence[Extraction],
    config: RunConfig,
    store: EmbeddingStore,
    cache_dir: Path,
    *,
    progress: bool,
) -> TextGraph:
    rows = [(triple, number) for number, e in enumerate(read) for triple in e.triples]
    triples, sources = [triple for triple, _ in rows], [number for _, number in rows]
    named = [(number, name) for number, e in enumerate(read) for name in e.entities]
    events = [(number, event) for number, e in enumerate(read) for event in e.events]
    texts = texts_of(chunks, triples, named, events)
    store.fill(texts, describe="embedding texts", progress=progress)
    aligner = Aligner(config.alignment, store) if config.alignment.active else None
    fuse = fusion.build(config.fusion, store, cache_dir)
    return from_texts(chunks, triples, sources, store, named, aligner, events, fuse)


def _write(
    folder: Path, header: dict[str, Any], passages: dict[str, Passage], built: TextGraph
) -> None:
    lines = [json.dumps(_row(passage), ensure_ascii=False) for passage in passages.values()]
    content = "".join(line + "\n" for line in lines).encode()
    (folder / PASSAGES).write_bytes(content)
    merges = [json.dumps(merge, ensure_ascii=False) for merge in built.merges]
    (folder / MERGES).write_text("".join(line + "\n" for line in merges), "utf8")
    decided = [json.dumps(decision, ensure_ascii=False) for decision in built.decisions]
    (folder / DECISIONS).write_text("".join(line + "\n" for line in decided), "utf8")
    graph = built.graph
    graph = dataclasses.replace(graph, x=graph.x.half(), relation_x=graph.relation_x.half())
    graph.save(folder / GRAPH)
    header = header | {"sha256": hashlib.sha256(content).hexdigest()}
    (folder / CORPUS).write_text(json.dumps(header, indent=1) + "\n", "utf8")


def _row(passage: Passage) -> dict[str, Any]:
    row = {"id": passage.id, "title": passage.title, "sentences": passage.sentences}
    return row | ({"written": passage.written} if passage.written else {})


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Passage]]:
    """Header and passages.

    Raises:
        ValueError: No corpus, or a damaged one.
    """
    file = folder / CORPUS
    if not file.is_file():
        raise ValueError(f"{folder}: no corpus there (bisrqa corpus add makes one)")
    try:
        header = json.loads(file.read_text("utf8"))
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']!r}, this version reads {FORMAT}")
        if sha256(folder / PASSAGES) != header["sha256"]:
            raise ValueError(f"{PASSAGES} was changed")
        rows = map(json.loads, (folder / PASSAGES).read_text("utf8").split("\n")[:-1])
        passages = {
            r["id"]: Passage(r["title"], tuple(r["sentences"]), r["id"], r.get("written", ""))
            for r in rows
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: damaged corpus ({error}); delete it and add its texts anew"
        ) from error
    return header, passages
