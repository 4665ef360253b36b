"""The averaged model: the mean of the global weights of a run's last rounds (Izmailov et al., UAI 2018, in rounds)."""

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def add_round(sums: Tensors, server: Tensors) -> dict[str, Tensor]:
    """Sums in float64 of the server's tensors over one more round; ``sums`` is left alone.

    Only floating-point tensors are summed, norm statistics included.

    Args:
        sums: over the rounds before, by name; empty before the first.
        server: the server's tensors, by name.
    """
    wide = {name: value.to(torch.float64) for name, value in server.items() if value.is_floating_point()}
    return {name: sums[name] + value if name in sums else value for name, value in wide.items()}


def mean(sums: Tensors, rounds: int, last: Tensors) -> dict[str, Tensor]:
    """The averaged model: means in the tensors' own types; integer tensors are those of the last round.

    Args:
        sums: over the rounds, of the floating-point tensors, by name.
        rounds: number of rounds summed.
        last: the server's tensors after the last round.
    """
    return {name: (sums[name] / rounds).to(value.dtype) if name in sums else value for name, value in last.items()}
