"""Dropout with fewer random numbers."""

import pytest
import tiny
import torch
from torch import nn

from bisrqa import dropout


def fast(p: float) -> nn.Module:
    holder = nn.Sequential(nn.Dropout(p))
    dropout.speed_up(holder)
    assert type(holder[0]) is dropout.FastDropout
    return holder


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_so_many_are_dropped_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    out = fast(p)(torch.ones(1000, 1001))
    count = out.numel()
    deviation = (p * (1 - p) / count) ** 0.5
    assert abs((out == 0).sum().item() / count - p) < 4 * deviation + 1 / dropout.LEVELS
    assert abs(out.double().mean().item() - 1) < 5 * deviation / (1 - p)
    assert out[out != 0].unique().tolist() == pytest.approx([1 / (1 - p)], rel=1e-3)


def test_each_of_the_four_elements_that_share_bits_is_dropped_on_its_own() -> None:
    torch.manual_seed(0)
    gone = (fast(0.25)(torch.ones(100_000, 4)) == 0).double()
    assert (gone.mean(0) - 0.25).abs().max() < 0.006
    assert (torch.corrcoef(gone.T) - torch.eye(4)).abs().max() < 0.02


def test_a_seed_repeats_it_and_gradients_pass_where_values_do() -> None:
    layer, x = fast(0.3), torch.randn(7, 9, requires_grad=True)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(layer(x))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    (gradient,) = torch.autograd.grad(outs[0].sum(), x)
    torch.testing.assert_close(gradient * x, outs[0])


def test_nothing_is_dropped_in_evaluation_or_at_rate_zero() -> None:
    x = torch.randn(5, 5)
    assert torch.equal(fast(0.3).eval()(x), x)
    assert torch.equal(fast(0.0)(x), x)
    assert fast(1.0)(x).abs().max() == 0
    assert fast(0.5)(torch.empty(0, 3)).shape == (0, 3)


def test_adapters_have_it() -> None:
    model = tiny.model(tiny.config(generator={"lora_dropout": 0.1}))
    kinds = [type(part) for part in model.generator.modules() if isinstance(part, nn.Dropout)]
    assert set(kinds) == {dropout.FastDropout}
