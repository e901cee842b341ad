"""Encoders of subgraphs into soft tokens: one file a method, and the table that names them."""

from torch import nn

from bisrqa.config import EncoderConfig
from bisrqa.encoders.base import Fusion, Subgraphs
from bisrqa.encoders.g_retriever import GRetriever
from bisrqa.encoders.grag import GRAG
from bisrqa.encoders.maif import MAIF
from bisrqa.encoders.prompt_tuning import PromptTuning

ENCODERS = {
    "maif": MAIF,
    "g_retriever": GRetriever,
    "grag": GRAG,
    "prompt_tuning": PromptTuning,
}


def build(config: EncoderConfig, *, dim: int, llm_hidden: int, word_norm: float) -> nn.Module:
    """The encoder that ``config.kind`` names.

    Args:
        config: Sizes.
        dim: Width of the text embeddings.
        llm_hidden: Width of the language model's word embeddings.
        word_norm: Their mean norm; soft tokens start at this norm.
    """
    return ENCODERS[config.kind](config, dim=dim, llm_hidden=llm_hidden, word_norm=word_norm)


__all__ = ["ENCODERS", "Fusion", "Subgraphs", "build"]
