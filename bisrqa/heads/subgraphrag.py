"""SubgraphRAG's way: a trained network scores every triple by itself."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, from_edges, nearest_triples
from bisrqa.retrieval.trained import keys
from bisrqa.retrieval.triple_scorer import TripleScorer

logger = logging.getLogger(__name__)

LEAST = 1e-12


class SubgraphRAGHead(ScoringHead):
    """Triples by what was learnt; as long as nothing was, the nearest ones."""

    def __init__(self, config: RetrieverConfig):
        super().__init__(config)
        self.scorer: TripleScorer | None = None
        folder = None if config.learned is None else Path(config.learned)
        if folder is None or not folder.exists():
            logger.warning(
                "head subgraphrag has not been trained (retriever.learned: %s): it takes the "
                "nearest triples; bisrqa train-retriever --head subgraphrag trains it",
                folder,
            )
            return
        self.scorer = TripleScorer.load(folder)

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        if self.scorer is None:
            return nearest_triples(graph, question_x)
        self.scorer.to(graph.device)
        logit = self.scorer(graph, question_x, topics[0])
        share = self.scorer.shares(keys(questions)).to(logit)
        logit = (logit * share[:, graph.edge_batch]).sum(0)
        return from_edges(graph, torch.sigmoid(logit).clamp_min(LEAST))
