"""Weights that are sums ``sigma + psi`` of two parts, and messages that hold only the entries that have changed."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


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


def sparse(values: Tensor, cut: float) -> Tensor:
    """Zero the values with magnitude up to ``cut``; gradients pass through the others only."""
    return torch.where(values.abs() <= cut, 0.0, values)


def differs(new: Tensor, old: Tensor, delta: float) -> Tensor:
    """Mark entries that are more than ``delta`` apart, or not a number, as bool in their shape."""
    return ~((new - old).abs() <= delta)


def sparse_bytes(sent: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> int:
    """Bytes of sparse updates: the sent values plus one bit per entry as a mask, or all values if that is smaller.

    A tensor of which nothing is sent costs nothing.

    Args:
        sent: by name, a bool mask of the entries that are sent.
        values: the tensors, by the same names or more.
    """
    if not sent:
        return 0
    counts = torch.stack([mask.count_nonzero() for mask in sent.values()]).tolist()
    total = 0
    for count, (name, mask) in zip(counts, sent.items(), strict=True):
        size = values[name].element_size()
        total += min(count * size + -(-mask.numel() // 8), mask.numel() * size) if count else 0
    return total


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Flatten tensors to one vector, tensor by tensor in row-major order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert ``flat``: views of the vector with the names and shapes of ``like``."""
    parts = torch.split(vector, [tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}
