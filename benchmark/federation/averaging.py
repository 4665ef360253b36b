"""The averaged model: the mean of the global weights of a run's last rounds (Izmailov et al., UAI 2018, in rounds)."""

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def add_round(sums: Tensors, server: Tensors) -> dict[str, Tensor]:
    """New sums in float64: the old ones plus what the server holds after another round; ``sums`` stay as they are.

    Floating tensors alone are summed, norm statistics among them.

    Args:
        sums: of the rounds before, by name; none before the first.
        server: the server's tensors, by name.
    """
    wide = {name: value.to(torch.float64) for name, value in server.items() if value.is_floating_point()}
    return {name: sums[name] + value if name in sums else value for name, value in wide.items()}


def mean(sums: Tensors, rounds: int, last: Tensors) -> dict[str, Tensor]:
    """The averaged model: means in the types of the tensors; what is no floating number is that of the last round.

    Args:
        sums: of the floating tensors, by name.
        rounds: how many rounds were summed.
        last: the server's tensors after the last of them.
    """
    return {name: (sums[name] / rounds).to(value.dtype) if name in sums else value for name, value in last.items()}
