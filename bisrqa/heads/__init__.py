"""Retrieval heads: one file a method, and the table that names them."""

from bisrqa.config import RunConfig
from bisrqa.heads.base import Evidence, Head
from bisrqa.heads.bisrqa import BiSRQAHead

HEADS = {"bisrqa": lambda config: BiSRQAHead(config.retriever)}


def build(config: RunConfig) -> Head:
    """The head that ``config.head`` names."""
    return HEADS[config.head](config)


__all__ = ["HEADS", "Evidence", "Head", "build"]
