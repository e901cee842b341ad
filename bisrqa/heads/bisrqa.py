"""BiS-RQA's explicit filter: SPPR scores, and the subgraph of the best nodes."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Scores, ScoringHead, lend_to_mediators
from bisrqa.retrieval import learned
from bisrqa.retrieval.learned import LearnedWalk, Relations
from bisrqa.retrieval.nearest import nearest, similarity
from bisrqa.retrieval.segments import segment_max, segment_top_k, spread
from bisrqa.retrieval.shared import SharedGraph
from bisrqa.retrieval.sppr import personalization, relation_weights
from bisrqa.retrieval.trained import keys
from bisrqa.walk import WalkGraph, arrivals, push, sppr

logger = logging.getLogger(__name__)

ARRIVALS = 2**24
"""On a shared graph so many arcs, times questions, are looked at together once more; each takes
some tens of bytes."""


class BiSRQAHead(ScoringHead):
    """SPPR, plain or learned, over a batch of graphs or over one shared graph."""

    def __init__(self, config: RetrieverConfig):
        super().__init__(config)
        self.learned: LearnedWalk | None = None
        if config.learned is None:
            return
        folder = Path(config.learned)
        if not folder.exists():
            logger.warning(
                "retriever.learned: %s is not there yet (bisrqa train-retriever makes it): the "
                "walk is the plain one",
                folder,
            )
            return
        self.learned = LearnedWalk.load(folder)
        self.config = self.learned.settled(config)

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        config = self.config
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)[None]
        named = graph.node_kind != NodeKind.MEDIATOR
        if config.seeds is not None:
            named = segment_top_k(cosine[0], graph.node_ptr, named, config.seeds)
        p = personalization(cosine, topics, named, graph.node_ptr, config)
        walk = WalkGraph.of(graph)
        if self.learned is None:
            weight = (graph.relation_x * question_x[graph.relation_batch]).sum(-1)[None]
            weight = relation_weights(weight, config)
            return Scores(self._walk(walk, p, weight), relation=weight)
        rows = torch.arange(graph.num_relations, device=graph.device)
        relations = self._relations(
            questions, question_x, graph.relation_x, graph.relation_batch, rows
        )
        known = learned.arcs(relations, graph.relation_batch, graph.num_graphs)
        mass = self._walk(walk, p, known.along, known.against)
        arrived = arrivals(walk, mass, *known)
        score = learned.log_score(mass, arrived, cosine, self.learned.scalars.mean(0))
        may = (graph.node_kind != NodeKind.MEDIATOR)[None] & ~topics
        node = self.learned.ranking(score, mass, may, graph.node_ptr) * may
        node = lend_to_mediators(graph, node[0])[None]
        edge = learned.edge_shares(graph, node, mass, arrived, known)
        best = spread(segment_max(node, graph.node_ptr), graph.node_ptr, graph.num_nodes)
        return Scores(torch.where(topics, best.clamp_min(learned.TINY), node), edge=edge)

    def _relations(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        relation_x: Float[Tensor, "relations dim"],
        question: Int[Tensor, " pairs"],
        relation: Int[Tensor, " pairs"],
    ) -> Relations:
        """What was learnt of pairs of a question and a relation, one row."""
        assert self.learned is not None
        if next(self.learned.parameters()).device != question_x.device:
            self.learned.to(question_x.device)
        known = self.learned.relations(question_x.float(), relation_x.float(), question, relation)
        share = self.learned.shares(keys(questions)).to(question_x.device)
        return self.learned.mean(known, share[:, question])

    def score_shared(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: SharedGraph,
        topics: Bool[Tensor, "questions nodes"],
    ) -> Scores:
        config, relation_x = self.config, graph.graph.relation_x.to(question_x)
        p = self._restart(question_x, topics, graph)
        if self.learned is None:
            weight = relation_weights(question_x @ relation_x.T, config)
            return Scores(self._walk_shared(graph, p, weight, weight), relation=weight)
        shape = len(question_x), len(relation_x)
        pairs = (t.flatten() for t in torch.meshgrid(*map(torch.arange, shape), indexing="ij"))
        relations = self._relations(
            questions, question_x, relation_x, *(t.to(p.device) for t in pairs)
        )
        relations = Relations(*(value.view(shape) for value in relations))
        one = torch.zeros(shape[1], dtype=torch.long, device=p.device)
        known = learned.arcs(relations, one, 1)
        mass = self._walk_shared(graph, p, known.along, known.against)
        node = torch.cat(
            [
                self._ranked(
                    question_x[q], graph, mass[q], topics[q], Relations(*(v[q] for v in known))
                )
                for q in _slices(len(question_x), ARRIVALS // max(len(graph.walk.src), 1))
            ]
        )
        there, back = known.along * known.worth_along, known.against * known.worth_against
        return Scores(node, relation=torch.maximum(there, back))

    def _ranked(
        self,
        question_x: Float[Tensor, "questions dim"],
        shared: SharedGraph,
        mass: Float[Tensor, "questions nodes"],
        topics: Bool[Tensor, "questions nodes"],
        known: Relations,
    ) -> Float[Tensor, "questions nodes"]:
        """Scores of some questions' nodes; a mediator has those of its best neighbour."""
        assert self.learned is not None
        arrived = arrivals(shared.walk, mass, *known)
        cosine = similarity(question_x, shared.graph.x[: shared.num_named])
        cosine = torch.nn.functional.pad(cosine, (0, shared.graph.num_nodes - shared.num_named))
        score = learned.log_score(mass, arrived, cosine, self.learned.scalars.mean(0))
        may = ~topics
        may[:, shared.num_named :] = False
        ptr = torch.tensor([0, mass.shape[1]], device=mass.device)
        node = self.learned.ranking(score, mass, may, ptr) * may
        best = node.amax(1, keepdim=True).clamp_min(learned.TINY)
        walk, mediator = shared.walk, torch.arange(mass.shape[1], device=mass.device)
        lent = torch.segment_reduce(node.T[walk.src.long()], "max", offsets=walk.ptr, initial=0).T
        node = torch.where(mediator >= shared.num_named, lent, node)
        return torch.where(topics, torch.maximum(best, node), node)

    def _walk_shared(
        self,
        graph: SharedGraph,
        p: Float[Tensor, "questions nodes"],
        weight: Float[Tensor, "questions relations"],
        inverse: Float[Tensor, "questions relations"],
    ) -> Float[Tensor, "questions nodes"]:
        config = self.config
        if config.walk == "exact":
            return self._walk(graph.walk, p, weight, inverse)
        found = push(
            graph.walk,
            p.to_sparse(),
            weight,
            inverse_weight=inverse,
            restart=config.restart,
            threshold=config.push_threshold,
        )
        return found.scores.to_dense().to(weight)

    def _restart(
        self,
        question_x: Float[Tensor, "questions dim"],
        topics: Bool[Tensor, "questions nodes"],
        shared: SharedGraph,
    ) -> Float[Tensor, "questions nodes"]:
        """Personalization over the named nodes of a shared graph; zero on its mediators."""
        config, named = self.config, shared.num_named
        x = shared.graph.x[:named]
        if config.seeds is None:
            cosine = similarity(question_x, x)
            may = torch.ones(named, dtype=torch.bool, device=cosine.device)
        else:
            if config.search == "faiss":
                best, ids = shared.index(question_x, config.seeds)
            else:
                best, ids = nearest(question_x, x, config.seeds)
            cosine = question_x.new_zeros(len(question_x), named).scatter(1, ids, best)
            may = torch.zeros_like(cosine, dtype=torch.bool).scatter(1, ids, True)
        mediators = (0, shared.graph.num_nodes - named)
        if topics[:, named:].any():  # a question may ask of one by its id
            cosine, may = (torch.nn.functional.pad(t, mediators) for t in (cosine, may))
            mediators = (0, 0)
        ptr = torch.tensor([0, cosine.shape[1]], device=cosine.device)
        p = personalization(cosine, topics[:, : cosine.shape[1]], may, ptr, config)
        return torch.nn.functional.pad(p, mediators)

    def _walk(
        self,
        graph: WalkGraph,
        p: Float[Tensor, "rows nodes"],
        weight: Float[Tensor, "rows relations"],
        inverse: Float[Tensor, "rows relations"] | None = None,
    ) -> Float[Tensor, "rows nodes"]:
        config = self.config
        result = sppr(
            graph,
            p,
            weight,
            inverse_weight=inverse,
            restart=config.restart,
            tol=config.tolerance,
            max_steps=config.max_steps,
        )
        unsettled = int((~(result.residual < config.tolerance)).sum())
        if unsettled:
            logger.warning(
                "the walk of %d questions had not settled after retriever.max_steps %d",
                unsettled,
                config.max_steps,
            )
        return result.scores


def _slices(count: int, size: int) -> Iterator[slice]:
    """Rows in turns, at least one at a time."""
    size = max(size, 1)
    return (slice(start, start + size) for start in range(0, count, size))
