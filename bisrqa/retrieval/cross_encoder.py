"""A cross-encoder: reads question and text together, and is too slow for more than some dozens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.config import CrossEncoderConfig
from bisrqa.packaged import resolve_model


def open_model(source: str, config: CrossEncoderConfig) -> Any:
    """A ``sentence_transformers.CrossEncoder`` with one output, in fp32, or bf16 on a GPU.

    Raises:
        ValueError: There is no such model; named.
    """
    from sentence_transformers import CrossEncoder as Model

    cuda = torch.cuda.is_available()
    try:
        model = Model(
            source, num_labels=1, device="cuda" if cuda else "cpu", revision=config.revision,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ValueError(f"cross_encoder.model: {source}: {error}") from error
    model.max_seq_length = config.max_length
    return model.bfloat16() if cuda else model


class CrossEncoder:
    """Scores pairs of a question and a text; loaded when first used.

    Args:
        config: The model and how it is asked.
        cache_dir: Where packaged models are unpacked.

    Raises:
        ValueError: No model is named, or its folder holds none.
    """

    def __init__(self, config: CrossEncoderConfig, cache_dir: Path):
        if config.model is None:
            raise ValueError("cross_encoder.model: none is named")
        try:
            self._source = resolve_model(config.model, cache_dir)
        except ValueError as error:
            raise ValueError(
                f"cross_encoder.model: {error} "
                "(bisrqa train-reranker --kind cross_encoder makes one)"
            ) from error
        self.config = config
        self._model: Any = None

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Float[Tensor, " pairs"]:
        """Scores, higher is better; of any number of questions at once."""
        if self._model is None:
            self._model = open_model(self._source, self.config)
        if not pairs:
            return torch.zeros(0)
        found = self._model.predict(
            list(pairs), batch_size=self.config.batch_size, show_progress_bar=False,
            activation_fn=torch.nn.Identity(), convert_to_tensor=True,
        )  # fmt: skip
        return found.float().cpu()
