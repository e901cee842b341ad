"""Retrieval heads: one file a method, and the table that names them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bisrqa.config import RetrieverConfig, RunConfig
from bisrqa.heads.base import Evidence, Head, ScoringHead
from bisrqa.heads.bisrqa import BiSRQAHead
from bisrqa.heads.bm25 import BM25Head
from bisrqa.heads.dense import DenseHead
from bisrqa.heads.edrag import EDRAGHead, Embed
from bisrqa.heads.graftnet import GraftNetHead
from bisrqa.heads.k_hop import KHopHead
from bisrqa.heads.kg2rag import KG2RAGHead
from bisrqa.heads.oracle import GoldHead, RandomHead
from bisrqa.heads.paths import PathsHead
from bisrqa.heads.pcst import PCSTHead
from bisrqa.heads.subgraphrag import SubgraphRAGHead
from bisrqa.heads.triples import TriplesHead
from bisrqa.heads.union import UnionHead
from bisrqa.packaged import default_cache_dir
from bisrqa.retrieval.cross_encoder import CrossEncoder


def _linear(config: RetrieverConfig) -> BiSRQAHead:
    """The form that the paper prints: similarities as they are, topics not favoured."""
    form = {"personalization": "linear", "reweight": "linear", "topic_mass": 0.0, "learned": None}
    return BiSRQAHead(replace(config, **form))


def _plain(config: RetrieverConfig) -> BiSRQAHead:
    """Personalized PageRank that knows the topics and nothing of the question's words."""
    return BiSRQAHead(replace(config, learned=None, reweight="none", topic_mass=1.0))


SIMPLE: dict[str, Callable[[RetrieverConfig], ScoringHead]] = {
    "bisrqa": BiSRQAHead,
    "bisrqa_linear": _linear,
    "ppr": _plain,
    "graftnet": GraftNetHead,
    "pcst": PCSTHead,
    "k_hop": KHopHead,
    "dense": DenseHead,
    "triples": TriplesHead,
    "subgraphrag": SubgraphRAGHead,
    "paths": PathsHead,
    "bm25": BM25Head,
    "gold": GoldHead,
    "random": RandomHead,
}
"""Heads that know no settings but the retriever's."""


def _union(config: RunConfig, embed: Embed | None) -> UnionHead:
    heads = [_one(name, config, embed) for name in config.retriever.union]
    return UnionHead(config.retriever, heads)


def _kg2rag(config: RunConfig, _: Embed | None) -> KG2RAGHead:
    return KG2RAGHead(config.retriever, config.kg2rag)


def _hybrid(config: RunConfig, _: Embed | None) -> KG2RAGHead:
    return KG2RAGHead(config.retriever, config.kg2rag, "hybrid")


def _edrag(config: RunConfig, embed: Embed | None) -> EDRAGHead:
    return EDRAGHead(config.retriever, config.edrag, embed)


OTHERS: dict[str, Callable[[RunConfig, Embed | None], ScoringHead]] = {
    "union": _union,
    "kg2rag": _kg2rag,
    "hybrid": _hybrid,
    "edrag": _edrag,
}
HEADS = (*SIMPLE, *OTHERS)
"""Every name."""


def _one(name: str, config: RunConfig, embed: Embed | None) -> ScoringHead:
    return SIMPLE[name](config.retriever) if name in SIMPLE else OTHERS[name](config, embed)


def build(config: RunConfig, cache_dir: Path | None = None, embed: Embed | None = None) -> Head:
    """The head that ``config.head`` names, with the cross-encoder if there is one.

    ``embed`` gives rows for names in questions, for heads that look these up.
    """
    head = _one(config.head, config, embed)
    if config.cross_encoder.model is not None:
        head.cross_encoder = CrossEncoder(config.cross_encoder, cache_dir or default_cache_dir())
    return head


__all__ = ["HEADS", "Evidence", "Head", "build"]
