"""KG2RAG: chunks found by the question, widened along the graph, ordered by spanning trees.

A chunk is a passage of a text graph; on a graph without texts each triple is one. Three forms:

- ``ranked`` (default): every passage is scored by itself (dense and BM25) and by its best
  neighbour, a passage under another title that names the same title, or by a ranker trained on
  such features. The best ones are kept, and the trees decide in what order they are read and which
  triples are stated.
- ``literal``: as the paper has it (Zhu et al. 2025, section 3): seed chunks, ``hops`` steps of
  breadth-first expansion, maximum spanning trees, trees ranked whole and emptied depth first.
- ``hybrid``: dense and BM25 alone, without the graph; a baseline.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import KG2RAGConfig, RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Evidence, Scores, ScoringHead, dealt_anew, from_edges, from_passages
from bisrqa.retrieval.features import NAMES, Passages, by_title, combined, features, neighbour
from bisrqa.retrieval.lexical import BM25
from bisrqa.retrieval.passages import links, verbalised
from bisrqa.retrieval.ranker import PassageRanker
from bisrqa.retrieval.segments import segment_rank, segment_top_k, standardise
from bisrqa.retrieval.shared import SharedGraph
from bisrqa.retrieval.subgraph import Ranked
from bisrqa.retrieval.trees import Forest, spanning_forest


class KG2RAGHead(ScoringHead):
    """Scores passages or triples, and orders what is kept.

    Args:
        config: How much is kept.
        own: The form and its numbers.
        form: ``hybrid`` is the form without a graph.
    """

    names = NAMES
    looks_at_triples = True

    def __init__(
        self,
        config: RetrieverConfig,
        own: KG2RAGConfig,
        form: Literal["ranked", "literal", "hybrid"] | None = None,
    ):
        super().__init__(config)
        self.own, self.form = own, form or own.form
        self._bm25 = BM25() if own.lexical and self.form != "literal" else None
        self._ranker = None
        if own.ranker and self.form == "ranked":
            self._ranker = PassageRanker.load(own.ranker_folder, NAMES)

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors | SharedGraph,
    ) -> list[Evidence]:
        kept = super().__call__(questions, question_x, graph)
        return kept if self.form == "hybrid" else organise(kept)

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        facts = facts_of(graph)
        if not (graph.node_kind == NodeKind.PASSAGE).any():
            return self._of_triples(questions, question_x, graph, facts)
        if self.form == "literal":
            value = self._literal(questions, question_x, graph, facts)
        else:
            value = torch.sigmoid(self.log_odds(questions, question_x, graph))
        return from_passages(graph, value)

    def log_odds(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> Float[Tensor, " passages"]:
        """How good each passage is, in the order of their ids."""
        if self._ranker is not None:
            ranker = self._ranker.to(question_x.device)
            return ranker(self.features(questions, question_x, graph))
        asked = [question.question for question in questions]
        passages = self.passages(questions, question_x, graph)
        base = combined(passages, len(asked), lexical=self.own.lexical)
        if self.form == "hybrid" or not self.own.neighbour:
            return base
        titles, _ = by_title(passages.links)
        near, _ = neighbour(base, passages, titles, graph.num_nodes, len(asked))
        return base + self.own.neighbour * near

    def features(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> Float[Tensor, "passages features"]:
        """What a ranker is given."""
        passages = self.passages(questions, question_x, graph)
        asked = [question.question for question in questions]
        return features(graph, question_x, asked, passages, lexical=self.own.lexical)

    def passages(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
    ) -> Passages:
        """First-stage scores of the passages."""
        count = int((graph.node_kind == NodeKind.PASSAGE).sum())
        lexical = question_x.new_zeros(count)
        if self._bm25 is not None:
            lexical = self._bm25.of_passages(graph, questions).sum(1).to(question_x)
        return Passages.of(graph, question_x, lexical)

    def look_again(
        self,
        questions: Sequence[Question],
        graph: GraphTensors,
        node: Float[Tensor, "one nodes"],
        passages: Ranked,
    ) -> Float[Tensor, "one nodes"]:
        """As other heads; the literal form has ranked its trees with the cross-encoder already."""
        if self.form == "literal":
            return node
        return super().look_again(questions, graph, node, passages)

    def _literal(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        facts: "Facts",
    ) -> Float[Tensor, " passages"]:
        """Passages in the order in which the trees are emptied; 0 for what was not reached."""
        own = self.own
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)
        is_passage = graph.node_kind == NodeKind.PASSAGE
        seeds = segment_top_k(cosine, graph.node_ptr, is_passage, own.seeds)
        reached = expand(facts, seeds, own.hops)
        some = reached[facts.chunk].nonzero().squeeze(1)
        facts = Facts(facts.head[some], facts.tail[some], facts.chunk[some])
        ends = torch.stack([facts.head, facts.tail])
        weight = cosine[facts.chunk]
        forest = spanning_forest(ends, weight, graph.num_nodes)
        standing = self._standing(questions, graph, forest, facts, weight)
        order = reading_order(forest, facts, standing, graph.num_nodes)
        chosen = torch.zeros_like(is_passage)
        chosen[facts.chunk[forest.keep]] = True
        value = torch.where(chosen, 1 / (2.0 + order.to(cosine)), 0.0)
        return value[is_passage]

    def _standing(
        self,
        questions: Sequence[Question],
        graph: GraphTensors,
        forest: Forest,
        facts: "Facts",
        weight: Float[Tensor, " facts"],
    ) -> Float[Tensor, " facts"]:
        """By what trees are ranked: their best facts' weight, and what the cross-encoder adds.

        To it a tree is the words of its triples; one without triples, its passages.
        """
        if self.cross_encoder is None or not len(facts.head):
            return weight
        words = verbalised(graph)
        stated: dict[int, dict[str, None]] = {}
        spoken: dict[int, dict[str, None]] = {}
        kept = forest.keep.nonzero().squeeze(1)
        component = forest.component[facts.head]
        read = (graph.edge_passage >= 0).nonzero().squeeze(1).tolist()  # the first facts
        for fact, part in zip(kept.tolist(), component[kept].tolist(), strict=True):
            if fact < len(read):
                stated.setdefault(part, {})[words[read[fact]]] = None
            spoken.setdefault(part, {})[graph.node_text[int(facts.chunk[fact])]] = None
        trees = torch.tensor(list(spoken), device=weight.device)
        of_question = component.new_zeros(graph.num_nodes)
        of_question[component] = graph.node_batch[facts.head]
        of_question = of_question[trees]
        pairs = [
            (questions[q].question, "; ".join(stated.get(part) or spoken[part]))
            for q, part in zip(of_question.tolist(), trees.tolist(), strict=True)
        ]
        best = weight.new_full((graph.num_nodes,), -torch.inf)
        best = best.scatter_reduce(0, component, weight, "amax")[trees]
        looked = self.cross_encoder.config.weight * self.cross_encoder(pairs).to(weight)
        score = weight.new_zeros(graph.num_nodes)
        score[trees] = standardise(best, of_question, len(questions)) + looked
        return score[component]

    def _of_triples(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        facts: "Facts",
    ) -> Scores:
        """Triples of a graph without texts: near the question, and reached from the nearest.

        The cross-encoder looks at the best of them.
        """
        head, tail = graph.edge_index
        triple = graph.x[head] + graph.relation_x[graph.edge_type] + graph.x[tail]
        triple = torch.nn.functional.normalize(triple, dim=-1)
        cosine = (1 + (triple * question_x[graph.edge_batch]).sum(-1)).clamp_min(1e-6)
        every = torch.ones_like(cosine, dtype=torch.bool)
        seeds = segment_top_k(cosine, graph.edge_ptr, every, self.own.seeds)
        reached = expand(facts, seeds, self.own.hops)
        score = cosine * reached
        if self.cross_encoder is not None:
            place = segment_rank(score, graph.edge_ptr)
            some = ((place < self.cross_encoder.config.depth) & reached).nonzero().squeeze(1)
            words, whose = verbalised(graph), graph.edge_batch[some]
            pairs = [
                (questions[q].question, words[edge])
                for q, edge in zip(whose.tolist(), some.tolist(), strict=True)
            ]
            score[some] = dealt_anew(
                score[some], self.cross_encoder(pairs), whose, self.cross_encoder
            )
        return from_edges(graph, score)


class Facts(NamedTuple):
    """Edges between entities, each with the chunk that it was read from."""

    head: Int[Tensor, " facts"]
    tail: Int[Tensor, " facts"]
    chunk: Int[Tensor, " facts"]
    """Passage node; on a graph without texts the triple itself."""


def facts_of(graph: GraphTensors) -> Facts:
    """The triples; and that a passage's title has to do with each entity that it mentions.

    A passage that has neither is an edge from its title to itself.
    """
    head, tail = graph.edge_index
    is_passage = graph.node_kind == NodeKind.PASSAGE
    if not is_passage.any():
        return Facts(head, tail, torch.arange(graph.num_edges, device=graph.device))
    found = links(graph)
    read = (graph.edge_passage >= 0).nonzero().squeeze(1)
    mention = (found.title[found.passage] != found.entity).nonzero().squeeze(1)
    node = is_passage.nonzero().squeeze(1)
    title = found.title
    return Facts(
        torch.cat([head[read], title[found.passage[mention]], title[node]]),
        torch.cat([tail[read], found.entity[mention], title[node]]),
        torch.cat([graph.edge_passage[read], found.passage[mention], node]),
    )


def expand(facts: Facts, seeds: Bool[Tensor, " chunks"], hops: int) -> Bool[Tensor, " chunks"]:
    """Chunks of the facts that ``hops`` steps of breadth-first search reach from the seeds'."""
    size = int(torch.stack([facts.head, facts.tail]).max()) + 1 if len(facts.head) else 0
    reached = seeds.clone()
    for _ in range(hops):
        active = reached[facts.chunk]
        near = torch.zeros(size, dtype=torch.bool, device=seeds.device)
        near[facts.head[active]] = True
        near[facts.tail[active]] = True
        reached[facts.chunk[near[facts.head] | near[facts.tail]]] = True
    return reached


def reading_order(
    forest: Forest, facts: Facts, weight: Float[Tensor, " facts"], num_nodes: int
) -> Int[Tensor, " chunks"]:
    """Place of each chunk: trees by their best fact, each depth first.

    A chunk whose facts are in no tree stands behind those whose are, by its own first fact's place.
    """
    component = forest.component[facts.head]
    best = weight.new_full((num_nodes,), -torch.inf)
    best = best.scatter_reduce(0, component, weight, "amax")
    order = torch.argsort(best, descending=True, stable=True)
    standing = torch.empty_like(order)
    standing[order] = torch.arange(len(order), device=order.device)
    step = torch.maximum(forest.place[facts.head], forest.place[facts.tail])
    key = (standing[component] * num_nodes + step) * 2
    size = max(int(facts.chunk.max()) + 1 if len(facts.chunk) else 0, num_nodes)
    last = torch.iinfo(torch.long).max
    none = torch.full((size,), last, device=key.device)
    first = none.scatter_reduce(0, facts.chunk[forest.keep], key[forest.keep], "amin")
    other = none.scatter_reduce(0, facts.chunk, key + 1, "amin")
    first = torch.where(first < last, first, other)
    place = torch.empty_like(first)
    place[torch.argsort(first, stable=True)] = torch.arange(size, device=key.device)
    return place


def organise(kept: Sequence[Evidence]) -> list[Evidence]:
    """Thin the triples of each question's evidence to spanning trees, and say how it is read.

    Of the triples those of the trees stay; passages all stay, and get an order of reading. Without
    texts the triples themselves come in that order.
    """
    batch = GraphTensors.collate([evidence.graph for evidence in kept])
    facts = facts_of(batch)
    over_texts = bool((batch.node_kind == NodeKind.PASSAGE).any())
    node = torch.cat([evidence.node_score for evidence in kept])
    edge = torch.cat([evidence.edge_score for evidence in kept])
    weight = node[facts.chunk] if over_texts else edge[facts.chunk]
    ends = torch.stack([facts.head, facts.tail])
    forest = spanning_forest(ends, weight, batch.num_nodes)
    place = reading_order(forest, facts, weight, batch.num_nodes)
    in_tree = torch.ones(batch.num_edges, dtype=torch.bool, device=batch.device)
    if over_texts:
        read = (batch.edge_passage >= 0).nonzero().squeeze(1)  # the first facts, in this order
        in_tree[read] = forest.keep[: len(read)]
    else:
        in_tree = forest.keep
    organised = []
    for number, evidence in enumerate(kept):
        nodes = slice(*batch.node_ptr[number : number + 2].tolist())
        edges = slice(*batch.edge_ptr[number : number + 2].tolist())
        stay = in_tree[edges]
        if over_texts:
            at = place[nodes]
            reading = sorted(evidence.passages, key=lambda node, at=at: int(at[node]))
            chosen = stay.nonzero().squeeze(1)
            organised.append(replace(_with_edges(evidence, chosen), reading=tuple(reading)))
            continue
        order = torch.argsort(place[: batch.num_edges][edges], stable=True)
        order = order[stay[order]]
        organised.append(_with_edges(evidence, order, read=True))
    return organised


def _with_edges(
    evidence: Evidence, chosen: Int[Tensor, " some"], *, read: bool = False
) -> Evidence:
    """Only some edges, in this order; ``read``: scored by it."""
    graph = evidence.graph
    score = evidence.edge_score[chosen]
    if read:
        score = 1 / (1 + torch.arange(len(chosen), device=score.device).to(score))
    return replace(
        evidence,
        graph=replace(
            graph,
            edge_index=graph.edge_index[:, chosen],
            edge_type=graph.edge_type[chosen],
            edge_passage=graph.edge_passage[chosen],
            edge_ptr=torch.tensor([0, len(chosen)], device=graph.device),
        ),
        edge_ids=evidence.edge_ids[chosen],
        edge_score=score,
    )
