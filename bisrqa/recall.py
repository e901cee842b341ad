"""Retrieval scores: what a head finds of the golds, without a language model."""

import logging
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import truediv
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bisrqa import examples, text_recall
from bisrqa.config import RunConfig
from bisrqa.examples import Example
from bisrqa.facts import stated_golds
from bisrqa.packaged import default_cache_dir, resolve_model
from bisrqa.prompt import PromptBuilder

logger = logging.getLogger(__name__)

DEPTHS = (5, 10, 20, 50, 100)


def evaluate(config: RunConfig, *, progress: bool = False) -> dict[str, Any]:
    """Retrieve for a split and score what was found.

    Texts are embedded beforehand, so that the seconds are those of reading rows, building graphs
    and retrieving.

    Args:
        config: ``evaluation`` says which split and how many questions.
        progress: Show progress bars.

    Returns:
        Flat: see :func:`scores`, and besides

        - ``prompt_tokens``: mean length of the facts in the prompt, in ``generator.model``'s tokens
        - ``found_by_graph``: share of the questions whose entities led to passages (ED-RAG)
        - ``golds_in_prompt``: share of the questions with a gold that the prompt has room for
        - ``seconds_per_question``, ``embedding_seconds``

    Raises:
        ValueError: The data cannot be used, or the split is empty.
    """
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    started = time.perf_counter()
    retriever = examples.Retriever(config, cache_dir, progress=progress)
    split, limit = config.evaluation.split, config.evaluation.limit
    retriever.embed(config, split, limit=limit)
    embedded = time.perf_counter()
    found = examples.load(config, split, retriever, limit=limit)
    seconds = time.perf_counter() - embedded
    if not found:
        raise ValueError(f"split {split!r} has no questions")
    result: dict[str, Any] = {"head": config.head, "split": split, "top_k": config.retriever.top_k}
    if config.head == "kg2rag" or config.cross_encoder.model is not None:
        result["cross_encoder"] = config.cross_encoder.model or "none: cosines alone"
    over_texts = any(example.question.chunks for example in found)
    result |= text_recall.scores(found) if over_texts else scores(found)
    ways = [e.evidence.found_by for e in found if e.evidence.found_by]
    if ways:
        result["found_by_graph"] = _mean(way == "graph" for way in ways)
    groups = sorted({e.question.group for e in found} - {""})
    for group in groups if over_texts and len(groups) > 1 else ():
        part = text_recall.scores([e for e in found if e.question.group == group])
        result |= {
            f"{key}/group={group}": value
            for key, value in part.items()
            if key == "n_answers" or key.startswith("answer_in")
        }
    result |= _prompts(config, found, cache_dir)
    by_hops = sorted(
        (e for e in found if e.golds_in_graph and e.hops is not None), key=lambda e: e.hops or 0
    )
    for hops, some in groupby(by_hops, key=lambda e: e.hops):
        part = scores(list(some))
        result |= {
            f"{key}/hops={hops}": value
            for key, value in part.items()
            if key == "n" or key.startswith("answer_recall")
        }
    return result | {
        "seconds_per_question": round(seconds / len(found), 6),
        "embedding_seconds": round(embedded - started, 3),
    }


def scores(found: Sequence[Example]) -> dict[str, float | int]:
    """Means over the questions with a gold in their graph, as fractions.

    - ``answer_recall@K``: share of the golds in the graph that are among the K best named nodes
      besides the topics; ``answer_ceiling@K``: the most that K nodes can hold of them
    - ``answer_hit@K``: share of the questions with any gold there
    - ``answer_recall``: the same over all nodes that were kept
    - ``triple_recall``, ``triple_precision``: of the triples on the shortest ways from the topics
      to the golds, over the ``n_paths`` questions that have such a way
    - ``nodes_kept``, ``triples_kept``: means
    - ``n``: questions they are over; ``questions``: all; ``golds_in_graph``: share with a gold
    """
    known = [e for e in found if e.golds_in_graph]
    golds = [e.golds_in_graph for e in known]
    result: dict[str, float | int] = {
        "n": len(known),
        "questions": len(found),
        "golds_in_graph": _mean(e.golds_in_graph > 0 for e in found),
    }
    for depth in DEPTHS:
        within = [sum(place < depth for place in e.gold_places) for e in known]
        result |= {
            f"answer_recall@{depth}": _mean(map(truediv, within, golds)),
            f"answer_ceiling@{depth}": _mean(min(depth, g) / g for g in golds),
            f"answer_hit@{depth}": _mean(w > 0 for w in within),
        }
    result["answer_recall"] = _mean(e.golds_in_evidence / e.golds_in_graph for e in known)
    ways = [e for e in known if e.path_triples]
    result["n_paths"] = len(ways)
    if ways:
        result["triple_recall"] = _mean(e.path_triples_kept / e.path_triples for e in ways)
        result["triple_precision"] = _mean(e.path_triples_kept / max(_triples(e), 1) for e in ways)
    result["nodes_kept"] = _mean(e.evidence.graph.num_nodes for e in known)
    result["triples_kept"] = _mean(map(_triples, known))
    return result


def _triples(example: Example) -> int:
    return example.evidence.graph.num_edges


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return round(sum(listed) / max(len(listed), 1), 4)


def _prompts(config: RunConfig, found: Sequence[Example], cache_dir: Path) -> dict[str, float]:
    """What the prompt holds of the evidence, in the tokens of the language model."""
    try:
        source = resolve_model(config.generator.model, cache_dir)
        tokenizer = AutoTokenizer.from_pretrained(source, revision=config.generator.revision)
    except (OSError, ValueError) as error:
        logger.warning("prompt_tokens are not counted: %s", error)
        return {}
    builder = PromptBuilder(tokenizer, config.prompt, 0)
    tokens, named = 0, 0
    for example, words in zip(found, builder.words(found), strict=True):
        lines = builder.fitting(words)
        tokens += sum(len(line.ids) for line in lines)
        named += bool(stated_golds(example, [line.fact for line in lines]))
    return {
        "prompt_tokens": round(tokens / len(found), 1),
        "golds_in_prompt": round(named / len(found), 4),
    }
