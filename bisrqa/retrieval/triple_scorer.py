"""A small network that scores each triple by itself, as SubgraphRAG does (Li et al. 2025, 3.1).

    logit(h, r, t) = MLP [q, x_h, x_r, x_t, d_h, d_t]

d, the directional distance encoding, says how far a node is from the topics along and against the
edges: marks of the topics, passed on and averaged over the arcs that arrive, some rounds each way.
The first layer is linear in its parts, so that each node, relation and question goes through it
once, however many triples it is in.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.retrieval.trained import SCALE, Trained

ROUNDS = 2
"""Each way, as in the paper."""
FEATURES = 2 * (1 + 2 * ROUNDS)


class TripleScorer(Trained):
    """Some such networks side by side; in use the mean of their logits counts.

    Args:
        dim: Width of the text embeddings.
        hidden: Width of the networks.
        members: How many.
        dropout: In training.
        seen: How many questions all members but one have learnt from.
    """

    head = "subgraphrag"

    def __init__(
        self, dim: int, *, hidden: int = 256, members: int = 3, dropout: float = 0.4, seen: int = 0
    ):
        super().__init__(members, seen, {"dim": dim, "hidden": hidden})
        self.dropout = dropout
        self.question, self.relation = self.matrix(dim, hidden), self.matrix(dim, hidden)
        self.start, self.end = self.matrix(dim, hidden), self.matrix(dim, hidden)
        self.start_distance = self.matrix(FEATURES, hidden)
        self.end_distance = self.matrix(FEATURES, hidden)
        self.unnamed = nn.Parameter(torch.zeros(members, 1, dim))
        """Stands for the text of a mediator."""
        self.inner_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.outer = self.matrix(hidden, 1)
        self.outer_bias = nn.Parameter(torch.zeros(members, 1, 1))

    def forward(
        self,
        graph: GraphTensors,
        question_x: Float[Tensor, "questions dim"],
        topics: Bool[Tensor, " nodes"],
    ) -> Float[Tensor, "members edges"]:
        """Logits of a batch with a graph for each question.

        Raises:
            ValueError: Embeddings of another width than it was trained on.
        """
        self.fits(question_x)
        drop = nn.functional.dropout
        mediator = (graph.node_kind == NodeKind.MEDIATOR)[None, :, None]
        x = torch.where(mediator, self.unnamed, drop(graph.x, self.dropout, self.training) * SCALE)
        asked = drop(question_x, self.dropout, self.training) @ self.question * SCALE
        named = drop(graph.relation_x, self.dropout, self.training) @ self.relation * SCALE
        far = distance_encoding(graph, topics)
        start, end = x @ self.start + far @ self.start_distance, x @ self.end
        end = end + far @ self.end_distance
        head, tail = graph.edge_index
        inner = start[:, head] + end[:, tail] + named[:, graph.edge_type]
        inner = torch.relu(inner + asked[:, graph.edge_batch] + self.inner_bias)
        inner = drop(inner, self.dropout, self.training)
        return (inner @ self.outer + self.outer_bias)[..., 0]


def distance_encoding(
    graph: GraphTensors, topics: Bool[Tensor, " nodes"]
) -> Float[Tensor, "nodes features"]:
    """Marks of topics and of others, as they are, and passed on along and against the edges."""
    mark = torch.stack([topics, ~topics], 1).to(graph.x)
    found = [mark]
    for source, target in (graph.edge_index, graph.edge_index.flip(0)):
        arriving = torch.bincount(target, minlength=graph.num_nodes).clamp_min(1).to(mark)[:, None]
        value = mark
        for _ in range(ROUNDS):
            value = torch.zeros_like(mark).index_add(0, target, value[source]) / arriving
            found.append(value)
    return torch.cat(found, 1)
