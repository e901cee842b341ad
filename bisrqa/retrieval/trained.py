"""What trained retrievers share: networks side by side, of which one stands aside, and a folder.

Of several networks the mean counts, but for a question that they have learnt from only the one that
did not see it: so evidence for training questions is as good as for any other, and no better, and
a language model that is trained on it does not learn to trust it too much (cross-fitting).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bisrqa.data.records import Question
from bisrqa.files import write_folder

FORMAT = 2
WEIGHTS, HEADER = "retriever.safetensors", "retriever.json"
SCALE = 4.0
"""Unit-norm embeddings have small entries; so the network sees them near 1."""


def keys(questions: Sequence[Question]) -> Int[Tensor, " questions"]:
    """What a question is known by: a hash of its id and its words, at least 0."""
    texts = (f"{question.id}\n{question.question}" for question in questions)
    digests = (hashlib.sha256(text.encode()).digest()[:8] for text in texts)
    return torch.tensor([int.from_bytes(d) >> 1 for d in digests], dtype=torch.long)


T = TypeVar("T", bound="Trained")


class Trained(nn.Module):
    """Some small networks side by side: the first dimension of every weight.

    Args:
        members: How many.
        seen: How many questions all members but one have learnt from.
        sizes: What else it takes to build the same; ``dim`` is the width of the embeddings.
    """

    head: ClassVar[str]
    """That uses it."""

    def __init__(self, members: int, seen: int, sizes: Mapping[str, Any]):
        super().__init__()
        self.members = members
        self.sizes = {**sizes, "members": members, "seen": seen}
        self.seen: Int[Tensor, " seen"]
        self.register_buffer("seen", torch.zeros(seen, dtype=torch.long))
        """:func:`keys` of the questions that all members but one have learnt from."""

    def matrix(self, inputs: int, outputs: int) -> nn.Parameter:
        """Weights of every member, as those of a linear layer begin."""
        bound = inputs**-0.5
        return nn.Parameter(torch.empty(self.members, inputs, outputs).uniform_(-bound, bound))

    def fits(self, question_x: Float[Tensor, "questions dim"]) -> None:
        """Refuse embeddings of another width than it was trained on.

        Raises:
            ValueError: Says both.
        """
        if question_x.shape[1] != self.sizes["dim"]:
            raise ValueError(
                f"the retriever has learnt on embeddings of {self.sizes['dim']} numbers, these "
                f"have {question_x.shape[1]}: use the embedder of then, or train it anew"
            )

    def left_out(self, key: Int[Tensor, " questions"]) -> Int[Tensor, " questions"]:
        """Which member a question is kept from in training."""
        return key % self.members

    def learns(self, key: Int[Tensor, " questions"]) -> Bool[Tensor, "members questions"]:
        """Which members learn from each question."""
        if not len(self.seen):
            return torch.ones(self.members, len(key), dtype=torch.bool)
        return self.left_out(key) != torch.arange(self.members)[:, None]

    def shares(self, key: Int[Tensor, " questions"]) -> Float[Tensor, "members questions"]:
        """How much each member counts for each question; columns add up to 1."""
        mean = torch.full((self.members, len(key)), 1 / self.members)
        alone = nn.functional.one_hot(self.left_out(key), self.members).T.to(mean)
        return torch.where(torch.isin(key, self.seen.to(key)), alone, mean)

    def save(self, folder: Path, trained_with: Mapping[str, object]) -> None:
        """Write the weights, and what they were made from."""
        with write_folder(folder) as partial:
            save_file(self.state_dict(), partial / WEIGHTS)
            header = {"format": FORMAT, "head": self.head, "sizes": self.sizes, **trained_with}
            (partial / HEADER).write_text(json.dumps(header, indent=1) + "\n", "utf8")

    @classmethod
    def load(cls: type[T], folder: Path) -> T:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: A damaged file, or one of another head.
        """
        try:
            header = json.loads((folder / HEADER).read_text("utf8"))
            tensors = load_file(folder / WEIGHTS)
            if header["format"] != FORMAT:
                raise ValueError(f"format {header['format']}, expected {FORMAT}")
            if header["head"] != cls.head:
                raise ValueError(f"it is of head {header['head']}, wanted is one of {cls.head}")
            made = cls(**header["sizes"])
            made.load_state_dict(tensors)
            for name, value in tensors.items():
                if not torch.isfinite(value).all():
                    raise ValueError(f"{name} is not finite")
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"{folder}: no trained retriever: {error}; make it anew: bisrqa train-retriever "
                f"--head {cls.head}"
            ) from error
        return made.eval().requires_grad_(False)
