"""A small learned ranker of passages, over the features that a head knows of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bisrqa.files import write_folder

FORMAT = 3
WEIGHTS, HEADER = "ranker.safetensors", "ranker.json"


class PassageRanker(nn.Module):
    """Some networks of two layers over standardised features, side by side; their mean counts.

    From some hundred questions one network's ranking depends on its seed; the mean hardly does.

    Args:
        features: Names of what it is given.
        hidden: Width of the layer between, of each.
        members: So many networks.
        dropout: On that layer, in training.
    """

    def __init__(
        self, features: Sequence[str], hidden: int = 16, members: int = 5, dropout: float = 0.1
    ):
        super().__init__()
        self.features, self.hidden, self.members = tuple(features), hidden, members
        self.mean = nn.Buffer(torch.zeros(len(features)))
        self.scale = nn.Buffer(torch.ones(len(features)))
        self.inner = nn.Sequential(
            nn.Linear(len(features), members * hidden), nn.GELU(), nn.Dropout(dropout)
        )
        bound = hidden**-0.5  # as of a linear layer
        self.outer = nn.Parameter(torch.empty(members, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members).uniform_(-bound, bound))

    @torch.no_grad()
    def fit_scale(self, features: Float[Tensor, "passages features"]) -> None:
        """Standardise as these; what is the same in all of them will not count.

        A graph without triples has no entities but titles, for one: nothing is learnt of others.
        """
        spread = features.std(0)
        self.mean.copy_(features.mean(0))
        self.scale.copy_(torch.where(spread > 1e-3, spread, torch.inf))

    def each(
        self, features: Float[Tensor, "passages features"]
    ) -> Float[Tensor, "passages members"]:
        """Log-odds that a passage supports the answer, by every network."""
        inner = self.inner((features - self.mean) / self.scale)
        inner = inner.unflatten(1, (self.members, self.hidden))
        return (inner * self.outer).sum(-1) + self.bias

    def forward(self, features: Float[Tensor, "passages features"]) -> Float[Tensor, " passages"]:
        """The mean of :meth:`each`."""
        return self.each(features).mean(1)

    def save(self, folder: Path, trained_with: dict[str, object]) -> None:
        """Write the weights, and what they were made from."""
        with write_folder(folder) as partial:
            save_file(self.state_dict(), partial / WEIGHTS)
            sizes = {"hidden": self.hidden, "members": self.members}
            header = {"format": FORMAT, **sizes, "features": self.features, **trained_with}
            (partial / HEADER).write_text(json.dumps(header, indent=1) + "\n", "utf8")

    @classmethod
    def load(cls, folder: Path, features: Sequence[str]) -> "PassageRanker":
        """Read what :meth:`save` wrote.

        Args:
            folder: Where.
            features: That it must know.

        Raises:
            ValueError: No such folder, a damaged file, or a ranker of other features.
        """
        try:
            header = json.loads((folder / HEADER).read_text("utf8"))
            weights = load_file(folder / WEIGHTS)
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"{folder}: no trained ranker: {error}") from error
        if header.get("format") != FORMAT or header.get("features") != list(features):
            raise ValueError(
                f"{folder}: a ranker of other features; train it anew: bisrqa train-reranker"
            )
        ranker = cls(features, header["hidden"], header["members"])
        ranker.load_state_dict(weights)
        return ranker.eval().requires_grad_(False)
