"""Meta-gradients: two exact forms against each other and against finite differences, in double precision."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods import models
from methods.parts import look_ahead as meta

LR = 0.3


def problem(
    name: str,
) -> tuple[nn.Module, meta.WeightNet, Tensor, Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Network, F-reg, images of the inner and the outer objective, and these."""
    torch.manual_seed(3)
    if name == "resnet9":
        net: nn.Module = models.build("resnet9", 4)
        u, x = torch.randn(6, 3, 8, 8), torch.randn(3, 3, 8, 8)
    else:
        norm = nn.BatchNorm1d(6) if name == "batchnorm" else nn.LayerNorm(6)
        net = nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, 4))
        u, x = torch.randn(6, 5), torch.randn(3, 5)
    weights = meta.WeightNet(4, 7).double()
    labels, y = torch.tensor([0, 3, 1, 2, 2, 0]), torch.tensor([1, 0, 3])

    def inner(z: Tensor) -> Tensor:
        return (weights(z) * F.cross_entropy(z, labels, reduction="none")).mean()

    def outer(z: Tensor) -> Tensor:
        return F.cross_entropy(z, y)

    return net.double(), weights, u.double(), x.double(), inner, outer


@pytest.mark.parametrize("name", ["layernorm", "batchnorm", "resnet9"])
def test_both_forms_agree_to_machine_precision(name: str) -> None:
    """Relative difference below 1e-12, with batch norm in training mode; given logits change nothing."""
    net, weights, u, x, inner, outer = problem(name)
    wrt = list(weights.parameters())
    fast, slow = (form(net, inner, outer, u, x, wrt, LR) for form in meta.FORMS.values())
    reused = meta.meta_gradient(net, inner, outer, u, x, wrt, LR, logits=net(u))
    size = torch.cat([g.flatten() for g in slow]).norm()
    assert float(size) > 1e-8
    for other in (fast, reused):
        difference = torch.cat([(a - b).flatten() for a, b in zip(other, slow, strict=True)]).norm()
        assert float(difference / size) < 1e-12


@pytest.mark.parametrize("name", ["layernorm", "batchnorm"])
def test_finite_differences(name: str) -> None:
    """Moving one weight of F-reg, stepping for real and looking at the outer loss gives the same slope."""
    net, weights, u, x, inner, outer = problem(name)
    wrt = list(weights.parameters())
    gradients = meta.meta_gradient(net, inner, outer, u, x, wrt, LR)
    own = dict(net.named_parameters())

    def after() -> float:
        steps = torch.autograd.grad(inner(meta.stateless(net, u)), list(own.values()))
        ahead = {n: p.detach() - LR * g for (n, p), g in zip(own.items(), steps, strict=True)}
        return float(outer(meta.stateless(net, x, ahead)))

    checked = 0
    for parameter, gradient in zip(wrt, gradients, strict=True):
        place = int(gradient.abs().argmax())
        if float(gradient.flatten()[place].abs()) < 1e-6:
            continue
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.view(-1)[place] += sign * 1e-5
            ends.append(after())
            with torch.no_grad():
                parameter.view(-1)[place] -= sign * 1e-5
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float(gradient.flatten()[place]), rel=1e-5, abs=1e-10)
        checked += 1
    assert checked >= 3


def test_nothing_of_the_network_changes() -> None:
    """Parameters, gradients and running statistics are as before, in both forms."""
    net, weights, u, x, inner, outer = problem("batchnorm")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for form in meta.FORMS.values():
        form(net, inner, outer, u, x, list(weights.parameters()), LR)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in [*net.parameters(), *weights.parameters()])


def test_the_meta_gradient_is_proportional_to_the_step() -> None:
    """Half a small step, half the gradient, up to second order; no step, no gradient."""
    net, weights, u, x, inner, outer = problem("layernorm")
    wrt = list(weights.parameters())
    whole, half, none = (meta.meta_gradient(net, inner, outer, u, x, wrt, lr) for lr in (2e-6, 1e-6, 0.0))
    for a, b, c in zip(whole, half, none, strict=True):
        torch.testing.assert_close(a, 2 * b, rtol=1e-4, atol=1e-14)
        assert not bool(c.any())


def test_directional_derivative_is_that_of_finite_differences() -> None:
    """Forward mode against a central difference along a random direction."""
    net, _, u, *_ = problem("batchnorm")
    own = dict(net.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in own.items()}
    ends = [
        meta.stateless(net, u, {name: p.detach() + e * direction[name] for name, p in own.items()})
        for e in (1e-5, -1e-5)
    ]
    expected = (ends[0] - ends[1]).detach() / 2e-5
    torch.testing.assert_close(meta.directional_derivative(net, u, direction), expected, rtol=1e-6, atol=1e-8)


def test_weight_net() -> None:
    """One weight in (0, 1) per image; softmax ignores a shift of the logits, plain logits do not."""
    torch.manual_seed(0)
    z = torch.randn(5, 4)
    for softmax in (True, False):
        net = meta.WeightNet(4, 8, softmax)
        weights = net(z)
        assert weights.shape == (5,)
        assert bool(((weights > 0) & (weights < 1)).all())
        assert torch.allclose(net(z + 3.0), weights, atol=1e-6) is softmax
    before = net(z)
    net.reset_parameters()
    assert not torch.allclose(net(z), before)


def test_drawing_again_is_torchs_initialisation() -> None:
    """The numbers that the layers' own initialisation draws, from a generator of one's own."""
    net = meta.WeightNet(4, 8)
    torch.manual_seed(7)
    fresh = meta.WeightNet(4, 8)
    state = torch.get_rng_state()
    net.reset_parameters(torch.Generator().manual_seed(7))
    assert torch.equal(torch.get_rng_state(), state)
    for ours, theirs in zip(net.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_step_along_given_gradients() -> None:
    """Parameters move, their gradients are cleared, and autocast sees the new values at once."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    gradients = [torch.ones_like(p) for p in net.parameters()]
    expected = [p.detach() - 0.5 for p in net.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x)
        meta.step_along(torch.optim.SGD(net.parameters(), lr=0.5), gradients)
        inside = net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(inside, net(x))
    for parameter, value in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)
        assert parameter.grad is None


def test_a_net_in_double_precision_is_drawn_with_the_same_numbers() -> None:
    """The parameters' type does not change what is drawn."""
    single, double = meta.WeightNet(10, 8), meta.WeightNet(10, 8).double()
    for net in (single, double):
        net.reset_parameters(torch.Generator().manual_seed(3))
    for one, other in zip(single.parameters(), double.parameters(), strict=True):
        assert torch.equal(one.double(), other)
