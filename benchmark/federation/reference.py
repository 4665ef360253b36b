"""The reference engine: one client after the other in the live module, ordinary autograd, ``torch.optim``."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from benchmark.federation import hooks
from benchmark.federation.fit import Fit, OptimizerStates, kept_states
from benchmark.federation.holdings import Holdings
from benchmark.federation.scaling import LossScaler
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common import streams as random_streams
from datamodules.common.errors import RunError, Stopped, words
from datamodules.common.plugins import users_place
from datamodules.common.streams import SERVER
from datamodules.views.batches import Batch, LocalWork, epoch
from methods.base import FedMethod, Tally, Upload, Visit
from methods.models.backbone import draw_from
from methods.parts.aggregation import num_bytes
from methods.parts.tensors import one_hot

EVAL_BLOCK = 256

Sums = dict[str, tuple[Tensor, Tensor]]
"""Weighted sum and sum of weights by name."""


class Sent(NamedTuple):
    """What a client is sent: tensors by name, and the bytes on the way."""

    tensors: dict[str, Tensor]
    bytes: int


class Outcome(NamedTuple):
    """What came of a visit."""

    upload: Upload | None
    sums: Sums
    bytes_down: int
    steps: int


Leave = Callable[[Visit, Outcome], Outcome]
"""Takes what came of a visit that has ended, and gives what is held of it."""


@dataclass
class ClientState:
    """What a client keeps between visits: personal tensors, and the state of its optimisers."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    optimizers: OptimizerStates = field(default_factory=list)


@dataclass(frozen=True)
class Surroundings:
    """What all visits of a run share.

    Args:
        data: the data module, set up and placed on the device of the method.
        seed: run seed of all random streams.
        rounds: planned rounds, for schedules.
        autocast: makes the mixed-precision context of the run.
        scaler: makes what scales losses in ``16-mixed``, or gives ``None``.
        callbacks: Lightning callbacks that see every fit.
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


class LocalSite:
    """The place a visit happens at, as the hooks of a method see it (see ``methods.base.Site``).

    What a hook has no business with (the whole data set, the hidden labels, what is measured with them) is private.
    Whatever positions a hook names, they must be those of the site's own images.
    """

    def __init__(
        self,
        method: FedMethod,
        around: Surroundings,
        data: SiteData,
        visit: Visit,
        states: OptimizerStates,
        hidden: Tally | None = None,
        holdings: Holdings | None = None,
    ) -> None:
        self.data, self.visit, self.optimizer_states = data, visit, states
        self._method, self._around = method, around
        self._hidden = Tally() if hidden is None else hidden  # hooks write there, only the engine reads
        self._holdings = Holdings(around.data.num_images, around.data.device) if holdings is None else holdings
        self._holdings.hold(data)
        self.passes = self.steps = 0

    def generator(self, purpose: str) -> torch.Generator:
        """Random stream of this visit; ``order/...`` lives on the CPU so that devices agree on it."""
        v = self.visit
        device = "cpu" if purpose.startswith("order") else self._around.data.device
        return random_streams.generator(self._around.seed, purpose, v.round, v.client, v.repeat, device=device)

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = EVAL_BLOCK) -> Iterator[Tensor]:
        """Float views of the site's training images at ``index`` in blocks of ``size``."""
        self._holdings.require(index, f"views({view!r}, ...)")
        generator = self.generator(purpose)
        for start in range(0, len(index), size):
            yield self._around.data.take(view, index[start : start + size], generator)

    def batches(self, work: LocalWork, number: int) -> Iterator[Batch]:
        """The batches of the epoch ``number`` of ``work``, whose streams are made now."""
        made = work[number]
        if callable(made):
            with modes_kept(self._method):
                made = hooks.one_pass(made())
        for name, stream in made.streams.items():
            self._holdings.require(stream.index, f"the stream {name!r}")
        self.passes += 1
        count = self.passes
        return epoch(made.streams, self._around.data, lambda purpose: self.generator(f"{purpose}/{count}"), made.steps)

    def fit(self, work: LocalWork) -> int:
        """Train the module as it stands; optimiser state is taken up from, and left for, the site's other visits."""
        work = hooks.local_work(work)
        fit = self.prepare_fit(len(work))
        for _ in fit.run(len(work), lambda number: self.batches(work, number)):
            pass
        self.keep(fit)
        return fit.steps

    def prepare_fit(self, epochs: int = 0) -> Fit:
        """A fit of so many epochs, whose optimisers have taken up what the site has kept of theirs."""
        around, states = self._around, self.optimizer_states
        return Fit(self._method, states, around.callbacks, around.loggers, around.rank, around.ranks, epochs)

    def keep(self, fit: Fit) -> None:
        """Keep the state of a fit's optimisers, by ``optimizer_scopes``, and count its steps."""
        self.steps += fit.steps
        self.optimizer_states = kept_states(self._method, fit.optimizers)

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """Shares of selected pseudo-labels and of right ones among them, as means over samples."""
        data, count = self._around.data, len(index)
        if not count:
            return
        self._holdings.note(index)
        right = data.oracle.correct(index, labels)
        classes = one_hot(labels, data.num_classes)
        for name, hits in (("selected", selected), ("correct", right & selected), ("right", right)):
            self._hidden.add(f"pseudo/{name}", hits.float().mean(), count)
            self._hidden.add(f"pseudo/{name}_by_class", (classes * hits[:, None]).float().mean(dim=0), count)

    def oracle(self, index: Tensor, labels: Tensor) -> Tensor:
        """Whether labels are true; see ``methods.base.Site``."""
        if not self._method.uses_oracle:
            raise RunError(
                "the method asked for hidden labels without being a declared oracle; set uses_oracle = True on it"
            )
        self._holdings.note(index)
        return self._around.data.oracle.correct(index, labels)


class ReferenceEngine:
    """Runs visits. The definition of truth: any faster engine must give the same results.

    Args:
        method: the live module; it becomes the client of the moment.
        around: what all visits share.
    """

    def __init__(self, method: FedMethod, around: Surroundings) -> None:
        self.method, self.around = method, around
        self.tally, self.hidden = Tally(), Tally()  # what the method logs, and what hidden labels say of its own
        self.generator = torch.Generator(device=around.data.device)
        self.holdings = Holdings(around.data.num_images, around.data.device)
        method.precision, method.loss_scaler = around.autocast, around.scaler()
        draw_from(method, self.generator)
        method.remember_registered()
        self.initial = method.tensors("shared", "personal", "local", "server")
        if not method.training:  # it has predicted since it was built, and no mode of its parts is left
            method.train()
        self.resting = [part for part in method.modules() if not part.training]
        self.shared = {name: self.initial[name] for name in method.names("shared")}
        self.handed_on: OptimizerStates = []  # what the last visit has left for the next, where clients share it

    @cached_property
    def hands_on(self) -> bool:
        """Whether an optimiser's state goes from visit to visit, so that visits come one after the other."""
        with self.outside("optimizer_scopes", 0):
            return "shared" in self.method.optimizer_scopes()

    def counts(self) -> dict[str, int]:
        """How the steps of clients were taken so far, where there are several ways."""
        return {}

    def kept_bytes(self) -> int:
        """Bytes that a client keeps between its visits: personal tensors and what survives of its optimisers."""
        if self.hands_on:
            return num_bytes(self.method.tensors("personal"))
        with self.outside("configure_optimizers", 0):
            optimizers = Fit(self.method, []).optimizers
        self.method._trainer = None
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter] = dict.fromkeys(_state_names(group), parameter)
        with self.outside("optimizer_scopes", 0):
            states = kept_states(self.method, optimizers)
        kept: list[Tensor] = [value for own in states for state in own for value in state.values()]
        return num_bytes(self.method.tensors("personal")) + sum(t.numel() * t.element_size() for t in kept)

    def visits(
        self,
        visits: Sequence[Visit],
        server: Mapping[str, Tensor],
        kept: MutableMapping[int, ClientState],
        leave: Leave = lambda visit, outcome: outcome,
    ) -> dict[tuple[int, int], Outcome]:
        """Let clients take part, one after the other.

        Args:
            visits: of this process; a client may come several times.
            server: the server's tensors at the beginning of the round.
            kept: what the clients that took part before have kept; what those of now keep is put there.
            leave: gets what came of each visit as soon as it has ended, and gives what to hold of it.

        Returns:
            what came of the visits, by client and repeat.

        Raises:
            RunError: anything the method raises, with method, client and round.
        """
        results: dict[tuple[int, int], Outcome] = {}
        sent = [self.sent(visit, server) for visit in visits]  # as long as the module is the server
        for visit, tensors in zip(visits, sent, strict=True):
            outcome, kept[visit.client] = self.client(visit, tensors, kept.get(visit.client))
            results[visit.client, visit.repeat] = leave(visit, outcome)
            del outcome
        return results

    def client(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[Outcome, ClientState]:
        """Let one client take part; returns what came of it, and what the client keeps."""
        with self.random(visit):
            site, work = self.arrive(visit, sent, state)
            with self.presence(site):
                site.fit(work)
            return self.depart(site, sent)

    def sent(self, visit: Visit, server: Mapping[str, Tensor]) -> Sent:
        """What the method's ``broadcast`` sends for a visit."""
        with self.outside(f"broadcast to client {visit.client}", visit.round):
            sent = hooks.tensors(self.method.broadcast(server, visit), self.initial, "broadcast")
            return Sent(sent, hooks.byte_count(self.method.sent_bytes(sent, visit), "sent_bytes"))

    def arrive(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[LocalSite, LocalWork]:
        """The module becomes the client, takes up what it was sent and prepares what it will train on."""
        method, state = self.method, state or ClientState()
        own, states = self.around.data.client(visit.client), state.optimizers or self.handed_on
        site = LocalSite(method, self.around, own, visit, states, self.hidden, self.holdings)
        method.load_tensors({**self.initial, **sent.tensors, **state.tensors})
        self.begin(visit)
        self.train_mode()
        with self.presence(site):
            work = hooks.local_work(method.local_work(site))
        self.train_mode()
        return site, work

    def train_mode(self) -> None:
        """The module trains, but for the parts that were built in evaluation mode, as in a fit of Lightning's."""
        self.method.train()
        for part in self.resting:
            part.training = False

    def begin(self, visit: Visit) -> None:
        """What the module knows of the visit before it starts."""
        method = self.method
        self.tally.clear()
        self.hidden.clear()
        self.generator.manual_seed(self.torch_seed(visit))
        method.visit, method._tally, method.generator = visit, self.tally, self.generator

    def depart(self, site: LocalSite, sent: Sent) -> tuple[Outcome, ClientState]:
        """What the trained client leaves behind."""
        method = self.method
        with self.presence(site):
            made = method.make_upload(site)
            self.look_back()
            upload = hooks.upload(made, site.visit, self.shared, method.registered())
        sums = self.end()
        outcome, personal = Outcome(upload, sums, sent.bytes, site.steps), method.tensors("personal")
        if not self.hands_on:
            return outcome, ClientState(personal, site.optimizer_states)
        self.handed_on = site.optimizer_states
        return outcome, ClientState(personal)

    def look_back(self) -> None:
        """Refuse what a visit has done without a word; nothing of it counts then.

        Raises:
            RunError: a registered tensor was bound anew, or images of others were asked about.
        """
        hooks.in_place(self.method)
        self.holdings.require_own()

    def end(self) -> Sums:
        """The visit is over; what it logged."""
        self.method._tally, self.method._trainer = None, None
        return self.tally.taken() | self.hidden.taken()

    def server(self, round: int, state: ClientState | None, first: bool) -> tuple[ClientState, Sums, int]:
        """Let the server train on its labelled data, before the first round (``first``) or after an aggregation.

        Returns:
            what the server keeps, what it logged, and its steps.
        """
        data = self.around.data.server
        if not self.method.uses_validation:
            data = replace(data, validation=None, validation_labels=None)
        visit = Visit(
            round,
            SERVER,
            repeat=int(first),
            labelled=len(data.labelled) > 0,
            size=data.size,
            first=state is None,
            rounds=self.around.rounds,
        )
        kept = state.optimizers if state else []
        site = LocalSite(self.method, self.around, data, visit, kept, self.hidden, self.holdings)
        self.begin(visit)
        with self.random(visit), self.presence(site):
            self.train_mode()
            self.method.server_step(site)
            self.look_back()
        return ClientState({}, site.optimizer_states), self.end(), site.steps

    def aggregate(self, uploads: Sequence[Upload], round: int) -> Sums:
        """The server turns uploads into its next model; returns what it logged."""
        tally = self.method._tally = Tally()
        try:
            with self.outside("aggregate", round):
                self.method.aggregate(uploads)
        finally:
            self.method._tally = None
        return tally.taken()

    @contextmanager
    def outside(self, hook: str, round: int) -> Iterator[None]:
        """For a hook that runs at no site: it draws from a stream of its own, and its errors say where they were."""
        with torch.random.fork_rng(self._forked):
            self.seed_torch(random_streams.derive_seed(self.around.seed, f"torch/{hook}", round))
            try:
                yield
                hooks.in_place(self.method)
            except (KeyboardInterrupt, Stopped):
                raise
            except BaseException as error:
                where = f"{type(self.method).__name__}.{hook}, round {round}"
                raise RunError(f"{where}: {cause(error, self.method)}") from error

    @contextmanager
    def random(self, visit: Visit) -> Iterator[None]:
        """Torch's own generators during a visit: seeded for it, and as they were afterwards."""
        with torch.random.fork_rng(self._forked):
            self.seed_torch(self.torch_seed(visit))
            yield

    @contextmanager
    def presence(self, site: LocalSite) -> Iterator[None]:
        """Errors say where they were; an error ends the visit."""
        try:
            yield
        except (KeyboardInterrupt, Stopped):
            raise
        except BaseException as error:
            self.end()
            raise RunError(f"{place(self.method, site.visit)}: {cause(error, self.method)}") from error

    def torch_seed(self, visit: Visit) -> int:
        """Seed of what a visit draws without naming a stream."""
        place = visit.round, visit.client, visit.repeat
        return random_streams.derive_seed(self.around.seed, "torch", *place)

    def seed_torch(self, seed: int) -> None:
        """Torch's own generators; ``torch.manual_seed`` would write down the stack for devices that nobody uses."""
        if self.around.data.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    @property
    def _forked(self) -> list[torch.device]:
        device = self.around.data.device
        return [device] if device.type == "cuda" else []


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Afterwards all parts train, or do not, as before."""
    before = [(part, part.training) for part in module.modules()]
    yield
    for part, training in before:
        part.training = training


def place(method: FedMethod, visit: Visit) -> str:
    """Method, client and round, for an error message."""
    who = "the server" if visit.client == SERVER else f"client {visit.client} ({visit.size} images)"
    return f"{type(method).__name__}, {who}, round {visit.round}"


def cause(error: BaseException, method: FedMethod) -> str:
    """What an error inside a hook says: those of ours as they are, others with their kind and the user's line."""
    if isinstance(error, SystemExit):
        return f"the method ended the program (exit code {error.code!r}); a hook returns, or raises an error"
    if isinstance(error, RunError):
        return words(error)
    classes = [cls for cls in type(method).__mro__ if issubclass(cls, FedMethod) and cls is not FedMethod]
    line = users_place(error, {cls.__module__ for cls in classes})
    return f"{type(error).__name__}: {words(error)}" + (f" ({line})" if line else "")


def _state_names(group: Mapping[str, Any]) -> Sequence[str]:
    """State that an optimiser keeps of a parameter in its shape: Adam two tensors, SGD with momentum one."""
    return ("exp_avg", "exp_avg_sq") if "betas" in group else ("momentum_buffer",) if group.get("momentum") else ()


__all__ = ["ClientState", "LocalSite", "Outcome", "ReferenceEngine", "Sums", "Surroundings", "cause", "place"]
