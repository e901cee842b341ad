"""Prompt tuning: learned soft tokens, the same for every question."""

import torch
from torch import nn

from bisrqa.config import EncoderConfig
from bisrqa.encoders.base import Fusion, Subgraphs


class PromptTuning(nn.Module):
    """Reads nothing of the subgraph (Lester et al. 2021); the arguments are those of MAIF."""

    def __init__(self, config: EncoderConfig, *, dim: int, llm_hidden: int, word_norm: float):
        super().__init__()
        start = torch.randn(config.soft_tokens, llm_hidden)
        self.tokens = nn.Parameter(start * word_norm / llm_hidden**0.5)

    def forward(self, graph: Subgraphs) -> Fusion:
        return Fusion(self.tokens.expand(len(graph.question_x), -1, -1))
