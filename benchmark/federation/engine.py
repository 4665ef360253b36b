"""The engine: clients train in seats, one after another or in turns, and the server in the first of them."""

import copy
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from operator import index
from typing import Any, get_args

import torch
from torch import Tensor

from benchmark.federation import hooks
from benchmark.federation.collectives import tensors_in
from benchmark.federation.fit import Fit, OptimizerStates, RunContext, kept_states, parameters_of
from benchmark.federation.replay import Replay
from benchmark.federation.site import ClientState, LocalSite, Sent, VisitResult, measured, not_finite, stream_of
from datamodules.base import SiteData
from datamodules.common import streams
from datamodules.common.errors import NOT_FINITE, ConfigError, RunError
from datamodules.views.batches import LocalWork
from methods.base import FedMethod, Scope, Tally, Upload, Visit
from methods.models.backbone import draw_from
from methods.models.norm import serially
from methods.parts.aggregation import num_bytes
from methods.parts.engine_state import EngineState, RegisteredTensors

DROPS = {  # by name: torchvision and timm need not be installed
    "_DropoutNd": "p",
    "RNNBase": "dropout",
    "MultiheadAttention": "dropout",
    "StochasticDepth": "p",
    "DropPath": "drop_prob",
}
"""Layers that drop units with draws from torch's global generator, and their attribute with the probability."""


class Engine:
    """Runs visits. One seat without replay is the reference: it defines what is right; on a CPU others give its bits.

    Others refuse layers that draw from torch's global generator (``require_own_draws``). A ``forward`` that draws from
    it without such a layer is noticed only where steps are recorded on the CPU.

    Args:
        method: the live module, which is also the first seat.
        context: what all visits have in common.
        seats: number of clients that train in turns, one step of each; 1 if clients share an optimiser's state.
        replay: whether steps are recorded and replayed. Lightning callbacks switch it off, since they see every step.

    Raises:
        ConfigError: see ``require_own_draws``.
    """

    def __init__(self, method: FedMethod, context: RunContext, seats: int = 1, replay: bool = False) -> None:
        self.method, self.context = method, context
        # A copy inherits nothing of an earlier run.
        method.generator, method.spread, method._engine = None, serially, EngineState()
        draw_from(method, None)
        copies = [] if seats == 1 or self.sequential else [copy.deepcopy(method) for _ in range(seats - 1)]
        self.initial = method.tensors(*get_args(Scope))
        replay = replay and not context.callbacks
        own_stream = bool(copies) or replay
        self.seats = [Seat(module, context, self.initial, own_stream, replay) for module in (method, *copies)]
        if own_stream:
            require_own_draws(method)
        self.shared_optimizer_state: OptimizerStates = []

    @cached_property
    def sequential(self) -> bool:
        """Whether clients share an optimiser's state, so that all visits must come one after another."""
        with self.hook_context("optimizer_scopes", 0):
            return "shared" in self.method.optimizer_scopes()

    def counts(self) -> dict[str, int]:
        """The number of ``slots``, and of client steps here that were ``captured``, ``replayed`` or taken ``eager``.

        Empty without replay. Steps of optimisers that cannot be recorded are not counted.
        """
        replays = [seat.replay for seat in self.seats if seat.replay is not None]
        steps = {way: sum(replay.taken[way] for replay in replays) for way in ("captured", "replayed", "eager")}
        return {"slots": len(replays), **steps} if replays else {}

    def kept_bytes(self) -> int:
        """Bytes that a client keeps between visits: its personal tensors and the optimiser state that is kept."""
        personal = num_bytes(self.method.tensors("personal"))
        if self.sequential:
            return personal
        before = self.method.tensors(*get_args(Scope))
        with self.hook_context("configure_optimizers", 0):
            optimizers = Fit(self.method, [], 1).optimizers
            for optimizer in optimizers:  # their first step creates what they keep
                for parameter in parameters_of(optimizer):
                    parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
                optimizer.step(lambda: 0.0)
                optimizer.zero_grad()
        self.method.trainer = None
        self.method.load_tensors(before)
        with self.hook_context("optimizer_scopes", 0):
            return personal + sum(tensor.nbytes for tensor in tensors_in(kept_states(self.method, optimizers)))

    def run_visits(
        self, visits: Sequence[Visit], server: Mapping[str, Tensor], kept: MutableMapping[int, ClientState]
    ) -> dict[Visit, VisitResult]:
        """Run visits.

        Args:
            visits: those of this process; a client may have several.
            server: the server's tensors at the beginning of the round.
            kept: what clients have kept from earlier visits; it is updated, unless a visit is left out.

        Raises:
            RunError: whatever the method raises, with the method, client and round.
        """
        results: dict[Visit, VisitResult] = {}
        sent = {visit: self.send(visit, server) for visit in visits}  # while the module is still the server
        if len(self.seats) > 1:
            for together in grouped(visits, len(self.seats)):
                results |= self.run_in_turns({visit: sent[visit] for visit in together}, kept)
            return results
        for visit in visits:
            results[visit], state = self.run_visit(visit, sent[visit], kept.get(visit.client))
            if results[visit].counts:
                kept[visit.client] = state
        return results

    def send(self, visit: Visit, server: Mapping[str, Tensor]) -> Sent:
        """What the method's ``broadcast`` sends to the visited client."""
        with self.hook_context(f"broadcast to client {visit.client}", visit.round):
            sent = self.method.broadcast(server, visit)
            return Sent(sent, index(self.method.sent_bytes(sent, visit)))

    def run_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[VisitResult, ClientState]:
        """Run one visit in the first seat; returns its result and what the client keeps."""
        seat = self.seats[0]
        with self.context.seeded(*stream_of(visit)):
            site, work = seat.begin_visit(visit, sent, self.start_of(state))
            with seat.turn(visit):
                site.fit(work, seat.replay)
            result, state = seat.end_visit(sent)
        if self.sequential:
            if result.counts:
                self.shared_optimizer_state = state.optimizers
            state.optimizers = []
        return result, state

    def start_of(self, state: ClientState | None) -> ClientState:
        """What a client's next visit starts from: what it has kept, and the optimisers' state that clients share."""
        state = state or ClientState()
        return ClientState(state.tensors, state.optimizers or self.shared_optimizer_state)

    def run_in_turns(self, sent: dict[Visit, Sent], kept: MutableMapping[int, ClientState]) -> dict[Visit, VisitResult]:
        """Run visits of different clients, one in each seat; the seats take turns with each step."""
        seats, running, results = self.assign_seats(list(sent)), {}, {}
        for visit, seat in seats.items():
            with self.context.seeded(*stream_of(visit)):
                site, work = seat.begin_visit(visit, sent[visit], kept.get(visit.client))
            running[visit] = site.train(work, seat.replay)
        while running:
            for visit, steps in list(running.items()):
                with seats[visit].turn(visit):
                    if next(steps, "done") == "done":
                        del running[visit]
        for visit, seat in seats.items():
            with self.context.seeded(*stream_of(visit)):
                results[visit], state = seat.end_visit(sent[visit])
            if results[visit].counts:
                kept[visit.client] = state
        return results

    def assign_seats(self, visits: Sequence[Visit]) -> dict[Visit, "Seat"]:
        """A seat for each visit, in the order of the visits.

        Preferred is one that has been a client of the same size, since it has recorded such steps; then the one that
        has met the fewest sizes.
        """
        free, assigned = list(self.seats), dict[Visit, Seat]()
        for visit in visits:
            seat = min(free, key=lambda seat: (visit.size not in seat.sizes, len(seat.sizes)))
            free.remove(seat)
            seat.sizes.add(visit.size)
            assigned[visit] = seat
        return assigned

    def run_server(
        self, round: int, states: OptimizerStates | None, before: bool
    ) -> tuple[VisitResult, OptimizerStates]:
        """Run ``server_step``, at the end of a round or ``before`` the first.

        Args:
            round: its number.
            states: of the optimisers, kept from the server's visit before; ``None``: there was none.
            before: see above.

        Returns:
            the result, without an upload, and the states that the server keeps.
        """
        data, seat = self.context.data.server, self.seats[0]
        visit = self.context.visit(round, streams.SERVER, data, repeat=int(before), first=states is None)
        site = seat.attach(visit, data, states or [])
        with self.context.seeded(*stream_of(visit)), hooks.errors_at(hooks.location(visit), self.method):
            seat.train_mode()
            self.method.server_step(site)
            seat.check_visit()
            return seat.detach(None), site.optimizer_states

    @contextmanager
    def hook_context(self, hook: str, round: int) -> Iterator[None]:
        """Around a hook that runs at no site: a random stream of its own, and errors that name the hook and round."""
        with self.context.seeded(f"torch/{hook}", round), hooks.errors_at(f".{hook}, round {round}", self.method):
            yield
            hooks.in_place(self.method)


class Seat:
    """The method or a copy of it, whose tensors stay at the same place: each client's state is copied into them.

    Args:
        method: the method or the copy; during a visit it is that client.
        context: what all visits have in common.
        initial: the method's tensors at the beginning of the run, by name.
        own_stream: whether it works in a stream of its own on a GPU.
        replay: whether its steps are recorded once and replayed.
    """

    def __init__(
        self, method: FedMethod, context: RunContext, initial: Mapping[str, Tensor], own_stream: bool, replay: bool
    ) -> None:
        self.method, self.context, self.initial = method, context, initial
        device = context.data.device
        self.tally, self.site = Tally(), LocalSite(method, context)
        self.generator = torch.Generator(device=device)
        self.sizes = set[int]()  # of clients that it has been
        method._engine = EngineState(context.fabric.autocast, tensors=RegisteredTensors(method))
        draw_from(method, self.generator)
        if not method.training:  # it was put into evaluation mode after it was built
            method.train()
        self.always_eval = [part for part in method.modules() if not part.training]
        self.frozen = method.names("frozen")
        self.shared = {name: initial[name] for name in method.names("shared")}
        self.accelerator: Any = torch.get_device_module(device) if own_stream and device.type != "cpu" else None
        self.stream = self.accelerator.Stream(device) if self.accelerator else None
        self.replay = Replay(method, self.generator, (self.tally, measured(self.site)), self.stream) if replay else None

    def begin_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[LocalSite, LocalWork]:
        """The copy becomes the client: it loads what was sent and what the client kept, and prepares local work."""
        method, state = self.method, state or ClientState()
        if self.stream is not None:
            self.stream.wait_stream(self.accelerator.current_stream(self.context.data.device))
        with self.turn(visit):
            site = self.attach(visit, self.context.data.client(visit.client), state.optimizers)
            method.load_tensors({**self.initial, **sent.tensors, **state.tensors})
            self.train_mode()
            work = method.local_work(site)
            self.train_mode()
        return site, work

    def end_visit(self, sent: Sent) -> tuple[VisitResult, ClientState]:
        """The client uploads; returns the result of the visit and what the client keeps."""
        method, site = self.method, self.site
        with self.turn(site.visit):
            upload = method.make_upload(site)
            self.check_visit()
            result = self.detach(hooks.upload(upload, self.shared), sent.bytes)
            state = ClientState(method.tensors("personal"), site.optimizer_states)
        if self.stream is not None:
            self.accelerator.current_stream(self.context.data.device).wait_stream(self.stream)
        return result, state

    def attach(self, visit: Visit, data: SiteData, states: OptimizerStates) -> LocalSite:
        """Connect the copy to a visit: its tally, its site, and its generator, freshly seeded.

        Args:
            visit: the visit.
            data: of the site.
            states: that its optimisers start from.

        Returns:
            the site as hooks meet it.
        """
        method = self.method
        self.tally.clear()
        self.site.begin(visit, data, states)
        self.generator.manual_seed(streams.derive_seed(self.context.seed, *stream_of(visit)))
        method.visit, method.generator = visit, self.generator
        method._engine.tally, method._engine.site = self.tally, self.site
        return self.site

    def detach(self, upload: Upload | None, bytes_down: int = 0) -> VisitResult:
        """Disconnect the copy from the visit; returns the result of that.

        Raises:
            RunError: something in it is not finite, and the run, or the server's visit, does not leave it out.
        """
        self.method._engine.tally = self.method._engine.site = self.method.trainer = None
        sums = self.tally.taken() | measured(self.site).taken()
        culprit = not_finite(upload, sums)
        if culprit and (self.site.visit.at_server or not self.context.skips):
            raise RunError(
                f"{culprit} {NOT_FINITE}; lower the learning rate, take masked_mean of methods.parts.tensors for a "
                "mean over a mask that may be empty, or try --precision 32-true if this was mixed precision"
            )
        return VisitResult(upload, sums, bytes_down, self.site.steps, counts=not culprit)

    def train_mode(self) -> None:
        """Training mode for all parts but those that were built in evaluation mode, as in a fit of Lightning's."""
        self.method.train()
        for part in self.always_eval:
            part.training = False

    def check_visit(self) -> None:
        """Refuse a visit that has broken a rule without an error of its own; it then has no result.

        Raises:
            RunError: a registered tensor was replaced, a frozen one was changed, or the method asked about another
                site's images.
        """
        hooks.in_place(self.method)
        registered = self.method.registered()
        for name in self.frozen:
            if not torch.equal(registered[name], self.initial[name]):
                raise RunError(
                    f"{name!r} was changed, but counts as frozen, which is not sent: `scopes` says so, or it came "
                    "without a gradient, or in evaluation mode. Give it another scope in `scopes`"
                )
        self.site._require_own()

    @contextmanager
    def turn(self, visit: Visit) -> Iterator[None]:
        """Within it, work is done on the seat's own stream, if it has one; errors name the method, client and round."""
        stream = nullcontext() if self.stream is None else self.accelerator.stream(self.stream)
        with stream, hooks.errors_at(hooks.location(visit), self.method):
            yield


def require_own_draws(method: FedMethod) -> None:
    """Refuse layers that draw from torch's global generator: all seats share it, and a replay cannot seed it.

    Raises:
        ConfigError: there is one; names it.
    """
    for name, part in method.named_modules():
        for kind in type(part).__mro__:
            if kind.__name__ in DROPS and part.training and getattr(part, DROPS[kind.__name__], True):
                raise ConfigError(
                    f"{name} is a {type(part).__name__}, which draws from torch's global generator: clients in turns "
                    "would share it, and a replay could not seed it. Use --engine reference, a head of the suite's "
                    "own with --model_args.head_dropout, or DropsUnits of methods.models.backbone in your own part: "
                    "these draw from the visit's generator"
                )


def grouped(visits: Sequence[Visit], seats: int) -> Iterator[list[Visit]]:
    """Groups of up to ``seats`` visits of different clients, largest first; a client's visits stay in order."""
    for repeat in sorted({visit.repeat for visit in visits}):
        alike = sorted((v for v in visits if v.repeat == repeat), key=lambda v: (-v.size, v.client))
        for start in range(0, len(alike), seats):
            yield alike[start : start + seats]
