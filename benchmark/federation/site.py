"""A client's data and what it may ask for in a visit, as a method's hooks see it; and what comes of visits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from benchmark.federation.fit import Fit, OptimizerStates, RunContext, kept_states
from benchmark.federation.metrics import Sums
from benchmark.federation.replay import Replay
from datamodules.base import SiteData
from datamodules.common import streams as random_streams
from datamodules.common.errors import RunError
from datamodules.partition.sites import true_labels
from datamodules.views.batches import Batch, LocalWork, epoch
from methods.base import FedMethod, Tally, Upload, Visit
from methods.parts.tensors import one_hot


class Sent(NamedTuple):
    """What a client is sent: tensors by name, and how many bytes that takes."""

    tensors: Mapping[str, Tensor]
    bytes: int


class VisitResult(NamedTuple):
    """The result of a visit.

    Args:
        upload: what goes to the server, if anything.
        sums: what was logged.
        bytes_down: bytes that the client was sent.
        steps: batches trained on.
        counts: ``False`` if it is left out of the round (``nonfinite``).
    """

    upload: Upload | None
    sums: Sums
    bytes_down: int
    steps: int
    counts: bool


@dataclass
class ClientState:
    """What a client keeps between visits: its personal tensors and the state of its optimisers."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    optimizers: OptimizerStates = field(default_factory=list)


_measured: WeakKeyDictionary["LocalSite", Tally] = WeakKeyDictionary()


def measured(site: "LocalSite") -> Tally:
    """What hooks have measured with hidden labels in a visit; for the engine alone.

    It lies beside the site, as the labels lie beside the data module: no attribute leads a hook to either.
    """
    return _measured[site]


class LocalSite:
    """The site that a seat visits, as a method's hooks see it (see ``methods.base.Site``).

    What hooks must not use, such as the whole data set, is private. Hooks may only ask for the site's own images. A
    step must not read numbers back to the host, and a recorded step serves many visits. So whether a visit has asked
    for another site's images is noted on the device, in tensors that stay at the same place, and read at its end.

    Args:
        method: the seat's copy.
        context: what all visits have in common.
    """

    def __init__(self, method: FedMethod, context: RunContext) -> None:
        self._method, self._context = method, context
        _measured[self] = Tally()
        self._held = torch.zeros(context.data.num_images, dtype=torch.bool, device=context.data.device)
        self._only_own = torch.ones((), dtype=torch.bool, device=context.data.device)

    def begin(self, visit: Visit, data: SiteData, states: OptimizerStates) -> None:
        """Become the site of a visit, with these data and the optimisers' states that it has kept."""
        self.visit, self.data, self.optimizer_states = visit, data, states
        self.passes = self.steps = 0
        measured(self).clear()
        self._only_own.fill_(True)
        self._held.zero_()
        for index in (data.labelled, data.unlabelled):
            self._held.index_fill_(0, index, True)

    def generator(self, purpose: str) -> torch.Generator:
        """Random stream of this visit for ``purpose``; ``order...`` is on the CPU: all devices draw alike."""
        v = self.visit
        device = "cpu" if purpose.startswith("order") else self._context.data.device
        return random_streams.generator(self._context.seed, purpose, v.round, v.client, v.repeat, device=device)

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = 256) -> Iterator[Tensor]:
        """Float views of the site's training images at ``index`` in blocks of ``size``."""
        self._note(index)
        generator = self.generator(purpose)
        for start in range(0, len(index), size):
            yield self._context.data.take(view, index[start : start + size], generator)

    def batches(self, work: LocalWork, number: int) -> Iterator[Batch]:
        """The batches of epoch ``number`` of ``work``; its streams are made now."""
        plan = work[number]
        if callable(plan):
            with preserve_modes(self._method):
                plan = plan()
        for stream in plan.streams.values():
            self._note(stream.index)
        self.passes += 1
        count = self.passes
        return epoch(plan.streams, self._context.data, lambda purpose: self.generator(f"{purpose}/{count}"), plan.steps)

    def fit(self, work: LocalWork, replay: Replay | None = None) -> int:
        """Train the module as it stands, from the optimiser state that the site kept; returns the number of steps."""
        return sum(1 for _ in self.train(work, replay))

    def train(self, work: LocalWork, replay: Replay | None = None) -> Iterator[None]:
        """As ``fit``; yields after each step."""
        fit = Fit(self._method, self.optimizer_states, len(work), self._context)
        step = None if replay is None else replay.begin(fit)
        yield from fit.run(lambda number: self.batches(work, number), step)
        self.steps += fit.steps
        self.optimizer_states = kept_states(self._method, fit.optimizers)

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """Log the shares of pseudo-labels that are selected, correct, or both; see ``methods.base.Site``."""
        data, count = self._context.data, len(index)
        if not count:
            return
        self._note(index)
        tally, classes = measured(self), one_hot(labels, data.num_classes)
        shares = {"selected": selected}
        if data.knows_all:
            right = true_labels(data)[index] == labels
            shares |= {"correct": right & selected, "right": right}
        for name, hits in shares.items():
            tally.add(f"pseudo/{name}", hits.float().mean(), count)
            tally.add(f"pseudo/{name}_by_class", (classes * hits[:, None]).float().mean(dim=0), count)

    def oracle(self, index: Tensor, labels: Tensor) -> Tensor:
        """Whether labels are the true ones; see ``methods.base.Site``."""
        if not self._method.uses_oracle:
            raise RunError("the method asked for hidden labels but is not a declared oracle; set uses_oracle = True")
        self._note(index)
        if not self._context.data.knows_all:
            raise RunError("the method asked for hidden labels, and the data set has images whose label nobody knows")
        return true_labels(self._context.data)[index] == labels

    def _note(self, index: Tensor) -> None:
        """Note whether images (positions in the training set, int64 ``[n]``) are the site's."""
        self._only_own.logical_and_(self._held[index].all())

    def _require_own(self) -> None:
        """Refuse a visit that has asked for another site's images.

        Raises:
            RunError: it has.
        """
        if not bool(self._only_own):
            raise RunError(
                "a stream, views, report_pseudo_labels or oracle was given training images that the site does not "
                "hold; take positions from client.data (client.data.unlabelled[keep]): indices into them, such as "
                "torch.arange(n), are positions of other images"
            )


@contextmanager
def preserve_modes(module: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of all parts afterwards."""
    before = [(part, part.training) for part in module.modules()]
    yield
    for part, training in before:
        part.training = training


def stream_of(visit: Visit) -> tuple[Any, ...]:
    """The random stream of a visit: its purpose, round, client and repeat."""
    return "torch", visit.round, visit.client, visit.repeat


def not_finite(upload: Upload | None, sums: Sums) -> str:
    """What of a visit's loss, upload and weight is not finite, in words; empty if nothing. Reads the device once."""
    numbers = [("the loss", sums["loss"][0])] if "loss" in sums else []
    if upload is not None:
        if not isfinite(upload.weight):
            return "the upload's weight"
        numbers += [(f"the uploaded {name}", value) for name, value in (*upload.tensors.items(), *upload.stats.items())]
    numbers = [(name, value) for name, value in numbers if value.is_floating_point() and value.numel()]
    if not numbers or bool(get_total_norm([value for _, value in numbers], inf).isfinite()):
        return ""
    return next(name for name, value in numbers if not bool(value.isfinite().all()))
