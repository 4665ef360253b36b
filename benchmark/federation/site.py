"""A client's data and what it may ask for in a visit, as a method's hooks see it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from benchmark.federation.fit import Fit, OptimizerStates, kept_states
from benchmark.federation.metrics import Sums
from benchmark.federation.scaling import LossScaler
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common import streams as random_streams
from datamodules.common.errors import NOT_FINITE, RunError
from datamodules.partition.sites import true_labels
from datamodules.views.batches import Batch, LocalWork, epoch
from methods.base import FedMethod, Tally, Upload, Visit
from methods.parts.tensors import one_hot

EVAL_BLOCK = 256


class Sent(NamedTuple):
    """What a client is sent: tensors by name, and how many bytes that takes."""

    tensors: dict[str, Tensor]
    bytes: int


class VisitResult(NamedTuple):
    """The result of a visit.

    Args:
        upload: what goes to the server, if anything.
        sums: what was logged.
        bytes_down: bytes that the client was sent.
        steps: calls of ``training_step``.
        counts: whether it is a part of the aggregate: not if it was left out (``nonfinite``).
    """

    upload: Upload | None
    sums: Sums
    bytes_down: int
    steps: int
    counts: bool = True


def not_finite(results: Mapping[Visit, VisitResult]) -> dict[Visit, str]:
    """Visits with a loss, an uploaded tensor or a weight that is not finite, each with a message naming it.

    All visits are checked with one read from the device.
    """
    parts = {visit: own for visit, result in results.items() if (own := _numbers(result))}
    flags = [get_total_norm([value for _, value in own], inf).isfinite() for own in parts.values()]
    found = {}
    for visit, sound in zip(parts, torch.stack(flags).tolist() if flags else (), strict=True):
        if not sound:
            bad = next(name for name, value in parts[visit] if not bool(value.isfinite().all()))
            found[visit] = (
                f"{bad} {NOT_FINITE}. The last checkpoint is intact; lower the learning rate, take masked_mean of "
                "methods.parts.tensors for a mean over a mask that may be empty, or try --precision 32-true if this "
                "was mixed precision"
            )
    return found


def _numbers(result: VisitResult) -> list[tuple[str, Tensor]]:
    """What a visit gives that must be finite, with its name in an error message; names may be given twice."""
    numbers = [("the loss", result.sums["loss"][0])] if "loss" in result.sums else []
    if (upload := result.upload) is not None:
        numbers += [(f"the uploaded {name}", value) for name, value in (*upload.tensors.items(), *upload.stats.items())]
        device = next((value.device for _, value in numbers), None)
        numbers.append(("the upload's weight", torch.tensor(upload.weight, device=device)))
    return [(name, value) for name, value in numbers if value.is_floating_point() and value.numel()]


@dataclass
class ClientState:
    """What a client keeps between visits: its personal tensors and the state of its optimisers."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    optimizers: OptimizerStates = field(default_factory=list)


@dataclass(frozen=True)
class RunContext:
    """What all visits of a run have in common.

    Args:
        data: the data module, set up, on the method's device.
        seed: the run's seed, from which all random streams are derived.
        rounds: number of rounds of the run, for schedules.
        autocast: makes the mixed-precision context of the run.
        scaler: makes the loss scaler of ``16-mixed``; returns ``None`` in other precisions.
        callbacks: Lightning callbacks, called in every fit.
        loggers: Lightning loggers that a method finds as ``self.loggers``.
        rank: rank of this process.
        ranks: number of processes.
    """

    data: FSSLDataModule
    seed: int
    rounds: int
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: Callable[[], LossScaler | None] = lambda: None
    callbacks: Sequence[Callback] = ()
    loggers: Sequence[Any] = ()
    rank: int = 0
    ranks: int = 1

    @contextmanager
    def seeded(self, purpose: str, *where: int) -> Iterator[None]:
        """Seed torch's global generators, those of the CPU and of the device, and restore them afterwards.

        ``torch.manual_seed`` is slow: for kinds of devices that are not there it records the stack.
        """
        device, seed = self.data.device, random_streams.derive_seed(self.seed, purpose, *where)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed)
            if device.type != "cpu":
                torch.get_device_module(device).manual_seed(seed)
            yield


class Holdings:
    """The images of the site that is visited at the moment, in tensors that stay at the same place.

    A step must not read numbers back to the host, and a recorded step serves many sites. So whether a visit has asked
    for another site's images is noted on the device, and the note is read when the visit ends.

    Args:
        data: all images.
    """

    def __init__(self, data: FSSLDataModule) -> None:
        self.held = torch.zeros(data.num_images, dtype=torch.bool, device=data.device)
        self.own = torch.ones((), dtype=torch.bool, device=data.device)
        self.marked = torch.empty(0, dtype=torch.int64, device=data.device)

    def hold(self, data: SiteData) -> None:
        """The next visit is to a site with these images. The time does not depend on what other sites hold."""
        self.held.index_fill_(0, self.marked, False)
        self.own.fill_(True)
        self.marked = torch.cat([one for one in (data.labelled, data.unlabelled, data.validation) if one is not None])
        self.held.index_fill_(0, self.marked, True)

    def note(self, index: Tensor) -> None:
        """Note whether images (positions in the training set, int64 ``[n]``) are the site's."""
        self.own.logical_and_(self.held[index].all())

    def require_own(self) -> None:
        """Refuse a visit that has asked for another site's images.

        Raises:
            RunError: it has.
        """
        if not bool(self.own):
            raise RunError(
                "a stream, views, report_pseudo_labels or oracle was given training images that the site does not "
                "hold; take positions from client.data (client.data.unlabelled[keep]): indices into them, such as "
                "torch.arange(n), are positions of other images"
            )


_measured: WeakKeyDictionary["LocalSite", Tally] = WeakKeyDictionary()


def measured(site: "LocalSite") -> Tally:
    """What hooks have measured with hidden labels at a site; for the engine alone.

    It lies beside the site, as the labels lie beside the data module: no attribute leads a hook to either.
    """
    return _measured[site]


class LocalSite:
    """The site of a visit, as a method's hooks see it (see ``methods.base.Site``).

    What hooks must not use, such as the whole data set, is private. Hooks may only ask for the site's own images.
    """

    def __init__(
        self,
        method: FedMethod,
        context: RunContext,
        data: SiteData,
        visit: Visit,
        states: OptimizerStates,
        hidden: Tally | None = None,
        holdings: Holdings | None = None,
    ) -> None:
        self.data, self.visit, self.optimizer_states = data, visit, states
        self._method, self._context = method, context
        _measured[self] = Tally() if hidden is None else hidden
        self._holdings = Holdings(context.data) if holdings is None else holdings
        self._holdings.hold(data)
        self.passes = self.steps = 0

    def generator(self, purpose: str) -> torch.Generator:
        """Random stream of this visit for ``purpose``; ``order/...`` is on the CPU: all devices draw alike."""
        v = self.visit
        device = "cpu" if purpose.startswith("order") else self._context.data.device
        return random_streams.generator(self._context.seed, purpose, v.round, v.client, v.repeat, device=device)

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = EVAL_BLOCK) -> Iterator[Tensor]:
        """Float views of the site's training images at ``index`` in blocks of ``size``."""
        self._holdings.note(index)
        generator = self.generator(purpose)
        for start in range(0, len(index), size):
            yield self._context.data.take(view, index[start : start + size], generator)

    def batches(self, work: LocalWork, number: int) -> Iterator[Batch]:
        """The batches of epoch ``number`` of ``work``; its streams are made now."""
        made = work[number]
        if callable(made):
            with preserve_modes(self._method):
                made = made()
        for stream in made.streams.values():
            self._holdings.note(stream.index)
        self.passes += 1
        count = self.passes
        return epoch(made.streams, self._context.data, lambda purpose: self.generator(f"{purpose}/{count}"), made.steps)

    def fit(self, work: LocalWork) -> int:
        """Train the module as it stands, from the optimiser state that the site kept; returns the number of steps."""
        fit = self.prepare_fit(len(work))
        for _ in fit.run(len(work), lambda number: self.batches(work, number)):
            pass
        self.keep(fit)
        return fit.steps

    def prepare_fit(self, epochs: int = 0) -> Fit:
        """A fit of ``epochs`` epochs whose optimisers start from the state that the site has kept."""
        c = self._context
        return Fit(self._method, self.optimizer_states, epochs, c.callbacks, c.loggers, c.rank, c.ranks)

    def keep(self, fit: Fit) -> None:
        """Keep the optimisers' state as ``optimizer_scopes`` says, and count the steps of the fit."""
        self.steps += fit.steps
        self.optimizer_states = kept_states(self._method, fit.optimizers)

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """Log the shares of pseudo-labels that are selected, correct, or both; see ``methods.base.Site``."""
        data, count = self._context.data, len(index)
        if not count:
            return
        self._holdings.note(index)
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
        self._holdings.note(index)
        if not self._context.data.knows_all:
            raise RunError("the method asked for hidden labels, and the data set has images whose label nobody knows")
        return true_labels(self._context.data)[index] == labels


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
