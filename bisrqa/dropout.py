"""Dropout with fewer random numbers, for adapters on a CPU.

PyTorch draws a number for every element, and draws them one after another; here 64 random bits
serve four elements. What is dropped differs from PyTorch's, and is as repeatable: the bits come
from the same generator.
"""

from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16
"""Probabilities are rounded to one of so many."""


class FastDropout(nn.Dropout):
    """Dropout; made of an ``nn.Dropout`` by :func:`speed_up`. Off a CPU PyTorch does it."""

    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        if not self.training or input.device.type != "cpu" or not 0 < dropped < LEVELS:
            return super().forward(input)
        return _Dropout.apply(input, dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        levels = bits.view(torch.int16)[: x.numel()].view(x.shape)
        drop = levels < dropped - LEVELS // 2
        ctx.save_for_backward(drop)
        ctx.scale = LEVELS / (LEVELS - dropped)
        return (x * ctx.scale).masked_fill_(drop, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (drop,) = ctx.saved_tensors
        return (gradients[0] * ctx.scale).masked_fill_(drop, 0), None


def speed_up(module: nn.Module) -> None:
    """Let the dropout layers below a module draw fewer numbers where they stand on a CPU."""
    for part in module.modules():
        if type(part) is nn.Dropout:
            part.__class__ = FastDropout
