"""Weights that are sums of two parts, each trained on its own: ``theta = sigma + psi`` (FedMatch, ICLR 2021).

``decompose`` turns the weights of any network into such sums, by PyTorch's parametrisations: the layers stay what they
are and use the sum wherever they used the weight. sigma keeps the weight's place, psi lies beside it; both are ordinary
parameters, so that optimisers, checkpoints and averages see two tensors where there was one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Layers = Literal["weights", "convolutions", "none"]
"""Whose weights are decomposed: those of convolutions and linear layers, of convolutions alone, or of none."""

KINDS: Mapping[str, tuple[type[nn.Module], ...]] = {
    "weights": (nn.modules.conv._ConvNd, nn.Linear),
    "convolutions": (nn.modules.conv._ConvNd,),
    "none": (),
}


class Additive(nn.Module):
    """``sigma + psi``; in evaluation mode entries of psi of at most ``cut`` in size count as 0.

    Args:
        psi: the second part, in the shape of the first.
        cut: see above; training uses psi as it is.
    """

    def __init__(self, psi: Tensor, cut: float) -> None:
        super().__init__()
        self.psi, self.cut = nn.Parameter(psi), cut

    def forward(self, sigma: Tensor) -> Tensor:
        """The weight that the layer uses."""
        return sigma + (self.psi if self.training else sparse(self.psi, self.cut))


def decompose(
    model: nn.Module,
    layers: Layers = "weights",
    init: Literal["scaled", "independent"] = "scaled",
    scale: float = 0.2,
    cut: float = 0.0,
) -> None:
    """Replace weights of the network by ``sigma + psi``, in place; sigma is what the weight was.

    Biases and what normalisation layers learn stay single tensors.

    Args:
        model: the network.
        layers: whose weights.
        init: psi is ``scale`` times sigma (FedMatch), or drawn ``independent``-ly, normal with variance 2 / fan_out.
        scale: see ``init``.
        cut: see ``Additive``.
    """
    for layer in [module for module in model.modules() if isinstance(module, KINDS[layers])]:
        weight = layer.get_parameter("weight").detach()
        psi = scale * weight
        if init == "independent":
            nn.init.kaiming_normal_(psi, mode="fan_out", nonlinearity="relu")
        parametrize.register_parametrization(layer, "weight", Additive(psi, cut))


def pairs(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """sigma and psi of every decomposed weight, in the order of the modules."""
    found = [module for module in model.modules() if isinstance(module, parametrize.ParametrizationList)]
    return [(one.get_parameter("original"), one[0].get_parameter("psi")) for one in found]


def psi_names(model: nn.Module) -> list[str]:
    """Names of the parts psi among the network's parameters, in the order of ``pairs``."""
    ours = {id(psi): None for _, psi in pairs(model)}
    named = {id(p): name for name, p in model.named_parameters()}
    return [named[key] for key in ours]


def sparse(values: Tensor, cut: float) -> Tensor:
    """The values, 0 where they are at most ``cut`` in size; gradients pass where the values do."""
    return torch.where(values.abs() <= cut, 0.0, values)


def update(new: Tensor, old: Tensor, delta: float, cut: float = 0.0) -> tuple[Tensor, Tensor]:
    """What is left of a change if only differences above ``delta`` are sent.

    Args:
        new: the sender's values.
        old: what the receiver holds; same shape.
        delta: see above.
        cut: entries of ``new`` of at most this size are compared as 0; those that are sent are sent as they are.

    Returns:
        ``new`` where it differs from ``old`` by more than ``delta`` or is no number, else ``old``; and where that is,
        bool.
    """
    sent = ~((sparse(new, cut) - old).abs() <= delta)
    return torch.where(sent, new, old), sent


def sparse_bytes(sent: Sequence[Tensor], sizes: Sequence[int]) -> int:
    """Bytes of sparse updates: the values that are sent and one bit per entry that says which, or all values if that
    is less; nothing for a tensor without any.

    Args:
        sent: for each tensor, which of its entries are sent, bool.
        sizes: bytes of one entry of each tensor.
    """
    if not sent:
        return 0
    counts = torch.stack([mask.count_nonzero() for mask in sent]).tolist()
    parts = [
        min(count * size + -(-mask.numel() // 8), mask.numel() * size) if count else 0
        for count, mask, size in zip(counts, sent, sizes, strict=True)
    ]
    return sum(parts)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All entries in one vector, tensor by tensor in row-major order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``flat``: tensors with the names and shapes of ``like``, views of the vector."""
    parts = torch.split(vector, [tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}
