"""Rows of a training pass laid end to end, behind the tokens that all of them begin with.

A packed pass has one row of tokens and no padding: the first row whole, then what of each other row
is its own. Everything but attention treats tokens singly and need not know. In attention a token
sees the shared ones, and those of its own row up to itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bisrqa import decoding

NAME = "bisrqa_packed"
"""Of the attention below, among those of transformers."""
BLOCK = 64
"""Queries that look at keys together on a CPU, whose kernel also works on what a mask hides: with
blocks it is spared most of the keys that stand behind a query."""


class Packed(NamedTuple):
    """Lengths of the rows of a packed pass."""

    shared: int
    """Tokens that stand only in the first row and belong to every one."""
    rows: tuple[int, ...]
    """Tokens of each row, the shared ones included."""

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Of each row: where its own tokens begin and end, and the place of the first in its row.

        The shared tokens count as the first row's own.
        """
        start, place = 0, 0
        for length in self.rows:
            yield start, start + length - place, place
            start, place = start + length - place, self.shared

    def positions(self) -> Int[Tensor, "one tokens"]:
        """Place of every token in its row."""
        return torch.cat([torch.arange(p, p + e - s) for s, e, p in self.spans()])[None]

    def mask(self) -> Bool[Tensor, "one one longest longest"]:
        """What a token sees of the longest row, and so of any."""
        longest = max(self.rows)
        return torch.ones(1, 1, longest, longest, dtype=torch.bool).tril()


def own_tokens(
    attention_mask: Int[Tensor, "questions tokens"], shared: int
) -> Bool[Tensor, "questions tokens"]:
    """Which tokens of padded rows a packed pass has: all but padding and repetitions."""
    first = torch.arange(len(attention_mask), device=attention_mask.device)[:, None] == 0
    return attention_mask.bool() & (first | (attention_mask.cumsum(-1) > shared))


def prepare(llm: PreTrainedModel) -> bool:
    """Let a model take packed passes, if it can; in others it does what it did.

    It can if its attention is PyTorch's, goes through transformers' registry, and looks at every
    token before.
    """
    config = llm.config
    able = config._attn_implementation == "sdpa" and decoding.can_decode(config)
    if able and getattr(llm, "_supports_attention_backend", False):
        llm.set_attn_implementation(NAME)
    return llm.config._attn_implementation == NAME


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed: Packed | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """PyTorch's attention, row by row where the pass is packed.

    Args:
        module: The layer, for its ``num_key_value_groups``.
        query: [1, heads, tokens, dim]; keys and values may have fewer heads.
        key: As ``query``.
        value: As ``query``.
        attention_mask: ``packed.mask()``.
        packed: The rows; None is any other pass.
        kwargs: What transformers gives; of these ``scaling`` and ``dropout`` are used.

    Returns:
        [1, tokens, heads, dim], and no weights.
    """
    if packed is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    assert attention_mask is not None
    groups = getattr(module, "num_key_value_groups", 1)
    options = {"dropout_p": kwargs.get("dropout", 0.0), "scale": kwargs.get("scaling")}
    made = []
    for start, end, place in packed.spans():
        keys, values = (
            repeat_kv(torch.cat([t[:, :, :place], t[:, :, start:end]], 2), groups)
            for t in (key, value)
        )
        for first, last in blocks(end - start, query.device):
            seen = place + last
            made.append(
                nn.functional.scaled_dot_product_attention(
                    query[:, :, start + first : start + last],
                    keys[:, :, :seen],
                    values[:, :, :seen],
                    attn_mask=attention_mask[:, :, place + first : seen, :seen],
                    **options,
                ).transpose(1, 2)
            )
    return torch.cat(made, 1), None


def blocks(length: int, device: torch.device) -> Sequence[tuple[int, int]]:
    """Cut a row into blocks of like size: at most :data:`BLOCK` on a CPU, elsewhere one."""
    count = -(-length // BLOCK) if device.type == "cpu" else 1
    return [(length * i // count, length * (i + 1) // count) for i in range(count)]


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
