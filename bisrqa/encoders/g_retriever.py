"""G-Retriever's encoder: a graph network over the subgraph, mean-pooled into one soft token.

He et al. 2024, section 4.3, with PyG's layers. Departures, the same for all encoders here: inputs
are scaled by sqrt(dim) and the token is scaled to the norm of words (:class:`ToWords`); and the
graph transformer has LayerNorm instead of BatchNorm, so that a question's token does not depend on
its batch.
"""

import torch
from torch import nn

from bisrqa.config import EncoderConfig
from bisrqa.encoders.base import Fusion, Subgraphs, ToWords, mean_kept
from bisrqa.encoders.pyg import layers


class GRetriever(nn.Module):
    """Subgraphs in, one soft token out; the arguments are those of MAIF."""

    def __init__(self, config: EncoderConfig, *, dim: int, llm_hidden: int, word_norm: float):
        super().__init__()
        c = config.hidden
        self.unit = dim**0.5
        self.entity_in, self.relation_in = nn.Linear(dim, c), nn.Linear(dim, c)
        self.convs = nn.ModuleList(layers(config, edge_dim=c))
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in self.convs)
        self.dropout = nn.Dropout(config.dropout)
        self.to_words = ToWords(c, 1, llm_hidden=llm_hidden, word_norm=word_norm)

    def forward(self, graph: Subgraphs) -> Fusion:
        x = self.entity_in(graph.entity_x * self.unit).flatten(0, 1)
        edge = self.relation_in(graph.relation_x * self.unit).flatten(0, 1)[graph.edge_type]
        for depth, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x, graph.edge_index, edge))
            if depth + 1 < len(self.convs):
                x = self.dropout(torch.relu(x))
        nodes = x.unflatten(0, graph.keep_entities.shape)
        pooled = mean_kept(nodes, graph.keep_entities)[:, None]
        return Fusion(self.to_words(pooled, graph.keep_entities))
