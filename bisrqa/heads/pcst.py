"""The prize-collecting Steiner tree of G-Retriever (He et al. 2024, section 4.2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.config import RetrieverConfig
from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead
from bisrqa.retrieval.nearest import closeness

NODES, EDGES, EDGE_COST = 3, 5, 0.5
"""Nodes and distinct edge similarities that get a prize, and what an edge costs: its settings for
WebQSP."""
SMALL = 0.01
"""Keeps prizes of equal rank apart, as published."""


class PCSTHead(ScoringHead):
    """Nodes and edges of the tree, ranked by their own closeness to the question.

    Raises:
        ValueError: ``pcst_fast`` is not installed, or a build that gives wrong results.
    """

    def __init__(self, config: RetrieverConfig):
        super().__init__(config)
        try:
            from pcst_fast import pcst_fast
        except ImportError as error:
            raise ValueError(
                "head pcst needs pcst_fast: pip install --no-binary pcst_fast 'bisrqa[pcst]'"
            ) from error
        # Its wheels were built against an older numpy: with numpy 2 they return the right number of
        # ids, all alike, and say nothing.
        path = np.array([[0, 1], [1, 2]]), np.array([3.0, 0.0, 3.0]), np.array([0.5, 0.5])
        if pcst_fast(*path, -1, 1, "gw", 0)[0].tolist() != [0, 1, 2]:
            raise ValueError(
                "head pcst: this build of pcst_fast gives wrong results with numpy 2; build it "
                "here: pip install --force-reinstall --no-deps --no-binary pcst_fast pcst_fast"
            )
        self._solve: Any = pcst_fast

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        near = closeness(question_x, graph)
        relation = (graph.relation_x * question_x[graph.relation_batch]).sum(-1)[graph.edge_type]
        node, edge = torch.zeros_like(near), torch.zeros_like(relation)
        ends = graph.edge_index.T.cpu().numpy()
        prizes, similar = near.cpu().numpy(), relation.cpu().numpy()
        node_ptr, edge_ptr = graph.node_ptr.tolist(), graph.edge_ptr.tolist()
        for g in range(graph.num_graphs):
            n, e = slice(*node_ptr[g : g + 2]), slice(*edge_ptr[g : g + 2])
            kept_n, kept_e = self._tree(ends[e] - n.start, prizes[n], similar[e])
            node[n] = near[n] * torch.from_numpy(kept_n).to(near)
            edge[e] = (1 + relation[e]) * torch.from_numpy(kept_e).to(near)
        # A mediator of the tree may join nodes of it: its edges stay, it is no answer itself.
        return Scores(node[None], edge=edge)

    def _tree(
        self, ends: np.ndarray, near: np.ndarray, similar: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which nodes and edges of one graph are in the tree."""
        nodes, edges = len(near), len(ends)
        kept_n, kept_e = np.zeros(nodes, bool), np.zeros(edges, bool)
        best = np.argsort(-near, kind="stable")[:NODES]
        best = best[near[best] > 0]
        if not edges:
            kept_n[best[:1]] = True
            return kept_n, kept_e
        prize_n = np.zeros(nodes)
        prize_n[best] = np.arange(len(best), 0, -1)
        prize_e, last = np.zeros(edges), float(EDGES)
        values = np.unique(similar)[::-1][:EDGES]
        for place, value in enumerate(values):
            tied = similar == value
            prize = min((len(values) - place) / tied.sum(), last)
            prize_e[tied] = prize
            last = prize * (1 - SMALL)
        cost = min(EDGE_COST, prize_e.max() * (1 - SMALL / 2))
        # pcst_fast knows prizes of nodes only: an edge worth more than its cost becomes a node.
        plain, rich = np.flatnonzero(prize_e <= cost), np.flatnonzero(prize_e > cost)
        middle = nodes + np.arange(len(rich))
        arcs = np.concatenate([
            ends[plain], np.stack([ends[rich, 0], middle], 1), np.stack([middle, ends[rich, 1]], 1)
        ])  # fmt: skip
        costs = np.concatenate([cost - prize_e[plain], np.zeros(2 * len(rich))])
        prizes = np.concatenate([prize_n, prize_e[rich] - cost])
        vertices, chosen = self._solve(arcs, prizes, costs, -1, 1, "gw", 0)
        kept_e[plain[chosen[chosen < len(plain)]]] = True
        kept_e[rich[vertices[vertices >= nodes] - nodes]] = True
        kept_n[vertices[vertices < nodes]] = True
        kept_n[ends[kept_e].ravel()] = True
        return kept_n, kept_e
