"""A small learned ranker of passages, over :mod:`bisrqa.retrieval.features`."""

import json
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bisrqa.files import write_folder
from bisrqa.retrieval.features import NAMES

FORMAT = 1
WEIGHTS, HEADER = "ranker.safetensors", "ranker.json"


class PassageRanker(nn.Module):
    """Two layers over standardised features.

    Args:
        hidden: Width of the layer between.
        dropout: On it, in training.
    """

    def __init__(self, hidden: int = 16, dropout: float = 0.1):
        super().__init__()
        self.hidden = hidden
        self.mean = nn.Buffer(torch.zeros(len(NAMES)))
        self.scale = nn.Buffer(torch.ones(len(NAMES)))
        self.layers = nn.Sequential(
            nn.Linear(len(NAMES), hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    def forward(self, features: Float[Tensor, "passages features"]) -> Float[Tensor, " passages"]:
        """Log-odds that a passage supports the answer."""
        return self.layers((features - self.mean) / self.scale).squeeze(1)

    def save(self, folder: Path, trained_with: dict[str, object]) -> None:
        """Write the weights, and what they were made from."""
        with write_folder(folder) as partial:
            save_file(self.state_dict(), partial / WEIGHTS)
            header = {"format": FORMAT, "hidden": self.hidden, "features": NAMES, **trained_with}
            (partial / HEADER).write_text(json.dumps(header, indent=1) + "\n", "utf8")

    @classmethod
    def load(cls, folder: Path) -> "PassageRanker":
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: No such folder, a damaged file, or a ranker of other features.
        """
        try:
            header = json.loads((folder / HEADER).read_text("utf8"))
            weights = load_file(folder / WEIGHTS)
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"{folder}: no trained ranker: {error}") from error
        if header.get("format") != FORMAT or header.get("features") != list(NAMES):
            raise ValueError(
                f"{folder}: a ranker of other features; train it anew: bisrqa train-reranker"
            )
        ranker = cls(header["hidden"])
        ranker.load_state_dict(weights)
        return ranker.eval().requires_grad_(False)
