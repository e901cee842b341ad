"""MAIF, multi-attention information fusion: a subgraph becomes soft prompt tokens.

This is BiS-RQA's implicit filtering. Entities, relations and the pooled subgraph attend to
themselves, then to one another. The subgraph's cross-attention says how much each entity and
relation matters; what they hand on to the language model is weighted by it.

Shape letters: B questions, E entities, R relations, N = 1 + E + R tokens, T soft tokens, D
embedding width, C hidden width, H language model width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bisrqa.config import EncoderConfig
from bisrqa.encoders.base import Fusion, Subgraphs, ToWords, edge_means, mean_kept


class Attention(nn.Module):
    """Multi-head attention with a residual, which hands back its weights.

    ``torch.nn.MultiheadAttention`` gives NaN where nothing may be attended to; here such a row
    gets zeros.
    """

    def __init__(self, hidden: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.query_norm, self.key_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.value, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        reader: Float[Tensor, "questions readers hidden"],
        source: Float[Tensor, "questions sources hidden"],
        keep: Bool[Tensor, "questions readers_or_1 sources"],
        prior: Float[Tensor, "questions sources"] | None = None,
    ) -> tuple[
        Float[Tensor, "questions readers hidden"], Float[Tensor, "questions readers sources"]
    ]:
        """Let ``reader`` read ``source`` where ``keep``.

        ``prior`` multiplies the weights before they are normalised.
        """

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        source_n = self.key_norm(source)
        q, k, v = (
            split(self.query(self.query_norm(reader))),
            split(self.key(source_n)),
            split(self.value(source_n)),
        )
        logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if prior is not None:
            logits = logits + torch.log(prior.clamp_min(1e-9))[:, None, None]
        keep = keep[:, None]
        # A large finite number, not -inf: a row without anything to read stays finite and is
        # zeroed below.
        weight = torch.softmax(logits.masked_fill(~keep, -1e9), -1) * keep
        read = self.out((weight @ v).transpose(1, 2).flatten(2)) * keep.any(-1).transpose(1, 2)
        return reader + self.dropout(read), weight.mean(1)


class MAIF(nn.Module):
    """Subgraphs in, soft tokens and attention weights out.

    Args:
        config: Sizes and pooling.
        dim: Width of the text embeddings.
        llm_hidden: Width of the language model's word embeddings.
        word_norm: Their mean norm; soft tokens start at this norm.
    """

    def __init__(self, config: EncoderConfig, *, dim: int, llm_hidden: int, word_norm: float):
        super().__init__()
        c = config.hidden
        self.config = config
        # A unit-norm embedding has entries near 1 / sqrt(D): unscaled, the walk score drowns it.
        self.unit = dim**0.5
        self.entity_in, self.relation_in, self.score_in = (
            nn.Linear(dim, c),
            nn.Linear(dim, c),
            nn.Linear(2, c),
        )
        self.pool = nn.Linear(2 * c, c)
        self.question_in = nn.Linear(dim, c) if config.condition_on_question else None
        self.out_in, self.in_in = (
            (nn.Linear(dim, c), nn.Linear(dim, c)) if config.structure else (None, None)
        )
        self.kind = nn.Parameter(torch.randn(3, c) * 0.02)
        attention = (c, config.num_heads, config.dropout)
        self.self_attention = Attention(*attention)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c)
        )
        self.subgraph_reads_entities, self.subgraph_reads_relations = (
            Attention(*attention),
            Attention(*attention),
        )
        self.entity_reads_relations, self.relation_reads_entities = (
            Attention(*attention),
            Attention(*attention),
        )
        if config.pooling == "queries":
            self.queries = nn.Parameter(torch.randn(config.soft_tokens, c) * 0.1)
            self.query_reads = Attention(*attention)
        self.to_words = ToWords(
            c, config.num_soft_tokens, llm_hidden=llm_hidden, word_norm=word_norm
        )

    def forward(self, graph: Subgraphs) -> Fusion:
        keep_e, keep_r = graph.keep_entities, graph.keep_relations
        score = graph.entity_score[..., None]
        e = self.entity_in(graph.entity_x * self.unit) + self.score_in(
            torch.cat([score, torch.log(score.clamp_min(1e-6))], -1)
        )
        if self.out_in is not None and self.in_in is not None:
            heads, tails = edge_means(graph)
            e = e + self.out_in(heads * self.unit) + self.in_in(tails * self.unit)
        r = self.relation_in(graph.relation_x * self.unit)
        s = self.pool(torch.cat([mean_kept(e, keep_e), mean_kept(r, keep_r)], -1))[:, None]
        if self.question_in is not None:
            s = s + self.question_in(graph.question_x * self.unit)[:, None]

        tokens_BNC = torch.cat([s + self.kind[0], e + self.kind[1], r + self.kind[2]], 1)
        tokens_BNC, _ = self.self_attention(tokens_BNC, tokens_BNC, _self_mask(keep_e, keep_r))
        tokens_BNC = tokens_BNC + self.feed_forward(tokens_BNC)
        s, e, r = tokens_BNC.split([1, e.shape[1], r.shape[1]], 1)

        s, a_e = self.subgraph_reads_entities(s, e, keep_e[:, None])
        s, a_r = self.subgraph_reads_relations(s, r, keep_r[:, None])
        e_new, _ = self.entity_reads_relations(e, r, keep_r[:, None])
        r, _ = self.relation_reads_entities(r, e, keep_e[:, None])
        e = e_new
        a_e, a_r = a_e.squeeze(1), a_r.squeeze(1)

        if self.config.pooling == "granularity":
            out_BTC = torch.cat([a_e[:, None] @ e, a_r[:, None] @ r, s], 1)
        else:
            tokens_BNC = torch.cat([s, e, r], 1)
            keep = torch.cat([keep_e.new_ones(len(s), 1), keep_e, keep_r], 1)[:, None]
            prior = torch.cat([a_e.new_ones(len(s), 1), a_e, a_r], 1)
            queries = self.queries.expand(len(s), -1, -1)
            out_BTC, _ = self.query_reads(queries, tokens_BNC, keep, prior)
        return Fusion(self.to_words(out_BTC, keep_e), a_e, a_r)


def _self_mask(
    keep_entities: Bool[Tensor, "questions entities"],
    keep_relations: Bool[Tensor, "questions relations"],
) -> Bool[Tensor, "questions tokens tokens"]:
    """Entities see entities, relations see relations, the subgraph sees both and itself."""
    entities, relations = keep_entities.shape[1], keep_relations.shape[1]
    kind = torch.cat([
        torch.zeros(1, dtype=torch.long), torch.ones(entities, dtype=torch.long),
        torch.full((relations,), 2)
    ]).to(keep_entities.device)  # fmt: skip
    itself = keep_entities.new_ones(len(keep_entities), 1)  # there may be no entity column
    keep = torch.cat([itself, keep_entities, keep_relations], 1)
    allowed = (kind[:, None] == kind) | (kind[:, None] == 0)
    return allowed & keep[:, None]
