"""Sums without rounding, so that neither their order nor the number of processes changes a bit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import frexp, fsum, isfinite
from typing import cast

import torch
import torch.distributed as dist
from lightning import Fabric
from torch import Tensor

from benchmark.federation.collectives import all_gather
from datamodules.common.errors import RunError
from methods.base import Upload
from methods.parts.aggregation import Summand, checked_weights

BITS = 32  # of a digit
LOWEST = -31  # place of the last digit: what is below 2^-992 is cut off
JOINED = 1 << 18  # entries of small tensors that are added up as one vector


class ExactSum:
    """The sum of float64 vectors of one length, exact up to the read-out.

    *Every double is a sum of digits*, ``x = sum_k d_k 2^(32 k)`` with whole ``|d_k| < 2^32``. They are found from the
    highest place down: ``d_k`` is the rest over ``2^(32 k)``, cut to a whole number. Both that division by a power of
    two and taking ``d_k 2^(32 k)`` off the rest are exact: cutting leading bits off a double leaves a double.

    *Digits have no order.* Those of one place are added up as int64, which neither rounds nor overflows for up to 2^31
    vectors. So the sums of digits depend on the vectors alone, not on their order or on who added which.

    *Reading the sum out rounds, but alike.* Carries bring all digits into ``[-2^31, 2^31)``. Then all places below the
    highest digit that is not 0 make up at most about half of its unit, so however much has cancelled, adding them up
    from the lowest place loses at most ``2^-51`` of the sum.

    Bits below ``2^-992`` are cut off, vector by vector, which has no order either.

    Args:
        length: of the vectors.
        device: where they are.
    """

    def __init__(self, length: int, device: torch.device) -> None:
        self.length, self.device = length, device
        self.places: dict[int, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes that it holds: 8 for each entry and place, of which there are three or four for usual weights."""
        return 8 * self.length * len(self.places)

    def place(self, number: int) -> Tensor:
        """The sums of the digits of a place, int64 ``[length]``."""
        if number not in self.places:
            self.places[number] = torch.zeros(self.length, dtype=torch.int64, device=self.device)
        return self.places[number]

    def add(self, values: Tensor) -> None:
        """Add a vector, float64 ``[length]``.

        Raises:
            RunError: a number is not finite.
        """
        if not self.length:
            return
        largest = float(values.abs().max())
        if not isfinite(largest):
            raise RunError("a number times its weight is not finite in float64; give smaller weights")
        number, rest = (frexp(largest)[1] - 1) // BITS, values.clone()
        while number >= LOWEST and bool(rest.any()):
            unit = 2.0 ** (BITS * number)
            digits = (rest / unit).trunc_()
            self.place(number).add_(digits.long())
            rest.sub_(digits.mul_(unit))
            number -= 1

    def join(self, fabric: Fabric, numbers: Sequence[int]) -> None:
        """Add up the sums of all processes, in every process.

        Args:
            fabric: launched.
            numbers: the places that any of them has, in the same order everywhere.
        """
        for number in numbers:
            dist.all_reduce(self.place(number))

    def total(self) -> Tensor:
        """The sum, float64 ``[length]``, within ``2^-51`` of it."""
        total = torch.zeros(self.length, dtype=torch.float64, device=self.device)
        if not self.places:
            return total
        carry = torch.zeros(self.length, dtype=torch.int64, device=self.device)
        half = 1 << (BITS - 1)
        for number in range(min(self.places), max(self.places) + 1):
            digits = carry + self.places[number] if number in self.places else carry
            carry = (digits + half) >> BITS
            total += (digits - (carry << BITS)).double() * 2.0 ** (BITS * number)
        return total + carry.double() * 2.0**BITS * 2.0 ** (BITS * max(self.places))


class JointMean:
    """The mean of a round's uploads, whose tensors stay in the processes where they were made.

    Args:
        fabric: launched.
        at_once: each upload is added up when it comes, by its weight alone, and its tensors are given up. Otherwise a
            process keeps those of its own clients until all weights are known.
    """

    def __init__(self, fabric: Fabric, at_once: bool) -> None:
        self.fabric, self.at_once = fabric, at_once
        self.begin({})

    def begin(self, like: Mapping[str, Tensor]) -> None:
        """Another round begins, whose uploads have these names, shapes and types."""
        self.like = like
        self.groups = groups_of(like)
        self.sums = self._empty()
        self.weights: dict[tuple[int, int], float] = {}
        self.own: dict[tuple[int, int], dict[str, Tensor]] = {}
        self.found: dict[str, Tensor] = {}
        self.by: dict[tuple[int, int], float] = {}  # the weights of ``found``

    @property
    def num_bytes(self) -> int:
        """Bytes of tensors that this process holds for the mean."""
        kept = sum(value.nbytes for tensors in self.own.values() for value in tensors.values())
        return kept + sum(one.num_bytes for one in self.sums)

    def take(self, upload: Upload, weight: float) -> Upload:
        """Take over the tensors of an upload of this process; what is left of it goes to all processes.

        Args:
            upload: finite.
            weight: its own, where uploads are added up at once.

        Raises:
            RunError: the weight is none.
        """
        key = upload.visit.client, upload.visit.repeat
        if self.at_once:
            if not isfinite(weight) or weight < 0:
                raise RunError(f"aggregation: the weight {weight} cannot be normalised; it must be >= 0 and finite")
            self._add(upload.tensors, weight)
            self.weights[key] = weight
        else:
            self.own[key] = upload.tensors
        return without_tensors(upload)

    def for_server(self, upload: Upload) -> Upload:
        """The upload as the server meets it: of its tensors there is only the mean with others'."""
        return replace(upload, tensors=cast(dict[str, Tensor], Summand(self, upload.visit)))

    def mean(self, parts: Sequence[Summand], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
        """Weighted mean, in the types that ``weighted_mean`` gives. All processes ask for it together.

        The products with the weights are doubles, which is exact for float32 and whole weights below 2^29. They are
        added up exactly; the sum is divided by that of the weights, and rounded to the type of the tensor.

        Raises:
            RunError: weights that cannot be normalised; where uploads were added up at once, other weights than those,
                or the mean of some of the uploads.
        """
        checked = checked_weights(parts, weights)
        given = {(part.visit.client, part.visit.repeat): w for part, w in zip(parts, checked.tolist(), strict=True)}
        if len(given) < len(parts):
            raise RunError("aggregation: an upload is averaged twice (--sums exact); give each upload one weight")
        if self.at_once and self.found:
            _require_all(given, self.by)
            return {name: value.clone() for name, value in self.found.items()}
        if not self.at_once:
            self.sums = self._empty()
            for key, tensors in self.own.items():
                if given.get(key):
                    self._add(tensors, given[key])
        for one, places in zip(self.sums, self._exchange_places(given), strict=True):
            one.join(self.fabric, places)
        mean = self._divided(fsum(given.values()))
        self.sums = []
        if self.at_once:
            self.found, self.by = {name: value.clone() for name, value in mean.items()}, given
        return mean

    def _empty(self) -> list[ExactSum]:
        """A sum for each group of tensors."""
        like = self.like
        return [ExactSum(sum(like[name].numel() for name in names), like[names[0]].device) for names in self.groups]

    def _exchange_places(self, given: Mapping[tuple[int, int], float]) -> list[list[int]]:
        """The places that any process has, by group; where uploads were added up, the weights are compared, too."""
        mine = [sorted(one.places) for one in self.sums], self.weights
        everyone = all_gather(self.fabric, mine)
        taken = {key: weight for _, weights in everyone for key, weight in weights.items()}
        if self.at_once:
            _require_all(given, taken)
        if self.fabric.world_size == 1:
            return [[] for _ in self.sums]
        return [sorted(set().union(*found)) for found in zip(*(places for places, _ in everyone), strict=True)]

    def _add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        if weight:
            for names, one in zip(self.groups, self.sums, strict=True):
                values = [tensors[name].detach().to(torch.float64).reshape(-1) for name in names]
                one.add(torch.cat(values).mul_(weight))

    def _divided(self, by: float) -> dict[str, Tensor]:
        mean = {}
        for names, one in zip(self.groups, self.sums, strict=True):
            parts = torch.split(one.total() / by, [self.like[name].numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                like = self.like[name]
                dtype = like.dtype if like.is_floating_point() else torch.float32
                mean[name] = part.reshape(like.shape).to(dtype, copy=True)  # which shares no memory with the others
        return mean


def groups_of(like: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of tensors that are added up together: one after another, as long as they are small."""
    groups: list[list[str]] = []
    joined = JOINED
    for name, value in like.items():
        joined += value.numel()
        if joined > JOINED or value.device != like[groups[-1][0]].device:
            groups.append([])
            joined = value.numel()
        groups[-1].append(name)
    return groups


def _require_all(given: Mapping[tuple[int, int], float], taken: Mapping[tuple[int, int], float]) -> None:
    """Refuse a mean by other weights than those by which the uploads were added up."""
    if given != taken:
        raise RunError(
            "the mean of a part of the round's uploads, or by weights that depend on the other uploads, was asked "
            "for after the uploads had been added up (--sums exact). Let uploads_needed of the method say 'mean' "
            "where weights depend on others, 'each' where parts are averaged"
        )


def without_tensors(upload: Upload) -> Upload:
    """An upload without its tensors, whose bytes are still counted."""
    return replace(upload, tensors={}, bytes=upload.num_bytes)
