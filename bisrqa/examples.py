"""From a split to examples: questions, their embeddings, and the evidence kept for them."""

import dataclasses
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from bisrqa import corpus as corpora
from bisrqa import data, fusion, heads
from bisrqa.clock import now
from bisrqa.config import RunConfig
from bisrqa.corpus import Corpus
from bisrqa.data.records import Question
from bisrqa.extraction import Reader
from bisrqa.graph import texts as text_graph
from bisrqa.graph.alignment import Aligner
from bisrqa.graph.build import from_triples, texts_of
from bisrqa.graph.embed import store_of
from bisrqa.graph.events import Decision
from bisrqa.graph.tensors import GraphTensors
from bisrqa.graph.texts import Merge, TextGraph, from_texts
from bisrqa.heads import Evidence
from bisrqa.heads.base import gold_mask, topic_mask
from bisrqa.retrieval.paths import distances, on_shortest_paths
from bisrqa.retrieval.shared import SharedGraph
from bisrqa.text import VERDICTS, normalise, stated

logger = logging.getLogger(__name__)

CHUNK_QUESTIONS = 1024
BATCH_QUESTIONS = 64
BATCH_SCORES = 2**26
"""On a shared graph a batch has at most so many scores at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """A question that is ready for the model."""

    question: Question
    """Without its whole graph, which may be large."""
    question_x: Float[Tensor, " dim"]
    """Unit-norm embedding of the question."""
    evidence: Evidence
    """Embeddings in half precision, as the store has them."""
    source_digest: bytes
    """Hash of everything that the record held, its whole graph included."""
    golds_in_graph: int
    """How many gold answers are nodes of the whole graph."""
    golds_in_evidence: int
    """How many of them were kept."""
    gold_places: tuple[int, ...] = ()
    """Place (0 is the best) of each gold in the graph that is among the ranked nodes, in order; a
    topic, which is always kept, has place 0."""
    hops: int | None = None
    """Edges between the topics and the nearest gold; None where no way leads there, and on a
    shared graph."""
    path_triples: int = 0
    """Triples on the shortest ways from the topics to the golds, of the question's own graph."""
    path_triples_kept: int = 0
    """How many of them were kept."""
    chunks_found: tuple[int, ...] = ()
    """Of a question over texts: numbers of its best chunks, best first, more than were kept."""
    merges: tuple[Merge, ...] = ()
    """Names that were taken for entities of the evidence."""
    decisions: tuple[Decision, ...] = ()
    """Which events of the question's own texts were taken for one, and which were not; a corpus
    has its decisions in a file."""


class Retriever:
    """Embeds, builds graphs and applies the head, for any questions.

    Args:
        config: ``embedder``, ``retriever``, ``head`` are read, and of ``data`` where the graph is.
        cache_dir: Embeddings are kept below it.
        device: Where the head works.
        progress: Show progress bars.
    """

    def __init__(
        self,
        config: RunConfig,
        cache_dir: Path,
        *,
        device: torch.device | str = "cpu",
        progress: bool = False,
    ):
        self.texts = store_of(config.embedder, cache_dir, config.embedder.text_prompt)
        if config.embedder.question_prompt == config.embedder.text_prompt:
            self.questions = self.texts
        else:
            asked = config.embedder.question_prompt
            self.questions = store_of(config.embedder, cache_dir, asked)
        self._config = config
        self._reader = None
        if config.extraction.method != "none":
            self._reader = Reader(config.extraction, cache_dir, progress=progress)
        self._aligner = None
        if config.alignment.active:
            self._aligner = Aligner(config.alignment, self.texts)
        self._fuse = fusion.build(config.fusion, self.texts, cache_dir)
        self.lacking = Counter[str]()
        """What a shared graph lacked of topics and golds in the last call."""
        self._head = heads.build(config, cache_dir, self._embedded)
        self._device = torch.device(device)
        self.seconds = {"link": 0.0, "retrieve": 0.0}
        """Spent so far on embedding questions and building their graphs, and on cutting them."""
        self._progress = progress
        self._shared: SharedGraph | None = None
        self._corpus: Corpus | None = None
        if config.data.graph == "corpus":
            folder = corpora.made_of(
                config.data.graph_path, config, self.texts, cache_dir, progress=progress
            )
            self._corpus = Corpus.open(folder, self.texts.folder.name)
        elif config.data.graph == "shared":
            self._shared = SharedGraph.open(
                config.data.graph_path, self.texts, cache_dir, progress=progress
            ).to(self._device)

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return self.texts.dim

    @property
    def bad_replies(self) -> int:
        """Texts so far that a model's reply about could not be understood."""
        return 0 if self._reader is None else self._reader.bad_replies

    def refresh(self) -> None:
        """See the embeddings that other processes have made since."""
        self.texts.refresh()
        self.questions.refresh()

    def _embedded(self, names: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Embeddings of names that turn up while retrieving."""
        self.texts.fill(names)
        return self.texts(names)

    def embed(self, config: RunConfig, split: str, *, limit: int | None = None) -> None:
        """Embed all texts of a split, so that they are found when they are needed."""
        questions = data.read(config.data, split, limit=limit, report=False)
        while chunk := list(islice(questions, CHUNK_QUESTIONS)):
            self.ready(chunk)

    def ready(self, questions: Sequence[Question]) -> list[Question]:
        """Extract what the config wants from the questions' texts, and embed everything once."""
        if self._reader is not None and self._corpus is None:
            questions = self._reader.read(questions)
        self._fill(questions)
        return list(questions)

    def graph_of(self, question: Question) -> TextGraph:
        """The graph that a question brings: of its triples, or of its texts and their triples."""
        if not question.chunks:
            return TextGraph(from_triples(question.graph, self.texts), ())
        return from_texts(
            question.chunks, question.graph, question.sources, self.texts, question.named,
            self._aligner, question.events, self._fuse,
        )  # fmt: skip

    def _fill(self, questions: Sequence[Question]) -> None:
        """Embed each distinct text once: the slow part, and it is cached."""
        self.questions.fill(
            (q.question for q in questions),
            describe="embedding questions",
            progress=self._progress,
        )
        if self._shared is None and self._corpus is None:
            names = (text for q in questions for text in _texts_of(q))
            self.texts.fill(names, describe="embedding graphs", progress=self._progress)

    @torch.no_grad()
    def __call__(
        self,
        questions: Iterable[Question],
        *,
        describe: str = "retrieving",
        total: int | None = None,
        report: bool = True,
    ) -> Iterator[Example]:
        """Stream examples, in order; whole graphs are let go as soon as they are cut.

        What a shared graph lacks of topics and golds is logged, once at the end, with ``report``.
        """
        questions = iter(questions)
        self.lacking = Counter[str]()
        with tqdm(desc=describe, total=total, unit="question", disable=not self._progress) as bar:
            while chunk := list(islice(questions, CHUNK_QUESTIONS)):
                started = time.perf_counter()
                chunk = self.ready(chunk)
                self.seconds["link"] += time.perf_counter() - started
                size = self._batch_questions
                for start in range(0, len(chunk), size):
                    batch = chunk[start : start + size]
                    yield from self._retrieve(batch)
                    bar.update(len(batch))
        if report:
            report_lacking(self._config, self.lacking)

    @property
    def _batch_questions(self) -> int:
        if self._shared is None:
            return BATCH_QUESTIONS
        return max(1, min(BATCH_QUESTIONS, BATCH_SCORES // max(self._shared.graph.num_nodes, 1)))

    def _tally(self, questions: list[Question]) -> None:
        """Count what a reader counts where every question brings its own graph."""
        assert self._shared is not None
        known = self._shared.ids.keys()
        topics = sum(topic not in known for q in questions for topic in q.topics)
        golds = sum(not any(gold in known for gold in q.answers) for q in questions)
        for what, count in (
            ("topic entities that are not in the graph", topics),
            ("questions without any gold in the graph", golds),
        ):
            if count:
                self.lacking[what] += count

    @staticmethod
    def _refuse_paragraphs(questions: Sequence[Question]) -> None:
        for question in questions:
            if question.support and question.support_unit == "paragraph":
                raise ValueError(
                    f"question {question.id}: its supporting facts are numbers of its own "
                    "paragraphs, which a corpus does not have: use data.graph question"
                )

    @property
    def over_corpus(self) -> bool:
        """Whether questions get their texts from a corpus."""
        return self._corpus is not None

    def graphs(
        self, questions: Sequence[Question]
    ) -> tuple[list[Question], Float[Tensor, "questions dim"], GraphTensors]:
        """Questions with their texts, their embeddings and a batch of graphs, for who trains."""
        questions = self.ready(questions)
        question_x = self.questions([q.question for q in questions])
        if self._corpus is not None:
            questions, batch = self._corpus.cut(questions, question_x, self._config.corpus)
        else:
            batch = GraphTensors.collate([self.graph_of(q).graph for q in questions])
        return questions, question_x, batch

    def _retrieve(self, questions: list[Question]) -> Iterator[Example]:
        started = now(self._device)
        question_x = self.questions([q.question for q in questions])
        merges: list[Sequence[Merge]] = [()] * len(questions)
        decisions: list[tuple[Decision, ...]] = [()] * len(questions)
        names: list[Iterable[str]] = [()] * len(questions)
        if self._corpus is not None:
            self._refuse_paragraphs(questions)
            questions, whole = self._corpus.cut(questions, question_x, self._config.corpus)
            whole, source = whole.to(self._device), self._corpus.digest.encode()
            merged = self._corpus.merged
            merges = [
                [merge for name in some.node_text for merge in merged.get(name, ())]
                for some in whole.unbatch()
            ]
        elif self._shared is None:
            built = [self.graph_of(q) for q in questions]
            merges = [one.merges for one in built]
            decisions = [one.decisions for one in built]
            whole = GraphTensors.collate([one.graph for one in built]).to(self._device)
            names = [{t.head for t in q.graph} | {t.tail for t in q.graph} for q in questions]
            source = b""
        else:
            whole, source = self._shared, self._shared.source.encode()
            names = [self._shared.ids.keys()] * len(questions)
            self._tally(questions)
        linked = now(self._device)
        kept = self._head(questions, question_x.to(self._device), whole)
        self.seconds["link"] += linked - started
        self.seconds["retrieve"] += now(self._device) - linked
        ways = None
        over_texts = self._corpus is not None or any(q.chunks for q in questions)
        if isinstance(whole, GraphTensors) and not over_texts:
            ways = _ways(questions, whole)
        places = _gold_places(questions, kept, whole)
        rows = zip(questions, question_x, kept, names, places, strict=True)
        for number, (question, x, evidence, nodes, place) in enumerate(rows):
            golds = set(question.answers)
            found = {} if ways is None else ways.of(number, evidence)
            in_graph = sum(gold in nodes for gold in golds)
            in_evidence = len(golds.intersection(evidence.graph.node_text))
            if over_texts:
                assert isinstance(whole, GraphTensors)
                nodes_here = int(whole.node_ptr[number + 1] - whole.node_ptr[number])
                found, in_graph, in_evidence = _in_texts(
                    question, evidence, nodes_here, self._corpus
                )
                known = set(evidence.graph.node_text)
                found["merges"] = tuple(m for m in merges[number] if m.entity in known)
            small = evidence.graph.to("cpu")
            small = dataclasses.replace(small, x=small.x.half(), relation_x=small.relation_x.half())
            moved = {f.name: getattr(evidence, f.name) for f in dataclasses.fields(evidence)}
            moved = {k: v.cpu() for k, v in moved.items() if isinstance(v, Tensor)}
            yield Example(
                question=dataclasses.replace(
                    question, graph=(), sources=(), named=(), events=(), lexical=None
                ),
                question_x=x.half(),
                evidence=dataclasses.replace(evidence, graph=small, **moved),
                source_digest=hashlib.sha256(source + repr(question).encode()).digest(),
                golds_in_graph=in_graph,
                golds_in_evidence=in_evidence,
                gold_places=place,
                decisions=decisions[number],
                **found,
            )


def _gold_places(
    questions: Sequence[Question], kept: Sequence[Evidence], whole: GraphTensors | SharedGraph
) -> list[tuple[int, ...]]:
    """Where the golds stand in each question's ranking."""
    if isinstance(whole, SharedGraph):
        texts, start = whole.graph.node_text, [0] * len(kept)
    else:
        texts, start = whole.node_text, whole.node_ptr[:-1].tolist()
    places = []
    for question, evidence, first in zip(questions, kept, start, strict=True):
        ranked = [texts[first + node] for node in evidence.ranked.tolist()]
        golds = set(question.answers)
        topics = golds.intersection(question.topics).intersection(evidence.graph.node_text)
        found = [place for place, name in enumerate(ranked) if name in golds]
        places.append((*[0] * len(topics), *found))
    return places


def _texts_of(question: Question) -> Iterator[str]:
    if not question.chunks:
        return texts_of(question.graph)
    return text_graph.texts_of(question.chunks, question.graph, question.named, question.events)


def _in_texts(
    question: Question, evidence: Evidence, num_nodes: int, corpus: Corpus | None
) -> tuple[dict[str, Any], int, int]:
    """What an example says of texts: chunks found, golds in all texts and in those kept."""
    first = num_nodes - len(question.chunks)  # passages are the last nodes
    found = tuple((evidence.ranked_passages - first).tolist())
    golds = [normalise(gold) for gold in dict.fromkeys(question.answers)]
    kept = [normalise(evidence.graph.node_text[node]) for node in evidence.passages]
    every = [normalise(chunk.words) for chunk in question.chunks]
    in_all, in_kept = (
        sum(any(stated(gold, text) for text in some) for gold in golds) for some in (every, kept)
    )
    if corpus is not None:
        in_all = sum(gold in VERDICTS or corpus.states(gold) for gold in golds)
    return {"chunks_found": found}, in_all, in_kept


class _Ways(NamedTuple):
    """The shortest ways from topics to golds in a batch."""

    graph: GraphTensors
    distance: Int[Tensor, " nodes"]
    golds: Bool[Tensor, " nodes"]
    edges: Bool[Tensor, " edges"]

    def of(self, number: int, evidence: Evidence) -> dict[str, Any]:
        """What an example says of them."""
        nodes = slice(*self.graph.node_ptr[number : number + 2].tolist())
        edges = slice(*self.graph.edge_ptr[number : number + 2].tolist())
        reached = self.distance[nodes][self.golds[nodes]]
        reached = reached[reached >= 0]
        on_way = self.edges[edges]
        return {
            "hops": int(reached.min()) if len(reached) else None,
            "path_triples": int(on_way.sum()),
            "path_triples_kept": int(on_way[evidence.edge_ids].sum()),
        }


def _ways(questions: Sequence[Question], graph: GraphTensors) -> _Ways:
    golds = gold_mask(questions, graph)
    distance = distances(graph, topic_mask(questions, graph))
    _, edges = on_shortest_paths(graph, distance, golds)
    return _Ways(graph, distance, golds, edges)


def report_lacking(config: RunConfig, lacking: Mapping[str, int]) -> None:
    """Log what a shared graph lacks."""
    for what, count in lacking.items():
        logger.warning("%s: %s: %d", config.data.graph_path, what, count)


def load(
    config: RunConfig, split: str, retriever: Retriever, *, limit: int | None = None
) -> list[Example]:
    """All examples of a split."""
    questions = data.read(config.data, split, limit=limit)
    total = data.size(config.data, split, limit=limit)
    return list(retriever(questions, describe=f"retrieving {split}", total=total))
