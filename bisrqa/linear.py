"""Frozen linear layers on a CPU, by oneDNN.

PyTorch multiplies float32 matrices with MKL, which on processors that are not Intel's runs at half
of what they can do; oneDNN, which is in the same wheel, does not (benchmarks/train_step.py times
both). The numbers differ in the last bits, as between any two libraries.
"""

from typing import Any

import torch
from torch import Tensor, nn


def available() -> bool:
    """Whether this PyTorch has oneDNN's product of a dense input and a dense weight."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class FrozenLinear(nn.Linear):
    """A linear layer whose weights are not trained; made of an ``nn.Linear`` by :func:`speed_up`.

    Anything but float32 on a CPU goes PyTorch's own way.
    """

    def forward(self, input: Tensor) -> Tensor:
        x = input
        plain = x.device.type != "cpu" or x.dtype != torch.float32 or x.numel() == 0
        if plain or self.weight.dtype != torch.float32 or self.weight.requires_grad:
            return super().forward(x)
        return _Product.apply(x, self.weight, self.bias)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _product(gradients[0].contiguous(), weight.t(), None), None, None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def speed_up(module: nn.Module) -> None:
    """Let the frozen linear layers below a module use oneDNN where they stand on a CPU.

    Only plain ``nn.Linear`` layers change their class; names, weights and checkpoints do not.
    """
    if not available():
        return
    for part in module.modules():
        if type(part) is nn.Linear and not part.weight.requires_grad:
            part.__class__ = FrozenLinear
