"""The reference engine: clients train one after another in the live module, with autograd and ``torch.optim``."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from benchmark.federation import hooks
from benchmark.federation.fit import Fit
from benchmark.federation.holdings import Holdings
from benchmark.federation.metrics import Sums
from benchmark.federation.optimizers import OptimizerStates, kept_states
from benchmark.federation.scaling import LossScaler
from benchmark.federation.trainer import VisitTrainer
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common import streams as random_streams
from datamodules.common.errors import RunError, Stopped, safe_str
from datamodules.common.plugins import users_place
from datamodules.common.streams import SERVER
from datamodules.partition.sites import true_labels
from datamodules.views.batches import Batch, LocalWork, epoch
from methods.base import FedMethod, Tally, Upload, Visit
from methods.models.backbone import draw_from
from methods.parts.aggregation import num_bytes
from methods.parts.engine_state import EngineState, RegisteredTensors
from methods.parts.tensors import one_hot

EVAL_BLOCK = 256


class Sent(NamedTuple):
    """What a client is sent: tensors by name, and how many bytes that takes."""

    tensors: dict[str, Tensor]
    bytes: int


class VisitResult(NamedTuple):
    """The result of a visit: ``steps`` counts calls of ``training_step``."""

    upload: Upload | None
    sums: Sums
    bytes_down: int
    steps: int


OnVisitEnd = Callable[[Visit, VisitResult], VisitResult]
"""Called with the result of each visit as soon as it has ended; returns the result to keep."""


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
        self._holdings = Holdings(context.data.num_images, context.data.device) if holdings is None else holdings
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
        work = hooks.local_work(work)
        fit = self.prepare_fit(len(work))
        for _ in fit.run(len(work), lambda number: self.batches(work, number)):
            pass
        self.keep(fit)
        return fit.steps

    def prepare_fit(self, epochs: int = 0) -> Fit:
        """A fit of ``epochs`` epochs whose optimisers start from the state that the site has kept."""
        context = self._context
        trainer = VisitTrainer(
            self._method, context.callbacks, context.loggers, context.rank, context.ranks, max_epochs=epochs
        )
        return Fit(self._method, self.optimizer_states, trainer)

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


class ReferenceEngine:
    """Runs visits. It defines what is right: a faster engine must give the same results.

    Args:
        method: the live module; during a visit it is that client.
        context: what all visits have in common.
    """

    def __init__(self, method: FedMethod, context: RunContext) -> None:
        self.method, self.context = method, context
        self.tally, self.hidden = Tally(), Tally()  # what the method logs, and what only the engine may know
        self.generator = torch.Generator(device=context.data.device)
        self.holdings = Holdings(context.data.num_images, context.data.device)
        method._engine = EngineState(context.autocast, context.scaler(), tensors=RegisteredTensors(method))
        draw_from(method, self.generator)
        self.initial = method.tensors("shared", "personal", "local", "server")
        if not method.training:  # it was put into evaluation mode after it was built
            method.train()
        self.always_eval = [part for part in method.modules() if not part.training]
        self.shared = {name: self.initial[name] for name in method.names("shared")}
        self.shared_optimizer_state: OptimizerStates = []

    @cached_property
    def sequential(self) -> bool:
        """Whether clients share an optimiser's state, so that all visits must come one after another."""
        with self.hook_context("optimizer_scopes", 0):
            return "shared" in self.method.optimizer_scopes()

    def counts(self) -> dict[str, int]:
        """How many client steps were taken in which way; empty if there is only one way."""
        return {}

    def kept_bytes(self) -> int:
        """Bytes that a client keeps between visits: its personal tensors and the optimiser state that is kept."""
        if self.sequential:
            return num_bytes(self.method.tensors("personal"))
        with self.hook_context("configure_optimizers", 0):
            optimizers = Fit(self.method, []).optimizers
        self.method.trainer = None
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter] = dict.fromkeys(_state_names(group), parameter)
        with self.hook_context("optimizer_scopes", 0):
            states = kept_states(self.method, optimizers)
        kept: list[Tensor] = [value for own in states for state in own for value in state.values()]
        return num_bytes(self.method.tensors("personal")) + sum(tensor.nbytes for tensor in kept)

    def run_visits(
        self,
        visits: Sequence[Visit],
        server: Mapping[str, Tensor],
        kept: MutableMapping[int, ClientState],
        on_visit_end: OnVisitEnd = lambda visit, result: result,
    ) -> dict[tuple[int, int], VisitResult]:
        """Run visits, in the reference engine one after another.

        Args:
            visits: those of this process; a client may have several.
            server: the server's tensors at the beginning of the round.
            kept: what clients have kept from earlier visits; it is updated.
            on_visit_end: called with each result; returns the result to keep.

        Returns:
            the results, by client and repeat.

        Raises:
            RunError: whatever the method raises, with the method, client and round.
        """
        results: dict[tuple[int, int], VisitResult] = {}
        sent = {visit: self.send(visit, server) for visit in visits}  # while the module is still the server
        for visit, result in self.ended_visits(sent, kept):
            results[visit.client, visit.repeat] = on_visit_end(visit, result)
            del result  # its tensors may be given up before the next visit
        return results

    def ended_visits(
        self, sent: Mapping[Visit, Sent], kept: MutableMapping[int, ClientState]
    ) -> Iterator[tuple[Visit, VisitResult]]:
        """Run visits to which this was sent, in order; yields each with its result as soon as it has ended."""
        for visit, tensors in sent.items():
            result, kept[visit.client] = self.run_visit(visit, tensors, kept.get(visit.client))
            yield visit, result
            del result

    def run_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[VisitResult, ClientState]:
        """Run one visit; returns its result and what the client keeps."""
        with self.seeded(visit):
            site, work = self.begin_visit(visit, sent, state)
            with self.error_context(site):
                site.fit(work)
            return self.end_visit(site, sent)

    def send(self, visit: Visit, server: Mapping[str, Tensor]) -> Sent:
        """What the method's ``broadcast`` sends to the visited client."""
        with self.hook_context("broadcast to", visit.round, visit):
            sent = hooks.tensors(self.method.broadcast(server, visit), self.initial, "broadcast")
            return Sent(sent, index(self.method.sent_bytes(sent, visit)))

    def begin_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[LocalSite, LocalWork]:
        """The module becomes the client: it loads what was sent and what the client kept, and prepares local work."""
        method, state = self.method, state or ClientState()
        own, states = self.context.data.client(visit.client), state.optimizers or self.shared_optimizer_state
        site = LocalSite(method, self.context, own, visit, states, self.hidden, self.holdings)
        method.load_tensors({**self.initial, **sent.tensors, **state.tensors})
        self.attach(visit)
        self.train_mode()
        with self.error_context(site):
            work = hooks.local_work(method.local_work(site))
        self.train_mode()
        return site, work

    def train_mode(self) -> None:
        """Training mode for all parts but those that were built in evaluation mode, as in a fit of Lightning's."""
        self.method.train()
        for part in self.always_eval:
            part.training = False

    def attach(self, visit: Visit) -> None:
        """Connect the module to a visit: its tally, its generator, freshly seeded."""
        method = self.method
        self.tally.clear()
        self.hidden.clear()
        self.generator.manual_seed(self.torch_seed(visit))
        method.visit, method.generator, method._engine.tally = visit, self.generator, self.tally

    def end_visit(self, site: LocalSite, sent: Sent) -> tuple[VisitResult, ClientState]:
        """The client uploads; returns the result of the visit and what the client keeps."""
        method = self.method
        with self.error_context(site):
            made = method.make_upload(site)
            self.check_visit()
            upload = hooks.upload(made, site.visit, self.shared, method.registered())
        sums = self.detach()
        result = VisitResult(upload, sums, sent.bytes, site.steps)
        personal = method.tensors("personal")
        if not self.sequential:
            return result, ClientState(personal, site.optimizer_states)
        self.shared_optimizer_state = site.optimizer_states
        return result, ClientState(personal)

    def check_visit(self) -> None:
        """Refuse a visit that has broken a rule unnoticed; it has no result then.

        Raises:
            RunError: a registered tensor was replaced, or the method asked about another site's images.
        """
        hooks.in_place(self.method)
        self.holdings.require_own()

    def detach(self) -> Sums:
        """Disconnect the module from the visit; returns what it logged."""
        self.method._engine.tally = self.method.trainer = None
        return self.tally.taken() | self.hidden.taken()

    def run_server(self, round: int, state: ClientState | None, first: bool) -> tuple[VisitResult, ClientState]:
        """Run ``server_step``, before the first round (``first``) or after an aggregation.

        Returns:
            the result, without an upload, and what the server keeps.
        """
        data = self.context.data.server
        if data.validation is not None:
            if self.method.uses_validation:
                data = replace(data, validation_labels=true_labels(self.context.data)[data.validation])
            else:
                data = replace(data, validation=None)
        visit = Visit(
            round,
            SERVER,
            repeat=int(first),
            labelled=len(data.labelled) > 0,
            size=data.size,
            first=state is None,
            rounds=self.context.rounds,
        )
        kept = state.optimizers if state else []
        site = LocalSite(self.method, self.context, data, visit, kept, self.hidden, self.holdings)
        self.attach(visit)
        with self.seeded(visit), self.error_context(site):
            self.train_mode()
            self.method.server_step(site)
            self.check_visit()
        result = VisitResult(None, self.detach(), 0, site.steps)
        return result, ClientState({}, site.optimizer_states)

    def aggregate(self, uploads: Sequence[Upload], round: int) -> Sums:
        """The server aggregates uploads into its next model; returns what it logged."""
        tally = self.method._engine.tally = Tally()
        try:
            with self.hook_context("aggregate", round):
                self.method.aggregate(uploads)
        finally:
            self.method._engine.tally = None
        return tally.taken()

    @contextmanager
    def hook_context(self, hook: str, round: int, visit: Visit | None = None) -> Iterator[None]:
        """Around a hook that runs at no site: a random stream of its own, and errors that name the hook and round.

        With a ``visit``, its client belongs to the name of the hook and of the stream.
        """
        if visit is not None:
            hook = f"{hook} client {visit.client}"
        with torch.random.fork_rng(self._forked):
            self.seed_torch(random_streams.derive_seed(self.context.seed, f"torch/{hook}", round))
            try:
                yield
                hooks.in_place(self.method)
            except (KeyboardInterrupt, Stopped):
                raise
            except BaseException as error:
                where = f"{type(self.method).__name__}.{hook}, round {round}"
                raise RunError(f"{where}: {cause(error, self.method)}") from error

    @contextmanager
    def seeded(self, visit: Visit) -> Iterator[None]:
        """Seed torch's global generators for a visit, and restore them afterwards."""
        with torch.random.fork_rng(self._forked):
            self.seed_torch(self.torch_seed(visit))
            yield

    @contextmanager
    def error_context(self, site: LocalSite) -> Iterator[None]:
        """Errors name the method, client and round, and end the visit."""
        try:
            yield
        except (KeyboardInterrupt, Stopped):
            raise
        except BaseException as error:
            self.detach()
            raise RunError(f"{location(self.method, site.visit)}: {cause(error, self.method)}") from error

    def torch_seed(self, visit: Visit) -> int:
        """Seed of what a visit draws from torch's global generators."""
        place = visit.round, visit.client, visit.repeat
        return random_streams.derive_seed(self.context.seed, "torch", *place)

    def seed_torch(self, seed: int) -> None:
        """Seed torch's generators of the CPU and of the device.

        ``torch.manual_seed`` is slow: for kinds of devices that are not there it records the stack.
        """
        device = self.context.data.device
        torch.default_generator.manual_seed(seed)
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)

    @property
    def _forked(self) -> list[torch.device]:
        device = self.context.data.device
        return [device] if device.type == "cuda" else []


@contextmanager
def preserve_modes(module: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of all parts afterwards."""
    before = [(part, part.training) for part in module.modules()]
    yield
    for part, training in before:
        part.training = training


def location(method: FedMethod, visit: Visit) -> str:
    """Method, client and round, as an error message names them."""
    who = "the server" if visit.client == SERVER else f"client {visit.client} ({visit.size} images)"
    return f"{type(method).__name__}, {who}, round {visit.round}"


def cause(error: BaseException, method: FedMethod) -> str:
    """The message of an error inside a hook; unless it is a ``RunError``, with its type and the line of the user's."""
    if isinstance(error, SystemExit):
        return f"the method ended the program (exit code {error.code!r}); a hook returns, or raises an error"
    if isinstance(error, RunError):
        return safe_str(error)
    classes = [cls for cls in type(method).__mro__ if issubclass(cls, FedMethod) and cls is not FedMethod]
    line = users_place(error, {cls.__module__ for cls in classes})
    return f"{type(error).__name__}: {safe_str(error)}" + (f" ({line})" if line else "")


def _state_names(group: Mapping[str, Any]) -> Sequence[str]:
    """Optimiser state of the shape of a parameter: Adam keeps two tensors, SGD with momentum one."""
    return ("exp_avg", "exp_avg_sq") if "betas" in group else ("momentum_buffer",) if group.get("momentum") else ()
