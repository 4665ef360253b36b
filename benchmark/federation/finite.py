"""Which visits have a loss or an upload that is not finite."""

from collections.abc import Mapping
from math import inf

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from benchmark.federation.reference import VisitResult
from datamodules.common.errors import NOT_FINITE
from methods.base import Visit


def find_nonfinite(results: Mapping[Visit, VisitResult]) -> dict[Visit, str]:
    """Visits with a loss, an uploaded tensor or a weight that is not finite, each with a message naming it.

    All visits are checked with one read from the device.
    """
    parts = {visit: _numbers(result) for visit, result in results.items()}
    flags = {visit: get_total_norm([value for _, value in own], inf).isfinite() for visit, own in parts.items() if own}
    if not flags:
        return {}
    found = {}
    for visit, sound in zip(flags, torch.stack(list(flags.values())).tolist(), strict=True):
        if not sound:
            bad = next((name for name, value in parts[visit] if not bool(value.isfinite().all())), "")
            found[visit] = (
                f"{bad} {NOT_FINITE}. The last checkpoint is intact; lower the learning rate, or try --precision "
                "32-true if this was mixed precision"
            )
    return found


def _numbers(result: VisitResult) -> list[tuple[str, Tensor]]:
    """What a visit gives that must be finite, with its name in an error message; names may be given twice."""
    numbers = [("the loss", result.sums["loss"][0])] if "loss" in result.sums else []
    if (upload := result.upload) is not None:
        uploaded = (*upload.tensors.items(), *upload.stats.items())
        numbers += [(f"the uploaded {name}", value) for name, value in uploaded]
        device = next((value.device for _, value in numbers), None)
        numbers.append(("the upload's weight", torch.tensor(upload.weight, device=device)))
    return [(name, value) for name, value in numbers if value.is_floating_point() and value.numel()]
