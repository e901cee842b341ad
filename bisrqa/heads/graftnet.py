"""The walk of GraftNet (Sun et al. 2018), the model of most published WebQSP and CWQ graphs.

From the topics, over matrices that are row-normalised for each relation, weighted by the squared
cosine of relation and question and normalised again; restart 0.8, at most 20 steps.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.base import Scores, ScoringHead
from bisrqa.retrieval.segments import segment_sum, spread

RESTART, STEPS, TOLERANCE = 0.8, 20, 1e-5
"""As in its code."""


class GraftNetHead(ScoringHead):
    """Mass of the walk; a question without topics starts at all named nodes."""

    def score(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors,
        topics: Bool[Tensor, "one nodes"],
    ) -> Scores:
        ptr, nodes = graph.node_ptr, graph.num_nodes
        start = topics.to(question_x)
        none = spread(segment_sum(start, ptr) == 0, ptr, nodes)
        start = torch.where(none, (graph.node_kind != NodeKind.MEDIATOR).to(start), start)
        total = segment_sum(start, ptr)
        start = (start / spread(torch.where(total > 0, total, 1.0), ptr, nodes))[0]

        source, target = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
        kind = torch.cat([graph.edge_type, graph.edge_type + graph.num_relations])
        # How many arcs of the same relation leave the source.
        key = source * (2 * graph.num_relations) + kind
        _, place, count = torch.unique(key, return_inverse=True, return_counts=True)
        cosine = (graph.relation_x * question_x[graph.relation_batch]).sum(-1)
        relation = cosine.square()
        weight = relation.repeat(2)[kind] / count[place]
        leaving = torch.zeros_like(start).index_add(0, source, weight)
        weight = weight / leaving[source].clamp_min(1e-12)
        mass = start
        for _ in range(STEPS):
            moved = torch.zeros_like(mass).index_add(0, target, weight * mass[source])
            following = RESTART * start + (1 - RESTART) * moved
            step = segment_sum((following - mass).abs()[None], ptr)
            mass = following
            if not (step > TOLERANCE).any():
                break
        return Scores(mass[None], relation=relation[None])
