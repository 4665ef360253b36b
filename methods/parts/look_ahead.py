"""Differentiable look-ahead: how a model after one gradient step depends on what weighted that step.

With ``ahead(w) = phi - lr * grad_phi inner(net(u; phi), w)``, the meta-gradient is ``d/dw outer(net(x; ahead(w)))``.
Both forms below are exact for networks without random layers; with dropout, the two passes of the first one draw
different masks. Neither changes a parameter or a buffer of the network.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, grad
from torch.func import functional_call
from torch.optim import Optimizer

from datamodules.common.errors import RunError
from methods.parts.tensors import set_gradient

make_dual: Callable[..., Tensor] = forward_ad.make_dual
unpack_dual: Callable[..., Any] = forward_ad.unpack_dual

Objective = Callable[[Tensor], Tensor]
"""Maps logits ``[B, C]`` to a scalar; an inner one also depends on the tensors whose meta-gradient is wanted."""


def stateless(net: nn.Module, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
    """``net(x)`` with other parameters (by name; default: its own) and copies of its buffers."""
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    out: Tensor = functional_call(net, {**(parameters or {}), **buffers}, (x,))
    return out


def directional_derivative(net: nn.Module, x: Tensor, direction: Mapping[str, Tensor]) -> Tensor:
    """``d/de net(x; phi + e * direction)`` at 0, ``[B, C]``, in one forward pass with dual numbers."""
    own = dict(net.named_parameters())
    with torch.no_grad(), forward_ad.dual_level():
        dual = {n: make_dual(own[n].detach(), tangent) for n, tangent in direction.items()}
        change: Tensor | None = unpack_dual(stateless(net, x, dual)).tangent
    if change is None:
        raise RunError("look-ahead: the output of the network does not depend on its parameters")
    return change


def meta_gradient(
    net: nn.Module,
    inner: Objective,
    outer: Objective,
    unlabelled: Tensor,
    labelled: Tensor,
    wrt: Sequence[Tensor],
    lr: float,
    logits: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The meta-gradient without differentiating through a backward pass of the network.

    With ``v = grad outer`` at the looked-ahead parameters it is ``-lr * d/dw <d inner / d logits, dz>``, where ``dz``
    is the directional derivative of the logits along ``v``: ``inner`` sees the parameters through the logits only.

    Args:
        net: the network phi.
        inner: objective of the step, a function of the logits of ``unlabelled``.
        outer: objective after the step, a function of the logits of ``labelled``.
        unlabelled: images of the inner objective.
        labelled: images of the outer objective.
        wrt: tensors w that ``inner`` depends on.
        lr: size of the step.
        logits: ``net(unlabelled)`` with its graph, if the caller has it; the graph is kept.

    Returns:
        one gradient per tensor of ``wrt``.
    """
    own = {name: p for name, p in net.named_parameters() if p.requires_grad}
    logits = stateless(net, unlabelled) if logits is None else logits
    steps = grad(inner(logits), list(own.values()), retain_graph=True, materialize_grads=True)
    ahead = {n: (own[n].detach() - lr * g).requires_grad_() for n, g in zip(own, steps, strict=True)}
    slopes = grad(outer(stateless(net, labelled, ahead)), list(ahead.values()), materialize_grads=True)
    change = directional_derivative(net, unlabelled, dict(zip(own, slopes, strict=True)))
    z = logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).requires_grad_()
    (slope,) = grad(inner(z), z, create_graph=True)
    return grad(-lr * (slope * change).sum(), list(wrt))


def meta_gradient_by_double_backward(
    net: nn.Module,
    inner: Objective,
    outer: Objective,
    unlabelled: Tensor,
    labelled: Tensor,
    wrt: Sequence[Tensor],
    lr: float,
    logits: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The same, by differentiating through the step itself; for networks without forward-mode derivatives."""
    own = {name: p for name, p in net.named_parameters() if p.requires_grad}
    logits = stateless(net, unlabelled) if logits is None else logits
    steps = grad(inner(logits), list(own.values()), create_graph=True, materialize_grads=True)
    ahead = {n: own[n] - lr * g for n, g in zip(own, steps, strict=True)}
    return grad(outer(stateless(net, labelled, ahead)), list(wrt))


FORMS = {"jvp": meta_gradient, "double_backward": meta_gradient_by_double_backward}


class WeightNet(nn.Sequential):
    """Logits ``[N, num_classes]``, or their softmax, to one weight in (0, 1) per image, ``[N]``.

    Computes in its parameters' own precision: neighbouring weights differ by less than bfloat16 can tell apart.
    """

    def __init__(self, num_classes: int, hidden: int, softmax: bool = True) -> None:
        super().__init__(nn.Linear(num_classes, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())
        self.softmax = softmax

    def forward(self, logits: Tensor) -> Tensor:
        """See the class."""
        with torch.autocast(logits.device.type, enabled=False):
            x = logits.to(next(self.parameters()).dtype)
            x = x.softmax(dim=1) if self.softmax else x
            for layer in self:
                x = layer(x)
            return x.squeeze(1)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw torch's default initialisation of linear layers again, layer by layer, weights before biases.

        The draws are in float32 whatever the parameters are: a run in double precision begins with the same numbers.
        """
        for layer in self:
            if isinstance(layer, nn.Linear):
                bound = 1 / sqrt(layer.in_features)
                weight, bias = (torch.empty_like(part, dtype=torch.float32) for part in (layer.weight, layer.bias))
                layer.weight.copy_(nn.init.kaiming_uniform_(weight, a=sqrt(5), generator=generator))
                layer.bias.copy_(nn.init.uniform_(bias, -bound, bound, generator=generator))


def learning(net: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [p for p in net.parameters() if p.requires_grad]


def step_along(optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
    """One step of the optimiser with these gradients, one per parameter.

    Autocast then forgets the half-precision copies that it keeps of parameters: this step has made them out of date.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        set_gradient(parameter, gradient)
    optimizer.step()
    optimizer.zero_grad()
    torch.clear_autocast_cache()
