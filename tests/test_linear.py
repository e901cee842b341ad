"""Frozen linear layers by oneDNN: the numbers and the gradients of PyTorch's own."""

import pytest
import tiny
import torch
from torch import nn

from bisrqa import linear

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"
)


def pair(inputs: int = 24, outputs: int = 40, *, bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    fast = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    fast.load_state_dict(plain.state_dict())
    holder = nn.Sequential(fast)
    linear.speed_up(holder)
    assert type(fast) is linear.FrozenLinear
    return plain, fast


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (3, 24), (2, 5, 24), (700, 24), (0, 24)])
def test_values_and_gradients_are_those_of_a_plain_layer(shape: tuple[int, ...], bias: bool):
    plain, fast = pair(bias=bias)
    x = torch.randn(shape)
    found = []
    for layer in (plain, fast):
        x_in = x.clone().requires_grad_()
        out = layer(x_in)
        (out * torch.arange(out.numel()).reshape(out.shape).sin()).sum().backward()
        found.append((out.detach(), x_in.grad))
    torch.testing.assert_close(found[1], found[0])
    assert found[1][0].shape == (*shape[:-1], 40)


def test_views_that_are_not_contiguous_go_in_and_their_gradients_come_out() -> None:
    plain, fast = pair()
    x = torch.randn(24, 6, 2).transpose(0, 2)
    weights = torch.randn(40, 6, 2).transpose(0, 2)
    found = []
    for layer in (plain, fast):
        x_in = x.clone(memory_format=torch.preserve_format).requires_grad_()
        out = layer(x_in)
        out.backward(weights)
        found.append((out.detach(), x_in.grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_go_the_plain_way(dtype: torch.dtype) -> None:
    plain, fast = (layer.to(dtype) for layer in pair())
    x = torch.randn(3, 24, dtype=dtype)
    assert torch.equal(plain(x), fast(x))


def test_what_is_trained_is_left_alone_also_when_it_thaws_later() -> None:
    trained = nn.Sequential(nn.Linear(3, 3))
    linear.speed_up(trained)
    assert type(trained[0]) is nn.Linear
    _, fast = pair()
    fast.weight.requires_grad_(True)
    fast(torch.randn(2, 24)).sum().backward()
    assert fast.weight.grad is not None


def test_a_language_model_keeps_its_names_and_logits() -> None:
    llm = tiny.llm().requires_grad_(False)
    ids = torch.arange(20)[None]
    names, before = list(llm.state_dict()), llm(ids).logits
    linear.speed_up(llm)
    assert sum(type(part) is linear.FrozenLinear for part in llm.modules()) == 15
    assert list(llm.state_dict()) == names
    torch.testing.assert_close(llm(ids).logits, before, rtol=1e-4, atol=1e-4)


def test_where_there_is_onednn_there_is_the_operator() -> None:
    """It is PyTorch's own and has no public name: a release without it should be seen."""
    assert linear.available()
