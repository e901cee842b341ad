"""GRAG's encoder: a graph network with nodes and edges gated by how far they are from the question.

Hu et al. 2024, section 3.3 (soft pruning): ``alpha = sigmoid(MLP((x - q)^2))`` scales each node
and each edge before messages pass; the gated nodes are mean-pooled into one soft token. Departures
as in :mod:`~bisrqa.encoders.g_retriever`; the gates read the text embeddings.
"""

import torch
from torch import Tensor, nn

from bisrqa.config import EncoderConfig
from bisrqa.encoders.base import Fusion, Subgraphs, ToWords, mean_kept
from bisrqa.encoders.pyg import layers


class GRAG(nn.Module):
    """Subgraphs in, one soft token out; the arguments are those of MAIF."""

    def __init__(self, config: EncoderConfig, *, dim: int, llm_hidden: int, word_norm: float):
        super().__init__()
        c = config.hidden
        self.unit = dim**0.5
        self.entity_gate, self.relation_gate = _gate(dim, c), _gate(dim, c)
        self.entity_in, self.relation_in = nn.Linear(dim, c), nn.Linear(dim, c)
        self.convs = nn.ModuleList(layers(config, edge_dim=c))
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in self.convs)
        self.dropout = nn.Dropout(config.dropout)
        self.to_words = ToWords(c, 1, llm_hidden=llm_hidden, word_norm=word_norm)

    def forward(self, graph: Subgraphs) -> Fusion:
        question = graph.question_x[:, None] * self.unit
        entity, relation = graph.entity_x * self.unit, graph.relation_x * self.unit
        keep_node = self._open(self.entity_gate, entity, question)
        keep_edge = self._open(self.relation_gate, relation, question)
        x = (self.entity_in(entity) * keep_node).flatten(0, 1)
        edge = (self.relation_in(relation) * keep_edge).flatten(0, 1)[graph.edge_type]
        for depth, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x, graph.edge_index, edge))
            if depth + 1 < len(self.convs):
                x = self.dropout(torch.relu(x)) * keep_node.flatten(0, 1)
        nodes = x.unflatten(0, graph.keep_entities.shape) * keep_node
        pooled = mean_kept(nodes, graph.keep_entities)[:, None]
        return Fusion(self.to_words(pooled, graph.keep_entities))

    @staticmethod
    def _open(gate: nn.Module, x: Tensor, question: Tensor) -> Tensor:
        return torch.sigmoid(gate((x - question) ** 2))


def _gate(dim: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))
