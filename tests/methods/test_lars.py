"""LARS against its closed form, and as an ordinary optimiser."""

from math import sqrt

import pytest
import torch
from torch import nn

from methods.ablations.fedcon import LARS


def weight(*values: float) -> nn.Parameter:
    """A matrix of one row, in double precision."""
    return nn.Parameter(torch.tensor([values], dtype=torch.float64))


def test_one_step_by_hand() -> None:
    """w = (3, 4), g = (4, -5), decay 1: the decayed gradient (7, -1) has norm sqrt(50), the ratio is 0.5 / sqrt(50)."""
    w = weight(3.0, 4.0)
    w.grad = torch.tensor([[4.0, -5.0]], dtype=torch.float64)
    LARS([w], lr=2.0, weight_decay=1.0, trust=0.1).step()
    ratio = 0.1 * 5.0 / sqrt(50.0)
    assert w.tolist()[0] == pytest.approx([3.0 - 2.0 * ratio * 7.0, 4.0 + 2.0 * ratio], rel=1e-15)


def test_biases_and_normalisation_are_exempt() -> None:
    """They follow plain gradient descent, without decay; without momentum nothing is kept."""
    layer = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer(x).square().mean().backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in layer.named_parameters()}
    optimizer = LARS(layer.parameters(), lr=0.1, weight_decay=0.5)
    optimizer.step()
    for name, p in layer.named_parameters():
        w, g = before[name]
        decayed = g + 0.5 * w
        expected = 1e-3 * w.norm() / decayed.norm() * decayed if name == "0.weight" else g
        torch.testing.assert_close(p.detach(), w - 0.1 * expected)
    assert not optimizer.state


def test_nothing_to_scale_by() -> None:
    """A weight of zero moves along its gradient; a gradient of zero leaves the decay alone to be scaled."""
    w = weight(0.0, 0.0)
    w.grad = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    LARS([w], lr=0.1).step()
    assert w.tolist()[0] == pytest.approx([-0.1, -0.2])
    w = weight(1.0, 2.0)
    w.grad = torch.zeros(1, 2, dtype=torch.float64)
    LARS([w], lr=0.1).step()
    assert w.tolist()[0] == [1.0, 2.0]
    LARS([w], lr=0.1, weight_decay=0.5, trust=0.5).step()
    assert w.tolist()[0] == pytest.approx([0.95, 1.9])
    w.grad = None
    LARS([w], lr=0.1).step()
    assert w.tolist()[0] == pytest.approx([0.95, 1.9])


@pytest.mark.parametrize("decay", [0.0, 0.3, 5.0])
def test_a_step_is_trust_times_the_weight_long(decay: float) -> None:
    """Whatever the size of the gradient and the decay: the ratio divides by the norm of what it scales."""
    for factor in (1e-4, 1.0, 1e4):
        w = weight(3.0, 4.0)
        w.grad = factor * torch.tensor([[5.0, -12.0]], dtype=torch.float64)
        before = w.detach().clone()
        LARS([w], lr=0.5, weight_decay=decay, trust=1e-3).step()
        assert float((w.detach() - before).norm()) == pytest.approx(0.5 * 1e-3 * 5.0, rel=1e-12)


def test_momentum_is_a_sum_of_scaled_steps() -> None:
    """v <- 0.9 v + lr u: the second step with the same weight norm and gradient is 1.9 times as long."""
    w = weight(3.0, 4.0)
    optimizer = LARS([w], lr=0.5, momentum=0.9, trust=1e-3)
    moved = []
    for _ in range(2):
        with torch.no_grad():
            w.copy_(torch.tensor([[3.0, 4.0]]))
        w.grad = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
        optimizer.step()
        moved.append(torch.tensor([[3.0, 4.0]]) - w.detach())
    torch.testing.assert_close(moved[1], 1.9 * moved[0])
    assert list(optimizer.state[w]) == ["momentum_buffer"]
