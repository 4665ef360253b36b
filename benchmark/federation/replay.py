"""Steps of a seat that are recorded once, then replayed.

A seat's tensors never move: the state of a client and of its optimisers is copied into them. So a step that was
recorded for one batch serves every later batch of the same shapes, of any client in any round. On a GPU a recorded step
is a CUDA graph.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmark.federation.fit import Fit, parameters_of
from benchmark.federation.recording import record
from datamodules.views.batches import Batch
from methods.base import FedMethod, Tally

MOST_RECORDINGS = 64  # per seat; further kinds of steps run unrecorded
BETWEEN = ("on_before_batch_transfer", "on_after_batch_transfer", "on_train_batch_start")
SKIPPED = ("params", "lr", "initial_lr")


class RecordedStep(NamedTuple):
    """A recorded step, for batches of one form.

    Args:
        replay: takes it again.
        batch: the tensors of the batch that it reads.
        optimizer_steps: that it takes.
        logged: what it logs, by tally.
    """

    replay: Callable[[], None]
    batch: list[Tensor]
    optimizer_steps: int
    logged: list[dict[str, Any]]


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
        self.rate_type = torch.float64 if on_cpu else torch.float32  # that fused kernels read
        self.states: dict[tuple[int, Tensor], dict[str, Any]] = {}  # by number of the optimiser and parameter
        self.rates: list[Tensor] = []
        self.rate_values: list[Any] = []  # the numbers in ``rates``
        self.parts = [vars(part) for part in method.modules() if "training" in vars(part)]
        self.parameters = list(method.parameters())
        self.setting_ids: dict[Any, int] = {}  # numbers for settings of optimisers and modes of modules
        self.repeatable = set[Any]()  # kinds of steps that have been taken and change no setting
        self.recorded: dict[Any, RecordedStep] = {}
        self.taken = Counter[str]()
        self.fit: Fit
        self.setting_varies, self.epoch, self.setting = False, -1, 0  # of the present visit

    def begin(self, fit: Fit) -> Callable[[Batch, int], None] | None:
        """How a visit takes its steps; ``None``: its optimisers' steps cannot be recorded."""
        if not all(map(recordable, fit.optimizers)):
            return None
        for number, optimizer in enumerate(fit.optimizers):
            for parameter in parameters_of(optimizer):
                if seat_state := self.states.get((number, parameter)):
                    client_state = optimizer.state.get(parameter)
                    for name, tensor in seat_state.items():
                        tensor.copy_(client_state[name]) if client_state else tensor.zero_()
                    optimizer.state[parameter] = dict(seat_state)
        self.fit, self.setting_varies, self.epoch = fit, changes_between_steps(fit), -1
        return self.take

    def take(self, batch: Batch, number: int) -> None:
        """Take a step of the visit.

        A step that changes a setting which its recording would freeze is never recorded. ``on_train_batch_end`` is part
        of the recorded step, so schedules move after it; elsewhere they move before it.
        """
        fit = self.fit
        if self.setting_varies or self.epoch != fit.current_epoch:
            self.setting, self.epoch = self.setting_id(fit), fit.current_epoch
        kind = self.setting, form(batch)
        if kind in self.recorded:
            self.replay(self.recorded[kind], batch, fit)
        elif kind in self.repeatable and len(self.recorded) < MOST_RECORDINGS:
            self.recorded[kind] = self.record(batch, fit)
        else:
            before = frozen_values(fit)
            step_on(batch, fit)
            self.adopt_state(fit)
            if frozen_values(fit) == before:
                self.repeatable.add(kind)
            self.taken["eager"] += 1
        fit.advance_schedules("step")

    def record(self, batch: Batch, fit: Fit) -> RecordedStep:
        """Record a step; meanwhile parameter groups have the seat's tensors as rates, where hooks else see numbers."""
        inputs = {name: {f: value.clone() for f, value in fields.items()} for name, fields in batch.items()}
        groups, steps = groups_of(fit), fit.global_step
        self.write_rates(groups)
        rates, before = [group["lr"] for group in groups], [dict(tally.touched) for tally in self.tallies]
        for group, rate in zip(groups, self.rates, strict=False):
            group["lr"] = rate
        for tally in self.tallies:
            tally.touched.clear()
        try:
            replay = record(lambda: step_on(inputs, fit), self.device, [self.generator], self.stream, self.pool)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        logged = [dict(tally.touched) for tally in self.tallies]
        for tally, names in zip(self.tallies, before, strict=True):
            tally.touched.update(names)
        self.taken["captured"] += 1
        return RecordedStep(replay, tensors_of(inputs), fit.global_step - steps, logged)

    def replay(self, step: RecordedStep, batch: Batch, fit: Fit) -> None:
        """Take a recorded step on another batch of the same form."""
        self.write_rates(groups_of(fit))
        torch._foreach_copy_(step.batch, tensors_of(batch))
        step.replay()
        for tally, names in zip(self.tallies, step.logged, strict=True):
            tally.touched.update(names)
        fit.global_step += step.optimizer_steps
        for optimizer in fit.optimizers:
            setattr(optimizer, "_opt_called", True)  # noqa: B010  # else a scheduler warns that no step was taken
        self.taken["replayed"] += 1

    def write_rates(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Write learning rates into the seat's tensors, where recorded steps read them."""
        while len(self.rates) < len(groups):
            self.rates.append(torch.zeros((), dtype=self.rate_type, device=self.device))
            self.rate_values.append(None)
        for number, group in enumerate(groups):
            rate = group["lr"]
            if isinstance(rate, Tensor) or rate != self.rate_values[number]:
                self.rates[number].fill_(rate)
                self.rate_values[number] = rate

    def setting_id(self, fit: Fit) -> int:
        """The number of the present settings: optimisers' options, modes of modules, ``requires_grad``."""
        modes = [part["training"] for part in self.parts]
        trained = [parameter.requires_grad for parameter in self.parameters]
        return self.setting_ids.setdefault((*map(settings, fit.optimizers), *modes, *trained), len(self.setting_ids))

    def adopt_state(self, fit: Fit) -> None:
        """Make the state tensors that an optimiser has created the seat's own."""
        for number, optimizer in enumerate(fit.optimizers):
            for parameter in parameters_of(optimizer):
                state = optimizer.state.get(parameter)
                if state and (number, parameter) not in self.states:
                    self.states[number, parameter] = {k: v for k, v in state.items() if isinstance(v, Tensor)}


def step_on(batch: Batch, fit: Fit) -> None:
    """A step as it is recorded, with ``on_train_batch_end``."""
    outputs = fit.compute(batch, fit.batch_idx)
    fit.call("on_train_batch_end", outputs, batch, fit.batch_idx)


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in order."""
    return [value for fields in batch.values() for value in fields.values()]


def groups_of(fit: Fit) -> list[dict[str, Any]]:
    """The parameter groups of a fit's optimisers."""
    return [group for optimizer in fit.optimizers for group in optimizer.param_groups]


def changes_between_steps(fit: Fit) -> bool:
    """Whether a hook or a schedule that runs between steps may change how a step is taken."""
    cls = type(fit.method)
    return bool(fit.lr_scheduler_configs) or any(getattr(cls, hook) is not getattr(FedMethod, hook) for hook in BETWEEN)


def form(batch: Batch) -> tuple[Any, ...]:
    """The form of a batch: its streams, fields, shapes, types and strides."""
    return tuple((s, f, v.shape, v.dtype, v.stride()) for s, fields in batch.items() for f, v in fields.items())


def recordable(optimizer: Optimizer) -> bool:
    """Whether an optimiser reads all that changes from tensors, and starts from a state of zeros."""
    for group in optimizer.param_groups:
        captured = group.get("capturable", True) or not any(p.is_cuda for p in group["params"])  # as Adam asks
        if not group.get("fused") or group.get("dampening") or not captured:
            return False
    return type(optimizer) in (SGD, Adam, AdamW)


def frozen_values(fit: Fit) -> tuple[Any, ...]:
    """What a recorded step must not change: settings and rates of optimisers, positions of schedules."""
    positions = [getattr(config.scheduler, "last_epoch", None) for config in fit.lr_scheduler_configs]
    return [*map(settings, fit.optimizers)], [float(group["lr"]) for group in groups_of(fit)], positions


def settings(optimizer: Optimizer) -> str:
    """An optimiser's options, without its tensors and rates."""
    options = [(k, v) for group in optimizer.param_groups for k, v in group.items() if k not in SKIPPED]
    return f"{type(optimizer).__name__} {options}"
