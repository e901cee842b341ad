"""What an encoder of subgraphs takes and gives, and the last step that all of them share.

Shape letters: B questions, T soft tokens, C hidden width, H language model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bisrqa.heads.base import Evidence


@dataclass(frozen=True, kw_only=True, eq=False)
class Subgraphs:
    """Padded kept subgraphs of a batch of questions."""

    entity_x: Float[Tensor, "questions entities dim"]
    entity_score: Float[Tensor, "questions entities"]
    """Walk score over the largest one of its question: in (0, 1]."""
    keep_entities: Bool[Tensor, "questions entities"]
    relation_x: Float[Tensor, "questions relations dim"]
    keep_relations: Bool[Tensor, "questions relations"]
    edge_index: Int[Tensor, "2 edges"]
    """Head and tail of all edges, as rows of ``entity_x.flatten(0, 1)``."""
    edge_type: Int[Tensor, " edges"]
    """Rows of ``relation_x.flatten(0, 1)``."""
    question_x: Float[Tensor, "questions dim"]

    @classmethod
    def collate(cls, evidence: Sequence[Evidence], question_x: Sequence[Tensor]) -> "Subgraphs":
        """Pad the kept nodes and the distinct relations of each question."""
        graphs = [e.graph for e in evidence]
        scores = [
            e.node_score / e.node_score.max().clamp_min(1e-12)
            if len(e.node_score)
            else e.node_score
            for e in evidence
        ]
        entity_x = pad_sequence([g.x.float() for g in graphs], True)
        relation_x = pad_sequence([g.relation_x.float() for g in graphs], True)
        entities, relations = entity_x.shape[1], relation_x.shape[1]
        return cls(
            entity_x=entity_x,
            entity_score=pad_sequence(scores, True),
            keep_entities=pad_sequence(
                [torch.ones(g.num_nodes, dtype=torch.bool) for g in graphs], True
            ),
            relation_x=relation_x,
            keep_relations=pad_sequence(
                [torch.ones(g.num_relations, dtype=torch.bool) for g in graphs], True
            ),
            edge_index=torch.cat([g.edge_index + i * entities for i, g in enumerate(graphs)], 1),
            edge_type=torch.cat([g.edge_type + i * relations for i, g in enumerate(graphs)]),
            question_x=torch.stack(list(question_x)).float(),
        )

    def to(self, device: torch.device) -> "Subgraphs":
        return Subgraphs(
            **{name: value.to(device, non_blocking=True) for name, value in vars(self).items()}
        )

    def pin_memory(self) -> "Subgraphs":
        """The same in memory that a GPU can copy from on its own."""
        return Subgraphs(**{name: value.pin_memory() for name, value in vars(self).items()})


class Fusion(NamedTuple):
    """What an encoder gives."""

    soft_tokens: Float[Tensor, "questions soft hidden"]
    """In the space of the language model's word embeddings."""
    entity_attention: Float[Tensor, "questions entities"] | None = None
    """How MAIF's subgraph token weighs the entities; sums to 1, or all zero for an empty subgraph.
    None from encoders that have no such thing."""
    relation_attention: Float[Tensor, "questions relations"] | None = None
    """The same for relations."""


class ToWords(nn.Module):
    """From an encoder's width to word embeddings, at the norm that those have.

    The same for every encoder, so that a comparison is of what they read and not of the scale they
    start at: the language model hardly sees a soft token that is much smaller than its words.

    Args:
        hidden: Width of the encoder.
        soft_tokens: How many tokens it makes.
        llm_hidden: Width of the language model's word embeddings.
        word_norm: Their mean norm; soft tokens start at this norm.
    """

    def __init__(self, hidden: int, soft_tokens: int, *, llm_hidden: int, word_norm: float):
        super().__init__()
        self.projector = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, llm_hidden), nn.GELU(),
            nn.Linear(llm_hidden, llm_hidden), nn.LayerNorm(llm_hidden, elementwise_affine=False),
        )  # fmt: skip
        self.no_evidence = nn.Parameter(torch.randn(soft_tokens, llm_hidden))
        # LayerNorm leaves a norm of sqrt(H).
        self.scale = nn.Parameter(torch.tensor(word_norm / llm_hidden**0.5))

    def forward(
        self, tokens_BTC: Tensor, keep_entities: Bool[Tensor, "questions entities"]
    ) -> Float[Tensor, "questions soft llm_hidden"]:
        """Soft tokens; learned ones for a question without evidence."""
        soft = self.projector(tokens_BTC)
        empty = ~keep_entities.any(1)
        absent = nn.functional.layer_norm(self.no_evidence, self.no_evidence.shape[-1:])
        return torch.where(empty[:, None, None], absent, soft) * self.scale


def mean_kept(
    tokens: Float[Tensor, "questions tokens hidden"], keep: Bool[Tensor, "questions tokens"]
) -> Float[Tensor, "questions hidden"]:
    """Mean over the tokens that are kept; zero where there are none."""
    return (tokens * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp_min(1)


def edge_means(
    graph: Subgraphs,
) -> tuple[Float[Tensor, "questions entities dim"], Float[Tensor, "questions entities dim"]]:
    """Mean embedding of the relations of the edges out of each entity, and of those into it."""
    relation = graph.relation_x.flatten(0, 1)[graph.edge_type]
    entities = graph.entity_x.flatten(0, 1)
    means = []
    for end in graph.edge_index:
        total = torch.zeros_like(entities).index_add(0, end, relation)
        count = entities.new_zeros(len(entities)).index_add(0, end, torch.ones_like(relation[:, 0]))
        means.append((total / count.clamp_min(1)[:, None]).unflatten(0, graph.keep_entities.shape))
    return means[0], means[1]
