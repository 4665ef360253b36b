"""Steps of a seat that are recorded once, then replayed.

A seat's tensors never move: the state of a client and of its optimisers is copied into them. So a step that was
recorded for one batch serves every later batch of the same shapes, of any client in any round. On a GPU a recorded step
is a CUDA graph.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmark.federation.fit import Fit, parameters_of
from benchmark.federation.recording import Recording, record
from datamodules.views.batches import Batch
from methods.base import FedMethod, Tally

MOST_RECORDINGS = 64  # per seat; further kinds of steps run unrecorded
BETWEEN = ("on_before_batch_transfer", "on_after_batch_transfer", "on_train_batch_start")
SKIPPED = ("params", "lr", "initial_lr")
PLAIN = (bool, int, float, str, tuple, type(None))


class Replay:
    """How the visits of a seat take their steps: new kinds eagerly, the second of a kind recorded, the rest replayed.

    Args:
        method: the seat's copy.
        generator: what its steps draw from.
        tallies: what its steps log to.
        stream: the seat's own, on a GPU.
    """

    def __init__(self, method: FedMethod, generator: torch.Generator, tallies: Sequence[Tally], stream: Any) -> None:
        self.device = generator.device
        self.generator, self.tallies, self.stream = generator, tallies, stream
        on_cpu = self.device.type == "cpu"
        self.pool = None if on_cpu else torch.get_device_module(self.device).graph_pool_handle()  # one graph at a time
        self.states: dict[Tensor, dict[str, Any]] = {}
        self.rates: list[Tensor] = []
        self.held: list[Any] = []  # the numbers in ``rates``
        self.parts = [own for part in method.modules() if "training" in (own := vars(part))]
        self.parameters = list(method.parameters())
        self.settled: dict[Any, int] = {}  # numbers for settings of optimisers and modes of modules
        self.met: Counter[Any] = Counter()
        self.recorded: dict[Any, RecordedStep] = {}
        self.forms = set[Any]()  # of batches met
        self.taken = Counter[str]()

    def begin(self, fit: Fit) -> Callable[[Batch, int], None] | None:
        """How a visit takes its steps; ``None``: its optimisers' steps cannot be recorded."""
        if not all(map(recordable, fit.optimizers)):
            return None
        for optimizer in fit.optimizers:
            for parameter in parameters_of(optimizer):
                own = self.states.get(parameter)
                if own is None:
                    continue
                brought = optimizer.state.get(parameter)
                for name, tensor in own.items():
                    tensor.copy_(brought[name]) if brought else tensor.zero_()
                optimizer.state[parameter] = dict(own)
        return self.step(fit)

    def write_rates(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Write learning rates into the seat's tensors, where recorded steps read them."""
        while len(self.rates) < len(groups):
            self.rates.append(_rate(self.device))
            self.held.append(None)
        for number, group in enumerate(groups):
            rate = group["lr"]
            if isinstance(rate, Tensor) or rate != self.held[number]:
                self.rates[number].fill_(rate)
                self.held[number] = rate

    def record(self, unit: Callable[[Batch], None], batch: Batch, fit: Fit) -> "RecordedStep":
        """Record a step; meanwhile parameter groups have the seat's tensors as rates, where hooks else see numbers."""
        groups = groups_of(fit)
        self.write_rates(groups)
        given = [group["lr"] for group in groups]
        for group, rate in zip(groups, self.rates, strict=False):
            group["lr"] = rate
        try:
            return RecordedStep(unit, batch, self, fit)
        finally:
            for group, rate in zip(groups, given, strict=True):
                group["lr"] = rate

    def setting(self, fit: Fit) -> int:
        """The number of the present settings: optimisers' options, modes of modules, ``requires_grad``."""
        key = (
            *map(settings, fit.optimizers),
            *(part["training"] for part in self.parts),
            *(parameter.requires_grad for parameter in self.parameters),
        )
        return self.settled.setdefault(key, len(self.settled))

    def step(self, fit: Fit) -> Callable[[Batch, int], None]:
        """Takes the steps of a fit.

        A step that changes a setting which its recording would freeze is never recorded. ``on_train_batch_end`` is part
        of the recorded step, so schedules move after it; elsewhere they move before it.
        """
        restless, settled, epoch = changes_between_steps(fit), 0, -1

        def unit(batch: Batch) -> None:
            outputs = fit.compute(batch, fit.batch_idx)
            fit.call("on_train_batch_end", outputs, batch, fit.batch_idx)

        def take(batch: Batch, number: int) -> None:
            nonlocal settled, epoch
            same = True
            if restless or epoch != fit.current_epoch:
                settled, epoch = self.setting(fit), fit.current_epoch
            key = settled, form(batch)
            recorded = self.recorded.get(key)
            if recorded is not None:
                self.write_rates(groups_of(fit))
                recorded.replay(batch, fit)
                self.taken["replayed"] += 1
            elif self.met[key] and len(self.recorded) < MOST_RECORDINGS:
                self.recorded[key] = self.record(unit, batch, fit)
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
        """Make the state tensors that an optimiser has created the seat's own."""
        for optimizer in fit.optimizers:
            for parameter in parameters_of(optimizer):
                state = optimizer.state.get(parameter)
                if state and parameter not in self.states:
                    self.states[parameter] = {k: v for k, v in state.items() if isinstance(v, Tensor)}


class RecordedStep:
    """A recorded step, for batches of one form.

    Args:
        step: takes the step.
        batch: the batch on which the step is recorded.
        replay: of the seat that it runs in.
        fit: the fit of the visit in which it is recorded.
    """

    def __init__(self, step: Callable[[Batch], None], batch: Batch, replay: Replay, fit: Fit) -> None:
        taken, self.tallies = fit.global_step, replay.tallies
        self.inputs = {name: {f: value.clone() for f, value in fields.items()} for name, fields in batch.items()}
        self.places = [value for fields in self.inputs.values() for value in fields.values()]
        before = [dict(tally.touched) for tally in self.tallies]
        for tally in self.tallies:
            tally.touched.clear()
        self.recording: Recording = record(
            lambda: step(self.inputs), replay.device, [replay.generator], replay.stream, replay.pool
        )
        self.optimizer_steps = fit.global_step - taken
        self.logged = [dict(tally.touched) for tally in self.tallies]
        for tally, names in zip(self.tallies, before, strict=True):
            tally.touched.update(names)

    def replay(self, batch: Batch, fit: Fit) -> None:
        """Take the step on another batch of the same form."""
        torch._foreach_copy_(self.places, [value for fields in batch.values() for value in fields.values()])
        self.recording.replay()
        for tally, names in zip(self.tallies, self.logged, strict=True):
            tally.touched.update(names)
        fit.global_step += self.optimizer_steps
        for optimizer in fit.optimizers:
            setattr(optimizer, "_opt_called", True)  # noqa: B010  # else a scheduler warns that no step was taken


def groups_of(fit: Fit) -> list[dict[str, Any]]:
    """The parameter groups of a fit's optimisers."""
    return [group for optimizer in fit.optimizers for group in optimizer.param_groups]


def changes_between_steps(fit: Fit) -> bool:
    """Whether a hook or a schedule that runs between steps may change how a step is taken."""
    own = type(fit.method)
    return bool(fit.lr_scheduler_configs) or any(getattr(own, hook) is not getattr(FedMethod, hook) for hook in BETWEEN)


def form(batch: Batch) -> tuple[Any, ...]:
    """The form of a batch: its streams, fields, shapes, types and strides."""
    return tuple((s, f, v.shape, v.dtype, v.stride()) for s, fields in batch.items() for f, v in fields.items())


def recordable(optimizer: Optimizer) -> bool:
    """Whether an optimiser reads all that changes from tensors, and starts from a state of zeros."""
    known = type(optimizer) in (SGD, Adam, AdamW)
    return known and all(group.get("fused") and not group.get("dampening") for group in optimizer.param_groups)


def numbers(fit: Fit) -> tuple[Any, ...]:
    """What a recorded step must not change: settings and rates of optimisers, positions of schedules."""
    places = [getattr(one.scheduler, "last_epoch", None) for one in fit.lr_scheduler_configs]
    return [*map(settings, fit.optimizers)], [float(group["lr"]) for group in groups_of(fit)], places


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
