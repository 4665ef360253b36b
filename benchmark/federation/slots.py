"""The slots engine: clients take turns in copies of the method, and a step is recorded once, then replayed.

A slot's tensors never move: the state of a client and of its optimisers is copied into them. So a step that was
recorded for one batch serves every later batch of the same shapes, of any client in any round. On a GPU each slot has a
stream of its own, and a recorded step is a CUDA graph.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmark.federation.fit import Fit
from benchmark.federation.optimizers import cloned, parameters_of
from benchmark.federation.recording import Recording, record
from benchmark.federation.reference import (
    ClientState,
    LocalSite,
    ReferenceEngine,
    RunContext,
    Sent,
    VisitResult,
)
from datamodules.views.batches import Batch, LocalWork
from methods.base import FedMethod, Visit
from methods.models.backbone import draw_from
from methods.models.norm import serially
from methods.parts.engine_state import EngineState

MOST_RECORDINGS = 64  # per slot; further kinds of steps run unrecorded
BETWEEN = ("on_before_batch_transfer", "on_after_batch_transfer", "on_train_batch_start")
SKIPPED = ("params", "lr", "initial_lr")
PLAIN = (bool, int, float, str, tuple, type(None))
_training, _requires_grad = itemgetter("training"), attrgetter("requires_grad")


class SlotsEngine(ReferenceEngine):
    """Trains up to ``slots`` clients at a time, one step of each in turn.

    Args:
        method: the live module, which is also the first slot.
        context: what all visits have in common.
        slots: number of slots, at least 1.
        replay: whether steps are recorded and replayed. Lightning callbacks switch it off, since they see every step.
    """

    def __init__(self, method: FedMethod, context: RunContext, slots: int, replay: bool = True) -> None:
        # A copy inherits nothing of an earlier run.
        method.generator, method.spread, method._engine = None, serially, EngineState()
        draw_from(method, None)
        copies = [copy.deepcopy(method) for _ in range(slots - 1)]
        super().__init__(method, context)
        replay = replay and not context.callbacks
        self.slots = [Slot(self, replay)]
        for one in [] if self.sequential else copies:  # an optimiser's state that all clients share is in one slot
            engine = ReferenceEngine(one, context)
            engine.initial, engine.shared = self.initial, self.shared  # never changed, so shared
            self.slots.append(Slot(engine, replay))

    def ended_visits(
        self, sent: Mapping[Visit, Sent], kept: MutableMapping[int, ClientState]
    ) -> Iterator[tuple[Visit, VisitResult]]:
        """As in the reference engine, but in groups; a client's second visit begins after its first has ended.

        If clients share an optimiser's state, there is one visit at a time, and one slot.
        """
        alone = ([visit] for visit in sent)
        for together in alone if self.sequential else grouped(list(sent), len(self.slots)):
            taken = self.assign_slots(together)
            for slot, visit in taken.items():
                with slot.on_stream():  # what comes from the host waits for no other slot
                    state = kept.get(visit.client)
                slot.begin_visit(visit, sent[visit], state)
            walks = [slot.train() for slot in taken]
            while walks:
                walks = [walk for walk in walks if next(walk, "done") != "done"]
            for slot, visit in taken.items():
                result, kept[visit.client] = slot.end_visit()
                yield visit, result
                del result

    def assign_slots(self, together: Sequence[Visit]) -> dict["Slot", Visit]:
        """A slot for each visit, in the order of the visits.

        Preferred is one that has trained a client of the same size, since it has recorded such steps; then the one that
        has met the fewest sizes.
        """
        taken: dict[Slot, Visit] = {}
        for visit in together:
            known = [slot for slot in self.slots if slot not in taken and visit.size in slot.sizes]
            taken |= {slot: visit for slot in known[:1]}
        free = sorted((slot for slot in self.slots if slot not in taken), key=lambda slot: len(slot.sizes))
        taken |= zip(free, [visit for visit in together if visit not in taken.values()], strict=False)
        for slot, visit in taken.items():
            slot.sizes.add(visit.size)
        return dict(sorted(taken.items(), key=lambda pair: together.index(pair[1])))

    def counts(self) -> dict[str, int]:
        """Client steps in this process so far: how many were ``captured``, ``replayed`` or taken ``eager``.

        Beside them the number of ``slots``, and of ``forms`` of batches.
        """
        forms = {form for slot in self.slots for form in slot.forms}
        ways = {way: sum(slot.taken[way] for slot in self.slots) for way in ("captured", "replayed", "eager")}
        return {"slots": len(self.slots), "forms": len(forms), **ways}


class Slot:
    """A copy of the method whose tensors stay at the same place.

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
        self.held: list[Any] = []  # the numbers in ``rates``
        self.parts = [own for part in engine.method.modules() if "training" in (own := vars(part))]
        self.parameters = list(engine.method.parameters())
        self.settled: dict[Any, int] = {}  # numbers for settings of optimisers and modes of modules
        self.met: Counter[Any] = Counter()
        self.recorded: dict[Any, RecordedStep] = {}
        self.forms, self.sizes = set[Any](), set[int]()  # of batches met, and of clients trained
        self.taken = Counter[str]()

    def begin_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> None:
        """The copy becomes the client and prepares its local work."""
        if self.stream is not None:
            self.stream.wait_stream(self.accelerator.current_stream(self.device))
        with self.on_stream(), self.engine.seeded(visit):
            self.sent = sent
            self.site, self.work = self.engine.begin_visit(visit, sent, state)

    def train(self) -> Iterator[None]:
        """Take all steps of the visit; yields after each."""
        site: LocalSite = self.site
        work: LocalWork = self.work
        with self.on_stream(), self.engine.error_context(site):
            fit = site.prepare_fit(len(work))
            step = self.step(fit) if self.use_own_state(fit) else fit.step
            walk = fit.run(len(work), lambda number: site.batches(work, number), step)
        while True:
            with self.on_stream(), self.engine.error_context(site):
                if next(walk, "done") == "done":
                    break
            yield
        with self.on_stream(), self.engine.error_context(site):
            site.keep(fit)
            site.optimizer_states = [[cloned(state) for state in own] for own in site.optimizer_states]

    def end_visit(self) -> tuple[VisitResult, ClientState]:
        """The client uploads; returns the result of the visit and what the client keeps."""
        with self.on_stream(), self.engine.seeded(self.site.visit):
            left = self.engine.end_visit(self.site, self.sent)
        if self.stream is not None:
            self.accelerator.current_stream(self.device).wait_stream(self.stream)
        return left

    def use_own_state(self, fit: Fit) -> bool:
        """Keep the optimisers' state in the slot's tensors; returns whether their steps can be recorded."""
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
        """Write learning rates into the slot's tensors, where recorded steps read them."""
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
        """Within it, parameter groups have the slot's tensors as rates; hooks otherwise see numbers."""
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
        """A function that numbers the present settings: optimisers' options, modes of modules, ``requires_grad``."""
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
        """How a visit takes its steps: a new kind of step eagerly, the second one recorded, all further ones replayed.

        A step that changes a setting which its recording would freeze is never recorded. ``on_train_batch_end`` is part
        of the recorded step, so schedules move after it; elsewhere they move before it.
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
            elif self.met[key] and len(self.recorded) < MOST_RECORDINGS:
                with self.own_rates(groups):
                    self.recorded[key] = RecordedStep(unit, batch, self, fit)
                self.taken["captured"] += 1
            else:
                before = numbers(fit)
                unit(batch)
                self.adopt_state(fit)
                same = self.met[key] > 0 or numbers(fit) == before
                self.taken["eager"] += 1
                self.forms.add(key[1])
            if same:
                self.met[key] += 1
            fit.advance_schedules("step")

        return take

    def adopt_state(self, fit: Fit) -> None:
        """Make the state tensors that an optimiser has created the slot's own."""
        for optimizer in fit.optimizers:
            for parameter in parameters_of(optimizer):
                state = optimizer.state.get(parameter)
                if state and parameter not in self.states:
                    self.states[parameter] = {k: v for k, v in state.items() if isinstance(v, Tensor)}

    def on_stream(self) -> AbstractContextManager[Any]:
        """On a GPU, the context of the slot's stream."""
        return nullcontext() if self.stream is None else self.accelerator.stream(self.stream)


class RecordedStep:
    """A recorded step, for batches of one form.

    Args:
        step: takes the step.
        batch: the batch on which the step is recorded.
        slot: the slot that it runs in.
        fit: the fit of the visit in which it is recorded.
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
        """Take the step on another batch of the same form."""
        torch._foreach_copy_(self.places, [value for fields in batch.values() for value in fields.values()])
        self.recording.replay()
        for tally, names in zip((engine.tally, engine.hidden), self.logged, strict=True):
            tally.touched.update(names)
        fit.trainer.global_step += self.optimizer_steps
        for optimizer in fit.optimizers:
            setattr(optimizer, "_opt_called", True)  # noqa: B010  # else a scheduler warns that no step was taken


def grouped(visits: Sequence[Visit], slots: int) -> Iterator[list[Visit]]:
    """Groups of up to ``slots`` visits of different clients, largest first; a client's visits stay in order."""
    for repeat in sorted({visit.repeat for visit in visits}):
        alike = sorted((v for v in visits if v.repeat == repeat), key=lambda v: (-v.size, v.client))
        for start in range(0, len(alike), slots):
            yield alike[start : start + slots]


def changes_between_steps(fit: Fit) -> bool:
    """Whether a hook or a schedule that runs between steps may change how a step is taken."""
    own = type(fit.method)
    return bool(fit.schedules) or any(getattr(own, hook) is not getattr(FedMethod, hook) for hook in BETWEEN)


def form(batch: Batch) -> tuple[Any, ...]:
    """The form of a batch: its streams, fields, shapes, types and strides."""
    return tuple((s, f, v.shape, v.dtype, v.stride()) for s, fields in batch.items() for f, v in fields.items())


def recordable(optimizer: Optimizer) -> bool:
    """Whether an optimiser reads all that changes from tensors, and starts from a state of zeros."""
    known = type(optimizer) in (SGD, Adam, AdamW)
    return known and all(group.get("fused") and not group.get("dampening") for group in optimizer.param_groups)


def numbers(fit: Fit) -> tuple[Any, ...]:
    """What a recorded step must not change: settings and rates of optimisers, positions of schedules."""
    optimizers, schedules = fit.optimizers, fit.schedules
    rates = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    places = [getattr(one.scheduler, "last_epoch", None) for one in schedules]
    return [settings(optimizer) for optimizer in optimizers], rates, places


def settings(optimizer: Optimizer) -> tuple[Any, ...]:
    """An optimiser's options, without its tensors and rates."""
    return type(optimizer), *(
        (k, v if isinstance(v, PLAIN) else str(v))
        for group in optimizer.param_groups
        for k, v in group.items()
        if k not in SKIPPED
    )


def _rate(device: torch.device) -> Tensor:
    """A tensor for a learning rate, in the type that fused kernels read: float64 on the CPU, float32 on a GPU."""
    return torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
