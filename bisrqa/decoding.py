"""Greedy replies to a batch of prompts, each row only as long as it speaks.

The tokens are those of ``transformers``' own greedy search. What is spared: the instruction, which
all prompts begin with, is read once for a batch; keys and values are written in place instead of
being copied at each token; and rows that have ended leave the batch.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from bisrqa.clock import now
from bisrqa.constraint import Lines, narrow

# Newer releases of transformers warn where the old name is used.
_CACHE = (
    "cache"
    if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    else ("past_key_values")
)
KEEP = 0.75
"""Rows leave once no more than this share of a batch still speaks: leaving copies what stays."""


class Decoded(NamedTuple):
    """What was written, and what it took."""

    ids: list[list[int]]
    """Tokens of each row, up to its stop token and with it."""
    prefill_seconds: float
    decode_seconds: float


class _Room(DynamicLayer):
    """Keys and values of one layer, with room for what is still to come."""

    def __init__(self, layer: DynamicLayer, extra: int):
        super().__init__()
        keys, values = cast(tuple[Tensor, Tensor], (layer.keys, layer.values))
        self.is_initialized, self.device, self._length = True, keys.device, keys.shape[-2]
        self._key_room, self._value_room = (
            torch.cat([t, t.new_empty(*t.shape[:2], extra, t.shape[-1])], -2)
            for t in (keys, values)
        )
        self._view()

    def _view(self) -> tuple[Tensor, Tensor]:
        keys, values = (t[:, :, : self._length] for t in (self._key_room, self._value_room))
        self.keys, self.values = keys, values
        return keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        end = self._length + key_states.shape[-2]
        self._key_room[:, :, self._length : end] = key_states
        self._value_room[:, :, self._length : end] = value_states
        self._length = end
        return self._view()

    def batch_select_indices(self, indices: Tensor) -> None:
        self._key_room, self._value_room = self._key_room[indices], self._value_room[indices]
        self._view()


def can_decode(config: PretrainedConfig) -> bool:
    """Whether a model keeps plain keys and values of every token: all that this file handles."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) is DynamicLayer for layer in layers)


@torch.no_grad()
def greedy(
    llm: torch.nn.Module,
    embeds: Float[Tensor, "questions tokens hidden"],
    attention_mask: Int[Tensor, "questions tokens"],
    *,
    prefix: Float[Tensor, "prefix hidden"],
    stop_ids: Sequence[int],
    max_new_tokens: int,
    together: Callable[[bool], bool] = bool,
    lines: Sequence[Lines | None] | None = None,
) -> Decoded:
    """Continue prompts until each has ended.

    Args:
        llm: A causal language model in eval mode, of whose config :func:`can_decode` is true.
        embeds: Left-padded word embeddings of what follows the prefix, one row a prompt.
        attention_mask: 0 on padding.
        prefix: Word embeddings that stand before every row; may be empty.
        stop_ids: Tokens that end a row.
        max_new_tokens: Longest continuation.
        together: Whether any process that has to take part in each pass has rows that still speak,
            given whether this one has.
        lines: What each row may say; None is anything.

    Returns:
        Tokens and seconds.
    """
    model, device = cast(Any, llm), embeds.device
    started = now(device)
    rows, shared = len(embeds), len(prefix)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    if shared:
        model(inputs_embeds=prefix[None], logits_to_keep=1, **{_CACHE: cache})
        cache.batch_repeat_interleave(rows)
    mask = torch.cat([attention_mask.new_ones(rows, shared), attention_mask], 1)
    at = (mask.cumsum(-1) - 1).clamp_min(0)
    logits = model(
        inputs_embeds=embeds,
        attention_mask=mask,
        position_ids=at[:, shared:],
        logits_to_keep=1,
        **{_CACHE: cache},
    ).logits[:, -1]
    layers = cast(Any, cache.layers)
    layers[:] = [_Room(layer, max_new_tokens) for layer in layers]
    prefilled = now(device)

    room = mask.new_ones(rows, max_new_tokens)
    mask, position = torch.cat([mask, room], 1), at[:, -1] + 1
    width = shared + embeds.shape[1]
    stops = torch.tensor(stop_ids, device=device)
    written = torch.full((rows, max_new_tokens), -1, device=device)
    active, speaking = torch.arange(rows, device=device), torch.ones(rows, device=device).bool()
    for step in range(max_new_tokens):
        if lines is not None:
            allowed = [lines[row] for row in active.tolist()]
            logits = narrow(logits, written[active, :step].tolist(), allowed)
        token = logits.argmax(-1)
        written[active[speaking], step] = token[speaking]
        speaking = speaking & ~torch.isin(token, stops)
        left = int(speaking.sum())
        if not together(left > 0) or step + 1 == max_new_tokens:
            break
        if 0 < left <= KEEP * len(active):
            stay = speaking.nonzero()[:, 0]
            cache.batch_select_indices(stay)
            active, token, position = active[stay], token[stay], position[stay]
            mask, speaking = mask[stay], speaking[stay]
        logits = model(
            inputs_embeds=model.get_input_embeddings()(token)[:, None],
            attention_mask=mask[:, : width + step + 1],
            position_ids=position[:, None] + step,
            logits_to_keep=1,
            **{_CACHE: cache},
        ).logits[:, -1]
    ids = [[token for token in row if token >= 0] for row in written.tolist()]
    return Decoded(ids, prefilled - started, now(device) - prefilled)
