"""BiS-RQA's explicit filter: SPPR scores, and the subgraph of the best nodes."""

import logging
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Scores, ScoringHead
from bisrqa.retrieval.nearest import nearest, similarity
from bisrqa.retrieval.segments import segment_top_k
from bisrqa.retrieval.shared import SharedGraph
from bisrqa.retrieval.sppr import personalization, relation_weights
from bisrqa.walk import WalkGraph, push, sppr

logger = logging.getLogger(__name__)


class BiSRQAHead(ScoringHead):
    """SPPR, over a batch of graphs or over one shared graph."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        config = self.config
        cosine = (graph.x * question_x[graph.node_batch]).sum(-1)[None]
        weight = (graph.relation_x * question_x[graph.relation_batch]).sum(-1)[None]
        weight = relation_weights(weight, config)
        named = graph.node_kind != NodeKind.MEDIATOR
        if config.seeds is not None:
            named = segment_top_k(cosine[0], graph.node_ptr, named, config.seeds)
        p = personalization(cosine, topics, named, graph.node_ptr, config)
        return Scores(self._walk(WalkGraph.of(graph), p, weight), relation=weight)

    def score_shared(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: SharedGraph,
        topics: Bool[Tensor, "questions nodes"],
    ) -> Scores:
        config = self.config
        weight = relation_weights(question_x @ graph.graph.relation_x.to(question_x).T, config)
        p = self._restart(question_x, topics, graph)
        if config.walk == "exact":
            return Scores(self._walk(graph.walk, p, weight), relation=weight)
        found = push(
            graph.walk,
            p.to_sparse(),
            weight,
            restart=config.restart,
            threshold=config.push_threshold,
        )
        return Scores(found.scores.to_dense().to(weight), relation=weight)

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
    ) -> Float[Tensor, "rows nodes"]:
        config = self.config
        result = sppr(
            graph,
            p,
            weight,
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
