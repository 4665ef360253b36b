"""Weights that are sums ``sigma + psi`` of two parts, trained by different losses."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from methods.parts.sparse import sparse


class Additive(nn.Module):
    """``sigma + psi``; in evaluation mode, entries of psi with magnitude up to ``cut`` count as 0.

    Args:
        psi: the second part, in the shape of the first.
        cut: see above; training uses psi as it is.
    """

    def __init__(self, psi: Tensor, cut: float) -> None:
        super().__init__()
        self.psi, self.cut = nn.Parameter(psi), cut

    def forward(self, sigma: Tensor) -> Tensor:
        """Return the weight that the layer uses."""
        return sigma + (self.psi if self.training else sparse(self.psi, self.cut))


def decompose(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], first_psi: Callable[[Tensor], Tensor], cut: float
) -> None:
    """Make the weights of these kinds of layers sums, in place: sigma is the weight, psi is ``first_psi`` of it.

    Frozen weights stay as they are.
    """
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    for layer in [one for one in layers if one.get_parameter("weight").requires_grad]:
        psi = first_psi(layer.get_parameter("weight").detach())
        parametrize.register_parametrization(layer, "weight", Additive(psi, cut))


def pairs(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return sigma and psi of every decomposed weight, in module order."""
    found = [module for module in model.modules() if isinstance(module, parametrize.ParametrizationList)]
    return [(one.get_parameter("original"), one[0].get_parameter("psi")) for one in found]


def psi_names(model: nn.Module) -> list[str]:
    """Names of the parts psi among the network's parameters, in the order of ``pairs``."""
    named = {id(p): name for name, p in model.named_parameters()}
    return [named[id(psi)] for _, psi in pairs(model)]


def psi_penalties(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """``sum |psi|`` and ``sum (sigma - psi)^2`` over all entries of all pairs (sigma, psi)."""
    size = torch.stack([psi.abs().sum() for _, psi in pairs]).sum()
    return size, torch.stack([(sigma.detach() - psi).square().sum() for sigma, psi in pairs]).sum()
