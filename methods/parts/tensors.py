"""Small tensor operations that work in every precision and never synchronise with the device."""

import torch
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """Cast half-precision values to float32; leave float32 and float64 unchanged."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Labels ``[...]`` as bool ``[..., C]``; unlike ``torch.nn.functional.one_hot``, without a device sync."""
    return labels[..., None] == torch.arange(num_classes, device=labels.device)


@torch.no_grad()
def set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Set the parameter's gradient, in the parameter's memory format as fused optimisers require."""
    same = gradient.stride() == parameter.stride()
    parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)
