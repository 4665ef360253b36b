"""A learning rate that falls where a loss no longer does."""

import torch
from torch import Tensor, nn


class Plateau(nn.Module):
    """Divides the rate whenever ``patience`` losses in a row were no lower than the lowest before them.

    Its state is three buffers, so that it resumes with the method that holds it.

    Args:
        patience: losses without improvement before the rate falls; the count then begins anew.
        divide_by: what the rate is divided by.
    """

    lowest: Tensor
    waited: Tensor
    falls: Tensor

    def __init__(self, patience: int, divide_by: float) -> None:
        super().__init__()
        self.patience, self.divide_by = patience, divide_by
        self.register_buffer("lowest", torch.tensor(torch.finfo(torch.float32).max))
        self.register_buffer("waited", torch.zeros((), dtype=torch.int64))
        self.register_buffer("falls", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def note(self, loss: Tensor) -> None:
        """Look at the next loss, a scalar; one that is not a number is no improvement."""
        better = loss < self.lowest
        self.lowest.copy_(torch.where(better, loss, self.lowest))
        self.waited.copy_(torch.where(better, 0, self.waited + 1))
        falls = self.waited >= self.patience
        self.falls.add_(falls)
        self.waited.mul_(~falls)

    def factor(self) -> float:
        """What the rate is multiplied by now; reads the state from the device."""
        return float(self.divide_by ** -int(self.falls))
