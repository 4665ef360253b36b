"""Small operations on tensors that hold for every precision and wait for no device."""

import torch
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """The values in float32 where mixed precision made them half as wide; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Labels ``[...]`` as bool ``[..., C]``; unlike ``torch.nn.functional.one_hot`` it never waits for the device."""
    return labels[..., None] == torch.arange(num_classes, device=labels.device)


@torch.no_grad()
def set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Let the next optimiser step follow ``gradient``, in the memory format of the parameter as fused steps need it."""
    same = gradient.stride() == parameter.stride()
    parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)
