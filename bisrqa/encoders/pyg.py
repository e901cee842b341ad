"""Message passing layers of PyG, which is imported only where they are used."""

from typing import Any

from torch import nn

from bisrqa.config import EncoderConfig


def layers(config: EncoderConfig, *, edge_dim: int) -> list[nn.Module]:
    """``config.layers`` layers of ``config.gnn``, from and to width ``config.hidden``.

    Raises:
        ValueError: torch_geometric is not installed.
    """
    try:
        import torch_geometric.nn as pyg
    except ImportError as error:
        raise ValueError(
            f"encoder.kind {config.kind} needs torch_geometric: pip install 'bisrqa[pyg]'"
        ) from error
    kind: Any = {"graph_transformer": pyg.TransformerConv, "gat": pyg.GATConv}[config.gnn]
    width = config.hidden // config.num_heads
    sizes = {"heads": config.num_heads, "edge_dim": edge_dim, "dropout": config.dropout}
    return [kind(config.hidden, width, **sizes) for _ in range(config.layers)]
