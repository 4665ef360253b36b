"""The slots engine: copies of the method that clients take turns in; a step is recorded once and replayed from then on.

A slot's tensors never move: the state of a client, and of its optimisers, is copied into them. So a step that was
recorded for one client's batch serves every later batch of the same shapes, in every client and round. On a GPU each
slot has a stream of its own, and a recorded step is a CUDA graph.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter, itemgetter
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmark.federation.fit import Fit
from benchmark.federation.optimizers import parameters_of
from benchmark.federation.recording import Recording, record
from benchmark.federation.reference import (
    ClientState,
    LocalSite,
    OnVisitEnd,
    ReferenceEngine,
    RunContext,
    Sent,
    VisitResult,
)
from datamodules.common.errors import ConfigError
from datamodules.common.memory import available_bytes
from datamodules.views.batches import Batch, LocalWork
from methods.base import FedMethod, Visit
from methods.models.backbone import draw_from
from methods.models.norm import serially
from methods.parts.aggregation import num_bytes

AUTO = 8  # slots that are made without being asked for, at most: beyond these, nobody has measured a gain
SHARE = 0.8  # of the memory that is left, for these; batches of other shapes and what clients upload need some, too
MOST_RECORDINGS = 64  # per slot; steps of further kinds run unrecorded, the rarest ones
BETWEEN = ("on_before_batch_transfer", "on_after_batch_transfer", "on_train_batch_start")
SKIPPED = ("params", "lr", "initial_lr")
PLAIN = (bool, int, float, str, tuple, type(None))
_training, _requires_grad = itemgetter("training"), attrgetter("requires_grad")


class SlotsEngine(ReferenceEngine):
    """Runs visits in up to ``slots`` clients at a time, one step of each in turn.

    Args:
        method: the live module, which is also the first slot.
        context: what all visits share.
        slots: copies of the method, at least 1. ``auto``: on a GPU as many as have room, at most ``AUTO``, by what the
            largest client of the first round takes in the first one; on a CPU, where they bring nothing, one.
        replay: whether steps are recorded and replayed; Lightning callbacks switch it off, since they see every step.

    Raises:
        ConfigError: ``slots`` is not positive.
    """

    def __init__(
        self, method: FedMethod, context: RunContext, slots: int | Literal["auto"], replay: bool = True
    ) -> None:
        self.device = context.data.device
        grows, number = slots == "auto" and self.device.type != "cpu", 1 if slots == "auto" else slots
        if number < 1:
            raise ConfigError(f"slots={slots}: at least one client trains at a time")
        method.generator, method.loss_scaler = None, None  # nothing of an earlier run
        method.spread, method.precision = serially, nullcontext
        draw_from(method, None)
        copies = [copy.deepcopy(method) for _ in range(number - 1)]
        self.spare = copy.deepcopy(method) if grows else None  # of which further slots are made
        super().__init__(method, context)
        self.replay = replay and not context.callbacks
        self.slots = [Slot(self, self.replay)]
        self.add_slots(copies)

    def add_slots(self, copies: Sequence[FedMethod]) -> None:
        """Let clients train in these copies of the method, too."""
        for one in copies:
            engine = ReferenceEngine(one, self.context)
            engine.initial, engine.shared = self.initial, self.shared  # nobody changes them: once is enough
            self.slots.append(Slot(engine, self.replay))

    def visits(
        self,
        visits: Sequence[Visit],
        server: Mapping[str, Tensor],
        kept: MutableMapping[int, ClientState],
        on_visit_end: OnVisitEnd = lambda visit, outcome: outcome,
    ) -> dict[tuple[int, int], VisitResult]:
        """As in the reference engine; the second visit of a client begins after the first has ended.

        Where visits hand on the state of an optimiser, there is one at a time.
        """
        results: dict[tuple[int, int], VisitResult] = {}
        sent = {(visit.client, visit.repeat): self.sent(visit, server) for visit in visits}  # while it is the server
        for together in [[visit] for visit in visits] if self.sequential else self.turns(visits):
            taken = self.seats(together)
            for slot, visit in taken.items():
                with slot.on_stream():  # what comes from the host is the stream's, and waits for no other client
                    state = kept.get(visit.client)
                slot.begin_visit(visit, sent[visit.client, visit.repeat], state)
            walks = [slot.train() for slot in taken]
            while walks:
                walks = [walk for walk in walks if next(walk, "done") != "done"]
            for slot, visit in taken.items():
                outcome, kept[visit.client] = slot.end_visit()
                results[visit.client, visit.repeat] = on_visit_end(visit, outcome)
                del outcome
        return results

    def turns(self, visits: Sequence[Visit]) -> Iterator[list[Visit]]:
        """Groups of visits that go on together; the first one shows how many slots there are, where that is open."""
        rest = list(visits)
        if rest and (spare := self.spare) is not None:
            self.spare, before = None, available_bytes(self.device)
            (largest,) = first = next(in_turns(rest, 1))
            yield first
            rest.remove(largest)
            after = available_bytes(self.device)
            own = num_bytes(spare.registered())
            more = 0 if before is None or after is None else more_slots(after, max(before - after, 0) + own)
            more = min(more, self.context.data.num_clients - 1)
            self.add_slots([spare, *(copy.deepcopy(spare) for _ in range(more - 1))][:more])
        yield from in_turns(rest, len(self.slots))

    def seats(self, together: Sequence[Visit]) -> dict["Slot", Visit]:
        """A slot for each visit: one that has trained a client of that size, where it is free, for it has recorded such
        steps; else the one that has met the fewest sizes.
        """
        taken: dict[Slot, Visit] = {}
        for visit in together:
            known = [slot for slot in self.slots if slot not in taken and visit.size in slot.sizes]
            taken |= {slot: visit for slot in known[:1]}
        free = sorted((slot for slot in self.slots if slot not in taken), key=lambda slot: len(slot.sizes))
        taken |= zip(free, [visit for visit in together if visit not in taken.values()], strict=False)
        for slot, visit in taken.items():
            slot.sizes.add(visit.size)
        return taken

    def counts(self) -> dict[str, int]:
        """Steps of clients so far, in this process: in how many ``slots``, the ``forms`` of their batches, and how many
        steps were ``captured``, ``replayed`` or taken ``eager``.
        """
        forms = {form for slot in self.slots for form in slot.forms}
        ways = {way: sum(slot.taken[way] for slot in self.slots) for way in ("captured", "replayed", "eager")}
        return {"slots": len(self.slots), "forms": len(forms), **ways}


class Slot:
    """A copy of the method with tensors that stay where they are.

    Args:
        engine: runs visits in the copy.
        replay: whether steps are recorded and replayed.
    """

    def __init__(self, engine: ReferenceEngine, replay: bool) -> None:
        self.engine, self.replay = engine, replay
        self.device = engine.context.data.device
        self.accelerator: Any = None if self.device.type == "cpu" else torch.get_device_module(self.device)
        self.stream = self.accelerator.Stream(self.device) if self.accelerator else None
        self.pool = self.accelerator.graph_pool_handle() if self.accelerator else None  # recordings run one at a time
        self.states: dict[Tensor, dict[str, Any]] = {}
        self.rates: list[Tensor] = []
        self.held: list[Any] = []  # the numbers in these tensors
        self.parts = [vars(part) for part in engine.method.modules()]
        self.parameters = list(engine.method.parameters())
        self.settled: dict[Any, int] = {}  # settings of optimisers and modes of parts, numbered
        self.met: Counter[Any] = Counter()
        self.recorded: dict[Any, RecordedStep] = {}
        self.forms, self.sizes = set[Any](), set[int]()  # of batches, and of clients' data
        self.taken = Counter[str]()

    def begin_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> None:
        """The copy becomes the client and prepares its work."""
        if self.stream is not None:
            self.stream.wait_stream(self.accelerator.current_stream(self.device))
        with self.on_stream(), self.engine.seeded(visit):
            self.sent = sent
            self.site, self.work = self.engine.begin_visit(visit, sent, state)

    def train(self) -> Iterator[None]:
        """Take all steps of the visit, and pause after each."""
        site: LocalSite = self.site
        work: LocalWork = self.work
        with self.on_stream(), self.engine.error_context(site):
            fit = site.prepare_fit(len(work))
            step = self.step(fit) if self.settle(fit) else fit.step
            walk = fit.run(len(work), lambda number: site.batches(work, number), step)
        while True:
            with self.on_stream(), self.engine.error_context(site):
                if next(walk, "done") == "done":
                    break
            yield
        with self.on_stream(), self.engine.error_context(site):
            site.keep(fit)
            site.optimizer_states = copied(site.optimizer_states)

    def end_visit(self) -> tuple[VisitResult, ClientState]:
        """What the trained client leaves behind."""
        with self.on_stream(), self.engine.seeded(self.site.visit):
            left = self.engine.end_visit(self.site, self.sent)
        if self.stream is not None:
            self.accelerator.current_stream(self.device).wait_stream(self.stream)
        return left

    def settle(self, fit: Fit) -> bool:
        """Give the optimisers of a visit the slot's own state tensors; whether steps of theirs can be recorded."""
        if not self.replay or not all(map(recordable, fit.optimizers)):
            return False
        for optimizer in fit.optimizers:
            for parameter in parameters_of(optimizer):
                own = self.states.get(parameter)
                if own is None:
                    continue
                brought = optimizer.state.get(parameter)
                for name, tensor in own.items():
                    tensor.copy_(brought[name]) if brought else tensor.zero_()
                optimizer.state[parameter] = dict(own)
        return True

    def write_rates(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Write the rates of parameter groups into the slot's own tensors, where recorded steps read them."""
        while len(self.rates) < len(groups):
            self.rates.append(_rate(self.device))
            self.held.append(None)
        for number, group in enumerate(groups):
            rate = group["lr"]
            if isinstance(rate, Tensor) or rate != self.held[number]:
                self.rates[number].fill_(rate)
                self.held[number] = rate

    @contextmanager
    def own_rates(self, groups: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Meanwhile the groups have the slot's own tensors for rates; hooks meet numbers."""
        self.write_rates(groups)
        given = [group["lr"] for group in groups]
        for group, rate in zip(groups, self.rates, strict=False):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, rate in zip(groups, given, strict=True):
                group["lr"] = rate

    def settings(self, fit: Fit) -> Callable[[], int]:
        """Gives a number for what is set at the moment: numbers of optimisers, who trains, who gets gradients."""
        groups = [group for optimizer in fit.optimizers for group in optimizer.param_groups]
        getters = [itemgetter(*(name for name in group if name not in SKIPPED)) for group in groups]
        before, number = None, 0

        def look() -> int:
            nonlocal before, number
            now = (
                [get(group) for get, group in zip(getters, groups, strict=True)],
                [*map(_training, self.parts)],
                [*map(_requires_grad, self.parameters)],
            )
            if now != before:
                key = *map(settings, fit.optimizers), *now[1], *now[2]
                before, number = now, self.settled.setdefault(key, len(self.settled))
            return number

        return look

    def step(self, fit: Fit) -> Any:
        """How a visit takes its steps: eagerly where a kind of step is new, then recording, then by replay.

        A step that itself changes what its recording would hold fast, as one that moves a schedule, is never recorded.
        ``on_train_batch_end`` is part of the step, so a schedule moves after it; elsewhere it moves before.
        """

        groups = [group for optimizer in fit.optimizers for group in optimizer.param_groups]
        look, restless = self.settings(fit), changes_between_steps(fit)
        settled, epoch = 0, -1

        def unit(batch: Batch) -> None:
            outputs = fit.compute(batch, fit.batch_idx)
            fit.trainer.call("on_train_batch_end", outputs, batch, fit.batch_idx)

        def take(batch: Batch, number: int) -> None:
            nonlocal settled, epoch
            same = True
            if restless or epoch != fit.trainer.current_epoch:
                settled, epoch = look(), fit.trainer.current_epoch
            key = settled, form(batch)
            recorded = self.recorded.get(key)
            if recorded is not None:
                self.write_rates(groups)
                recorded.replay(batch, self.engine, fit)
                self.taken["replayed"] += 1
            elif self.met[key] and self.has_room(key):
                with self.own_rates(groups):
                    self.recorded[key] = RecordedStep(unit, batch, self, fit)
                self.taken["captured"] += 1
            else:
                before = numbers(fit)
                unit(batch)
                self.adopt(fit)
                same = self.met[key] > 0 or numbers(fit) == before
                self.taken["eager"] += 1
                self.forms.add(key[1])
            if same:
                self.met[key] += 1
            fit.advance_schedules("step")

        return take

    def has_room(self, key: Any) -> bool:
        """Whether another kind of step can be recorded; the rarest one gives way to one that is more frequent."""
        if len(self.recorded) < MOST_RECORDINGS:
            return True
        rarest = min(self.recorded, key=self.met.__getitem__)
        if self.met[rarest] >= self.met[key]:
            return False
        del self.recorded[rarest]
        return True

    def adopt(self, fit: Fit) -> None:
        """Keep the state tensors that an optimiser has made; they are the slot's from now on."""
        for optimizer in fit.optimizers:
            for parameter in parameters_of(optimizer):
                state = optimizer.state.get(parameter)
                if state and parameter not in self.states:
                    self.states[parameter] = {k: v for k, v in state.items() if isinstance(v, Tensor)}

    def on_stream(self) -> AbstractContextManager[Any]:
        """The slot's stream on a GPU."""
        return nullcontext() if self.stream is None else self.accelerator.stream(self.stream)


class RecordedStep:
    """A step on batches of one form.

    Args:
        step: takes it.
        batch: the batch that it is taken on while it is recorded.
        slot: where.
        fit: of the visit that it is part of.
    """

    def __init__(self, step: Any, batch: Batch, slot: Slot, fit: Fit) -> None:
        engine, taken = slot.engine, fit.trainer.global_step
        self.inputs = {name: {f: value.clone() for f, value in fields.items()} for name, fields in batch.items()}
        self.places = [value for fields in self.inputs.values() for value in fields.values()]
        tallies = (engine.tally, engine.hidden)
        before = [dict(tally.touched) for tally in tallies]
        for tally in tallies:
            tally.touched.clear()
        self.recording: Recording = record(
            lambda: step(self.inputs), slot.device, [engine.generator], slot.stream, slot.pool
        )
        self.optimizer_steps = fit.trainer.global_step - taken
        self.logged = [dict(tally.touched) for tally in tallies]
        for tally, names in zip(tallies, before, strict=True):
            tally.touched.update(names)

    def replay(self, batch: Batch, engine: ReferenceEngine, fit: Fit) -> None:
        """Take the step on another batch of the same form, in any visit."""
        torch._foreach_copy_(self.places, [value for fields in batch.values() for value in fields.values()])
        self.recording.replay()
        for tally, names in zip((engine.tally, engine.hidden), self.logged, strict=True):
            tally.touched.update(names)
        fit.trainer.global_step += self.optimizer_steps
        for optimizer in fit.optimizers:
            setattr(optimizer, "_opt_called", True)  # noqa: B010  # else a scheduler warns that none came


def more_slots(free: int, each: int) -> int:
    """How many slots fit beside the first one, into ``SHARE`` of what is free.

    Args:
        free: bytes that are left after a visit in the first slot.
        each: bytes that a slot takes.
    """
    return min(AUTO - 1, int(SHARE * free / max(each, 1)))


def in_turns(visits: Sequence[Visit], slots: int) -> Iterator[list[Visit]]:
    """Groups of up to ``slots`` visits of different clients; a client's visits stay in order, larger ones are first."""
    for repeat in sorted({visit.repeat for visit in visits}):
        alike = sorted((v for v in visits if v.repeat == repeat), key=lambda v: (-v.size, v.client))
        for start in range(0, len(alike), slots):
            yield alike[start : start + slots]


def changes_between_steps(fit: Fit) -> bool:
    """Whether code that runs between the steps of an epoch may change how a step is taken: a hook, or a schedule."""
    own = type(fit.method)
    return bool(fit.schedules) or any(getattr(own, hook) is not getattr(FedMethod, hook) for hook in BETWEEN)


def form(batch: Batch) -> tuple[Any, ...]:
    """Streams, fields, shapes and types of a batch."""
    return tuple((s, f, v.shape, v.dtype, v.stride()) for s, fields in batch.items() for f, v in fields.items())


def recordable(optimizer: Optimizer) -> bool:
    """Whether an optimiser's steps read everything that changes from tensors, and its fresh state is all zeros."""
    known = type(optimizer) in (SGD, Adam, AdamW)
    return known and all(group.get("fused") and not group.get("dampening") for group in optimizer.param_groups)


def numbers(fit: Fit) -> tuple[Any, ...]:
    """What a step that is recorded may not change: settings and rates of optimisers, places of schedules."""
    optimizers, schedules = fit.optimizers, fit.schedules
    rates = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    places = [getattr(one.scheduler, "last_epoch", None) for one in schedules]
    return [settings(optimizer) for optimizer in optimizers], rates, places


def settings(optimizer: Optimizer) -> tuple[Any, ...]:
    """An optimiser's numbers that are no tensors."""
    return type(optimizer), *(
        (k, v if isinstance(v, PLAIN) else str(v))
        for group in optimizer.param_groups
        for k, v in group.items()
        if k not in SKIPPED
    )


def copied(states: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Optimiser states in tensors of their own."""
    return [
        [{k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()} for state in own] for own in states
    ]


def _rate(device: torch.device) -> Tensor:
    """A learning rate that a fused kernel reads: in double precision on the CPU, as the kernel wants it on a GPU."""
    return torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
