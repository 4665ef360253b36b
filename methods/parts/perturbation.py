"""Weight perturbations of sharpness-aware minimisation: where the loss rises fastest within a small ball.

Both functions give the displacement eps of every parameter that has a gradient; a gradient of zero gives eps of zero.
They change nothing: add eps to the parameters, or call the network with ``{name: parameter + eps}``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from methods.parts.tensors import wide

Tensors = Mapping[str, Tensor]


def sam(parameters: Tensors, gradients: Tensors, rho: float) -> dict[str, Tensor]:
    """``rho g / (|g| + 1e-12)``, with one L2 norm over all parameters (Foret et al., ICLR 2021; (FL)2, Eq. 12).

    Args:
        parameters: tensors by name; only those with a gradient are displaced.
        gradients: gradient of the loss by the same names.
        rho: radius of the ball.
    """
    names = [name for name in parameters if name in gradients]
    slopes = [gradients[name] for name in names]
    return dict(zip(names, _along(slopes, slopes, rho, 1e-12), strict=True))


def asam(parameters: Tensors, gradients: Tensors, rho: float, eta: float = 0.01) -> dict[str, Tensor]:
    """``rho s^2 g / (|s g| + 1e-16)`` with ``s = |w| + eta`` (Kwon et al., ICML 2021; (FL)2, released code).

    Every parameter with ``weight`` in its name is scaled, that of batch norm included; for all others s = 1.

    Args:
        parameters: tensors by name; only those with a gradient are displaced.
        gradients: gradient of the loss by the same names.
        rho: radius of the ball, relative to the weights.
        eta: what a weight of zero is scaled by.
    """
    names = [name for name in parameters if name in gradients]
    scales = [
        parameters[name].detach().abs() + eta if "weight" in name else torch.ones_like(parameters[name])
        for name in names
    ]
    scaled = [scale * gradients[name] for name, scale in zip(names, scales, strict=True)]
    steps = [scale * slope for scale, slope in zip(scales, scaled, strict=True)]
    return dict(zip(names, _along(steps, scaled, rho, 1e-16), strict=True))


def _along(steps: list[Tensor], slopes: list[Tensor], rho: float, guard: float) -> list[Tensor]:
    if not slopes:
        return []
    norms = torch.stack([torch.linalg.vector_norm(wide(slope)) for slope in slopes])
    factor = rho / (torch.linalg.vector_norm(norms) + guard)
    return [(wide(step) * factor).to(step.dtype) for step in steps]
