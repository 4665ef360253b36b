"""The engine: clients train in seats, one after another or in turns, and the server in the first of them."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from operator import index
from typing import Any, get_args

from torch import Tensor

from benchmark.federation import hooks
from benchmark.federation.fit import Fit
from benchmark.federation.metrics import Sums
from benchmark.federation.optimizers import OptimizerStates, kept_states
from benchmark.federation.seat import Seat
from benchmark.federation.site import ClientState, RunContext, Sent, VisitResult, stream_of
from datamodules.common.streams import SERVER
from datamodules.partition.sites import true_labels
from methods.base import FedMethod, Scope, Tally, Upload, Visit
from methods.models.backbone import draw_from
from methods.models.norm import serially
from methods.parts.aggregation import num_bytes
from methods.parts.engine_state import EngineState

OnVisitEnd = Callable[[Visit, VisitResult], VisitResult]
"""Called with the result of each visit as soon as it has ended; returns the result to keep."""


class Engine:
    """Runs visits. One seat without replay is the reference: it defines what is right, and others give the same bits.

    Args:
        method: the live module, which is also the first seat.
        context: what all visits have in common.
        seats: number of clients that train in turns, one step of each; 1 if clients share an optimiser's state.
        replay: whether steps are recorded and replayed. Lightning callbacks switch it off, since they see every step.
    """

    def __init__(self, method: FedMethod, context: RunContext, seats: int = 1, replay: bool = False) -> None:
        self.method, self.context = method, context
        # A copy inherits nothing of an earlier run.
        method.generator, method.spread, method._engine = None, serially, EngineState()
        draw_from(method, None)
        copies = [] if seats == 1 or self.sequential else [copy.deepcopy(method) for _ in range(seats - 1)]
        self.initial = method.tensors(*get_args(Scope))
        self.replays = replay and not context.callbacks
        own_stream = bool(copies) or self.replays
        self.seats = [Seat(one, context, self.initial, own_stream, self.replays) for one in (method, *copies)]
        self.shared_optimizer_state: OptimizerStates = []

    @cached_property
    def sequential(self) -> bool:
        """Whether clients share an optimiser's state, so that all visits must come one after another."""
        with self.hook_context("optimizer_scopes", 0):
            return "shared" in self.method.optimizer_scopes()

    def counts(self) -> dict[str, int]:
        """Client steps in this process so far: how many were ``captured``, ``replayed`` or taken ``eager``.

        Beside them the number of ``slots``, and of ``forms`` of batches. Empty without replay.
        """
        replays = [seat.replay for seat in self.seats if seat.replay is not None]
        forms = {form for one in replays for form in one.forms}
        ways = {way: sum(one.taken[way] for one in replays) for way in ("captured", "replayed", "eager")}
        return {"slots": len(replays), "forms": len(forms), **ways} if replays else {}

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
        """Run visits.

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
        for visit, result in self.in_turn(sent, kept) if len(self.seats) == 1 else self.in_turns(sent, kept):
            results[visit.client, visit.repeat] = on_visit_end(visit, result)
            del result  # its tensors may be given up before the next visit
        return results

    def send(self, visit: Visit, server: Mapping[str, Tensor]) -> Sent:
        """What the method's ``broadcast`` sends to the visited client."""
        with self.hook_context("broadcast to", visit.round, visit):
            sent = hooks.tensors(self.method.broadcast(server, visit), self.initial, "broadcast")
            return Sent(sent, index(self.method.sent_bytes(sent, visit)))

    def in_turn(
        self, sent: Mapping[Visit, Sent], kept: MutableMapping[int, ClientState]
    ) -> Iterator[tuple[Visit, VisitResult]]:
        """Run visits to which this was sent in order; yields each with its result as soon as it has ended."""
        for visit, tensors in sent.items():
            result, kept[visit.client] = self.run_visit(visit, tensors, kept.get(visit.client))
            yield visit, result
            del result

    def run_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[VisitResult, ClientState]:
        """Run one visit in the first seat; returns its result and what the client keeps."""
        seat = self.seats[0]
        with self.context.seeded(*stream_of(visit)):
            site, work = seat.begin_visit(visit, sent, self.start_of(state))
            with seat.turn(visit):
                for _ in seat.train(site, work):
                    pass
            result, left = seat.end_visit(site, sent)
        if self.sequential:
            self.shared_optimizer_state, left = left.optimizers, ClientState(left.tensors)
        return result, left

    def start_of(self, state: ClientState | None) -> ClientState:
        """What a client's next visit starts from: what it has kept, and the optimisers' state that clients share."""
        state = state or ClientState()
        return ClientState(state.tensors, state.optimizers or self.shared_optimizer_state)

    def in_turns(
        self, sent: Mapping[Visit, Sent], kept: MutableMapping[int, ClientState]
    ) -> Iterator[tuple[Visit, VisitResult]]:
        """As ``in_turn``, but seats take turns with each step; a client's second visit begins after its first."""
        for together in grouped(list(sent), len(self.seats)):
            taken = self.assign_seats(together)
            begun = {}
            for seat, visit in taken.items():
                with seat.on_stream():  # what comes from the host waits for no other seat
                    state = kept.get(visit.client)
                with self.context.seeded(*stream_of(visit)):
                    begun[seat] = seat.begin_visit(visit, sent[visit], state)
            walks = {seat: seat.train(site, work) for seat, (site, work) in begun.items()}
            while walks:
                walks = {seat: steps for seat, steps in walks.items() if seat.goes_on(steps, taken[seat])}
            for seat, visit in taken.items():
                with self.context.seeded(*stream_of(visit)):
                    result, kept[visit.client] = seat.end_visit(begun[seat][0], sent[visit])
                yield visit, result
                del result

    def assign_seats(self, together: Sequence[Visit]) -> dict[Seat, Visit]:
        """A seat for each visit, in the order of the visits.

        Preferred is one that has been a client of the same size, since it has recorded such steps; then the one that
        has met the fewest sizes.
        """
        taken: dict[Seat, Visit] = {}
        for visit in together:
            known = [seat for seat in self.seats if seat not in taken and visit.size in seat.sizes]
            taken |= {seat: visit for seat in known[:1]}
        free = sorted((seat for seat in self.seats if seat not in taken), key=lambda seat: len(seat.sizes))
        taken |= zip(free, [visit for visit in together if visit not in taken.values()], strict=False)
        for seat, visit in taken.items():
            seat.sizes.add(visit.size)
        return dict(sorted(taken.items(), key=lambda pair: together.index(pair[1])))

    def run_server(self, round: int, state: ClientState | None, first: bool) -> tuple[VisitResult, ClientState]:
        """Run ``server_step``, before the first round (``first``) or after an aggregation.

        Returns:
            the result, without an upload, and what the server keeps.
        """
        data, seat = self.context.data.server, self.seats[0]
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
        site = seat.site(data, visit, state.optimizers if state else [])
        seat.attach(visit)
        with self.context.seeded(*stream_of(visit)), hooks.errors_at(hooks.location(visit), self.method):
            seat.train_mode()
            self.method.server_step(site)
            seat.check_visit()
        return VisitResult(None, seat.detach(), 0, site.steps), ClientState({}, site.optimizer_states)

    def aggregate(self, uploads: Sequence[Upload], round: int) -> Sums:
        """The server aggregates uploads into its next model; returns what it logged."""
        tally = self.method._engine.tally = Tally()
        with self.hook_context("aggregate", round):
            self.method.aggregate(uploads)
        self.method._engine.tally = None
        return tally.taken()

    @contextmanager
    def hook_context(self, hook: str, round: int, visit: Visit | None = None) -> Iterator[None]:
        """Around a hook that runs at no site: a random stream of its own, and errors that name the hook and round.

        With a ``visit``, its client belongs to the name of the hook and of the stream.
        """
        if visit is not None:
            hook = f"{hook} client {visit.client}"
        with (
            self.context.seeded(f"torch/{hook}", round),
            hooks.errors_at(f".{hook}, round {round}", self.method),
        ):
            yield
            hooks.in_place(self.method)


def grouped(visits: Sequence[Visit], seats: int) -> Iterator[list[Visit]]:
    """Groups of up to ``seats`` visits of different clients, largest first; a client's visits stay in order."""
    for repeat in sorted({visit.repeat for visit in visits}):
        alike = sorted((v for v in visits if v.repeat == repeat), key=lambda v: (-v.size, v.client))
        for start in range(0, len(alike), seats):
            yield alike[start : start + seats]


def _state_names(group: Mapping[str, Any]) -> Sequence[str]:
    """Optimiser state of the shape of a parameter: Adam keeps two tensors, SGD with momentum one."""
    return ("exp_avg", "exp_avg_sq") if "betas" in group else ("momentum_buffer",) if group.get("momentum") else ()
