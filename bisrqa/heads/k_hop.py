"""Ego graphs as GRAG has them (Hu et al. 2024, section 3.2).

Every node's neighbourhood within two steps is a document whose embedding is the mean of its texts;
the nearest ones are united.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads.base import Scores, ScoringHead, lend_to_mediators
from bisrqa.retrieval.nearest import closeness
from bisrqa.retrieval.segments import segment_rank

HOPS, EGOS = 2, 10
"""Its settings for WebQSP."""


class KHopHead(ScoringHead):
    """Nodes of the nearest ego graphs, by the ego's closeness times their own.

    An edge inside an ego counts once for each of its ends in the mean.
    """

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        near, nodes = closeness(question_x, graph), graph.num_nodes
        head, tail = graph.edge_index.cpu().numpy()
        both = np.r_[head, tail], np.r_[tail, head]
        steps = sp.csr_array((np.ones(2 * len(head), np.float32), both), shape=(nodes, nodes))
        step = _ones(steps + sp.eye_array(nodes, format="csr"))
        inner = step  # what lies within HOPS - 1: the edges there lead to what lies within HOPS
        for _ in range(HOPS - 2):
            inner = _ones(inner @ step)
        ego = _ones(inner @ step)
        # A text's similarity to the question is linear: mean of embeddings, then one division.
        x = graph.x.cpu().numpy()
        at_node = np.zeros((nodes, x.shape[1]), np.float32)
        kinds = graph.relation_x[graph.edge_type].cpu().numpy()
        for ends in (head, tail):
            np.add.at(at_node, ends, kinds)
        total = ego @ x + inner @ at_node
        mean = torch.nn.functional.normalize(torch.from_numpy(total), dim=-1).to(question_x)
        value = 1 + (mean * question_x[graph.node_batch]).sum(-1)
        chosen = segment_rank(value, graph.node_ptr) < EGOS
        ego = ego.tocoo()
        center, member = (torch.from_numpy(part.astype(np.int64)).to(near.device)
                          for part in ego.coords)  # fmt: skip
        center, member = center[chosen[center]], member[chosen[center]]
        best = torch.zeros_like(near).scatter_reduce(0, member, value[center], "amax")
        return Scores(lend_to_mediators(graph, best * near)[None])


def _ones(matrix: Any) -> sp.csr_array:
    """The same pattern with 1 everywhere."""
    made = sp.csr_array(matrix, dtype=np.float32)
    made.data[:] = 1
    return made
