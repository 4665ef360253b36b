"""FedDure's look-ahead against a double backward pass and finite differences, in double precision; F-reg's network."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods import models
from methods.feddure import WeightNet, directional_derivative, look_ahead, stateless

LR = 0.3
Objective = Callable[[Tensor], Tensor]


def meta_gradient(
    net: nn.Module, inner: Objective, outer: Objective, u: Tensor, x: Tensor, wrt: Sequence[Tensor], lr: float
) -> tuple[Tensor, ...]:
    """The gradient of the look-ahead."""
    return torch.autograd.grad(look_ahead(net, inner, u, net(u), outer, x, lr), list(wrt))


def by_double_backward(
    net: nn.Module, inner: Objective, outer: Objective, u: Tensor, x: Tensor, wrt: Sequence[Tensor], lr: float
) -> tuple[Tensor, ...]:
    """The same, by differentiating through the step itself."""
    own = {name: p for name, p in net.named_parameters() if p.requires_grad}
    steps = torch.autograd.grad(inner(stateless(net, u)), list(own.values()), create_graph=True, materialize_grads=True)
    ahead = {n: own[n] - lr * g for n, g in zip(own, steps, strict=True)}
    return torch.autograd.grad(outer(stateless(net, x, ahead)), list(wrt))


def problem(name: str) -> tuple[nn.Module, WeightNet, Tensor, Tensor, Objective, Objective]:
    """Network, F-reg, images of the inner and the outer objective, and these."""
    torch.manual_seed(3)
    if name == "resnet9":
        net: nn.Module = models.build("resnet9", 4)
        u, x = torch.randn(6, 3, 8, 8), torch.randn(3, 3, 8, 8)
    else:
        norm = nn.BatchNorm1d(6) if name == "batchnorm" else nn.LayerNorm(6)
        net = nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, 4))
        u, x = torch.randn(6, 5), torch.randn(3, 5)
    weights = WeightNet(4, 7).double()
    labels, y = torch.tensor([0, 3, 1, 2, 2, 0]), torch.tensor([1, 0, 3])

    def inner(z: Tensor) -> Tensor:
        return (weights(z) * F.cross_entropy(z, labels, reduction="none")).mean()

    def outer(z: Tensor) -> Tensor:
        return F.cross_entropy(z, y)

    return net.double(), weights, u.double(), x.double(), inner, outer


@pytest.mark.parametrize("name", ["layernorm", "batchnorm", "resnet9"])
def test_the_gradient_is_that_of_a_double_backward_pass(name: str) -> None:
    """Relative difference below 1e-12, with batch norm in training mode."""
    net, weights, u, x, inner, outer = problem(name)
    wrt = list(weights.parameters())
    fast, slow = (form(net, inner, outer, u, x, wrt, LR) for form in (meta_gradient, by_double_backward))
    size = torch.cat([g.flatten() for g in slow]).norm()
    assert float(size) > 1e-8
    difference = torch.cat([(a - b).flatten() for a, b in zip(fast, slow, strict=True)]).norm()
    assert float(difference / size) < 1e-12


def test_directional_derivative_is_that_of_finite_differences() -> None:
    """Forward mode against a central difference along a random direction."""
    net, _, u, *_ = problem("batchnorm")
    own = dict(net.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in own.items()}
    ends = [
        stateless(net, u, {name: p.detach() + e * direction[name] for name, p in own.items()}) for e in (1e-5, -1e-5)
    ]
    expected = (ends[0] - ends[1]).detach() / 2e-5
    torch.testing.assert_close(directional_derivative(net, u, direction), expected, rtol=1e-6, atol=1e-8)
