"""The mean of uploads whose tensors stay in the processes where they were made: each adds up its own clients'."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import cast

import torch
from lightning import Fabric
from torch import Tensor

from benchmark.federation.collectives import all_gather
from datamodules.common.errors import RunError
from methods.base import Upload, Visit
from methods.parts.aggregation import Summand, checked_weights

Key = tuple[int, int]
"""Client and repeat of a visit."""


class JointMean:
    """The mean of a round's uploads.

    A process adds up its own uploads in float64, in the order of the clients; the sums are joined in the order of the
    ranks. So a number of processes always gives the same bits, and another one differs by the rounding of float64.

    Args:
        fabric: launched.
        at_once: each upload is added up when it and those before it have come, by its weight alone, and its tensors are
            given up. Otherwise a process keeps those of its own clients until all weights are known.
    """

    def __init__(self, fabric: Fabric, at_once: bool) -> None:
        self.fabric, self.at_once = fabric, at_once
        self.begin({}, [])

    def begin(self, like: Mapping[str, Tensor], visits: Sequence[Visit]) -> None:
        """Another round begins, whose uploads have these names, shapes and types; the visits are this process's."""
        self.like = like
        self.order = sorted((visit.client, visit.repeat) for visit in visits)
        self.own: dict[Key, Mapping[str, Tensor]] = {}
        self.total: dict[str, Tensor] = {}
        self.weights: dict[Key, float] = {}
        self.found: dict[str, Tensor] = {}
        self.by: dict[Key, float] = {}  # the weights of ``found``

    def take(self, upload: Upload, weight: float) -> Upload:
        """Take over the tensors of an upload of this process; what is left of it goes to all processes.

        Args:
            upload: finite.
            weight: its own, where uploads are added up at once.
        """
        key = upload.visit.client, upload.visit.repeat
        self.own[key] = upload.tensors
        if self.at_once:
            self.weights[key] = weight
            self._add_in_order()
        return without_tensors(upload)

    def leave_out(self, visit: Visit) -> None:
        """A visit of this process has ended without an upload that counts."""
        self.order.remove((visit.client, visit.repeat))
        if self.at_once:
            self._add_in_order()

    def for_server(self, upload: Upload) -> Upload:
        """The upload as the server meets it: of its tensors there is only the mean with others'."""
        return replace(upload, tensors=cast(dict[str, Tensor], Summand(self, upload.visit)))

    def mean(self, parts: Sequence[Summand], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
        """Weighted mean, in the types that ``weighted_mean`` gives. All processes ask for it together.

        Raises:
            RunError: weights that cannot be normalised; where uploads were added up at once, other weights than those,
                or the mean of some of the uploads.
        """
        checked = checked_weights(parts, weights)
        given = {(part.visit.client, part.visit.repeat): w for part, w in zip(parts, checked.tolist(), strict=True)}
        if len(given) < len(parts):
            raise RunError("aggregation: an upload is averaged twice (--sums by_rank); give each upload one weight")
        if self.at_once and self.found:
            _require_all(given, self.by)
            return {name: value.clone() for name, value in self.found.items()}
        if not self.at_once:
            self.total = {}
            for key in self.order:
                self._add(self.own.get(key, {}), given.get(key, 0.0))
        everyone = all_gather(self.fabric, (self.total, self.weights))
        if self.at_once:
            _require_all(given, {key: weight for _, theirs in everyone for key, weight in theirs.items()})
        joined: dict[str, Tensor] = {}
        for total, _ in everyone:
            joined = {
                name: joined[name] + value if name in joined else value for name, value in total.items()
            } or joined
        mean, by = {}, fsum(given.values())
        for name, like in self.like.items():
            dtype = like.dtype if like.is_floating_point() else torch.float32
            mean[name] = (joined[name] / by).to(dtype)
        self.total = {}
        if self.at_once:
            self.found, self.by = {name: value.clone() for name, value in mean.items()}, given
        return mean

    def _add_in_order(self) -> None:
        while self.order and self.order[0] in self.own:
            key = self.order.pop(0)
            self._add(self.own.pop(key), self.weights[key])

    def _add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        for name, value in tensors.items() if weight else ():
            wide = value.detach().to(torch.float64)
            if name in self.total:
                self.total[name].add_(wide, alpha=weight)
            else:
                self.total[name] = wide * weight


def _require_all(given: Mapping[Key, float], taken: Mapping[Key, float]) -> None:
    """Refuse a mean by other weights than those by which the uploads were added up."""
    if given != taken:
        raise RunError(
            "the mean of a part of the round's uploads, or by weights that depend on the other uploads, was asked "
            "for after the uploads had been added up (--sums by_rank). Let uploads_needed of the method say 'mean' "
            "where weights depend on others, 'each' where parts are averaged"
        )


def without_tensors(upload: Upload) -> Upload:
    """An upload without its tensors, whose bytes are still counted."""
    return replace(upload, tensors={}, bytes=upload.num_bytes)
