"""Checks of what a method may touch: registered tensors, its batch and the random streams it is given, nothing else."""

import os
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmark.contract.attributes import caches_of, common_values, places_of, restore, same, values_of
from benchmark.contract.federations import brief, class_of, contract_federation, make_method
from benchmark.contract.reference import (
    Method,
    culprits,
    different,
    require_equal,
    rounds_until,
)
from benchmark.contract.steps import some_visits
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from methods.base import Batch, FedMethod, Visit

STEP_HOOKS = (
    "training_step",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
    "on_train_batch_end",
)
FIT_HOOKS = (
    *STEP_HOOKS,
    "configure_optimizers",
    "learning_rate",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_epoch_end",
    "on_train_end",
)
HOOKS = (
    *FIT_HOOKS,
    "select_clients",
    "broadcast",
    "sent_bytes",
    "local_work",
    "streams",
    "make_upload",
    "weights",
    "aggregate",
    "remember",
    "server_step",
    "refresh_norm",
    "predict",
)


def check_nothing_unregistered_survives_a_visit(method: Method) -> None:
    """A visit gives the same result whether or not this process has visited clients before: see ``scopes``."""
    untouched = common_values(contract_federation(method).method)
    worn = contract_federation(method)
    rounds_until(worn, 2)
    visits = some_visits(worn)
    kept, found = {}, {}
    for visit in visits:
        kept[visit] = values_of(places_of(worn.method))
        found[visit] = all_of(worn, visit)
    filled = [label for label, one in caches_of(class_of(method)).items() if one.cache_info().currsize]

    def fresh() -> Federation:
        restore(untouched, worn.method)
        federation = contract_federation(method, data=worn.data)
        federation.load_state_dict(worn.state_dict())
        federation.become_server()
        federation.visits(2)
        return federation

    for visit in visits:
        expected = all_of(fresh(), visit)
        notes = different(found[visit], expected)
        if notes:

            def differs(federation: Federation, visit: Visit = visit, expected: dict[str, Tensor] = expected) -> bool:
                return bool(different(all_of(federation, visit), expected))

            blame = culprits(fresh, kept[visit], differs)
            if filled and not blame:
                blame = f" It may be what functools.cache keeps for {' or '.join(filled)}."
            require_equal(
                method,
                "what a visit gives depends on visits before it, through something that is no registered tensor."
                f"{blame} Register it (register_buffer) and give it a scope: personal, local, shared or server",
                notes,
            )


def all_of(federation: Federation, visit: Visit) -> dict[str, Tensor]:
    """Everything that comes of a visit, by name: what is uploaded, kept, and logged."""
    engine = federation.engine
    sent = engine.send(visit, federation.server)
    result, state = engine.run_visit(visit, sent, federation.clients.get(visit.client))
    found = {f"kept {name}": value for name, value in state.tensors.items()}
    if (upload := result.upload) is not None:
        found |= {f"uploaded {name}": value for name, value in upload.tensors.items()}
        found |= {f"uploaded statistic {name}": value for name, value in upload.stats.items()}
        found["weight"] = torch.tensor(upload.weight, dtype=torch.float64)
    found |= {f"logged {name}": total for name, (total, _) in result.sums.items()}
    for number, own in enumerate(state.optimizers):
        for place, one in enumerate(own):
            found |= {f"optimiser {number} {place} {name}": torch.as_tensor(value) for name, value in one.items()}
    return found


def check_registered_tensors_are_its_own(method: Method) -> None:
    """No registered tensor shares memory with another instance's: what one run writes, the next would start with."""
    one, other = (make_method(method, **brief(method)) for _ in range(2))
    taken = {value.untyped_storage().data_ptr() for value in other.state_dict().values() if value.numel()}
    common = [name for name, value in one.state_dict().items() if value.untyped_storage().data_ptr() in taken]
    require_equal(
        method,
        "registered tensors lie in memory that all instances share, so a run that changes them in place changes those "
        "of the next run. Register a clone",
        common,
    )


def check_hooks_change_nothing_they_are_given(method: Method) -> None:
    """No hook changes in place what it only may read: the server's tensors, a client's images and labels."""
    require_equal(
        method,
        "a hook changes in place what belongs to the server or to the data, so that another process, or the next "
        "client, would see something else. Change a clone",
        done_by_hooks(cast(Any, method)).changes,
    )


def check_draws_come_from_streams_of_the_visit(method: Method) -> None:
    """No hook draws from a generator of the whole process: those of ``random`` and NumPy, or, in training, torch's.

    Clients may train in turns, so torch's generator cannot be seeded for one of them.
    """
    require_equal(
        method,
        "a hook draws from a generator that is not seeded for the visit. Draw from client.generator('a purpose'), and "
        "from self.generator while a client trains",
        done_by_hooks(cast(Any, method)).draws,
    )


def check_a_step_leaves_its_batch_alone(method: Method) -> None:
    """A step changes only registered tensors: its batch stays as it was. Its loss, if it has one, is finite."""
    done, name = done_by_hooks(cast(Any, method)), class_of(method).__name__
    require_equal(method, "training_step changes its batch in place; change a clone", done.batches)
    assert done.losses, f"{name}: no client takes a step in two rounds"
    assert all(loss is None or bool(loss.isfinite()) for loss in done.losses), (
        f"{name}: the loss of a step is not finite"
    )


def check_all_tensors_lie_on_the_device(method: Method) -> None:
    """A step makes no tensor on the CPU, moves none there, and copies no Python numbers to the device.

    On a GPU such a step fails, or waits for the copy and cannot be recorded. What a step reads back, and whom it draws
    from, a recording sees (``check_replayed_steps_equal_the_reference``).
    """
    require_equal(
        method,
        "on a GPU a step would work on tensors of the CPU. Make them on the device (device=self.device), and register "
        "constants as buffers",
        done_by_hooks(cast(Any, method)).strays,
    )


NUMBERED = (torch.tensor, torch.as_tensor)
CONSTRUCTORS = {
    *(*NUMBERED, torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand),
    *(torch.randint, torch.randn, torch.randperm, torch.tril_indices, torch.triu_indices, torch.zeros),
}


class WatchedDevices(TorchFunctionMode):
    """Notes, in ``strays``, the calls that would make or leave a tensor on the CPU while the method is on a GPU."""

    def __init__(self, strays: set[str]) -> None:
        super().__init__()
        self.strays = strays

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        here = kwargs.get("device") is None
        if func in CONSTRUCTORS and here and made.ndim:
            self.note(f"{func.__name__} makes a tensor {list(made.shape)} on the CPU")
        elif func in NUMBERED and not here and not isinstance(args[0], Tensor):
            self.note(f"{func.__name__} copies numbers to the device")
        elif func is Tensor.to and any(isinstance(one, str) and one == "cpu" for one in (*args, *kwargs.values())):
            self.note("Tensor.to moves a tensor to the CPU")
        return made

    def note(self, what: str) -> None:
        """Add a call, with the line of the code that is not torch's."""
        torchs = f"{Path(torch.__file__).parent}{os.sep}"
        stack = [one for one in traceback.extract_stack() if one.filename != __file__]
        frames = [one for one in stack if not one.filename.startswith(torchs)]
        self.strays.add(f"{what} at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})")


@dataclass
class Done:
    """What hooks do in two rounds.

    Args:
        changes: of what they may only read, in words.
        draws: from generators of the whole process, in words.
        batches: parts of batches that a step changes.
        losses: the loss of each step; None: it has none.
        strays: calls in steps that leave tensors on the CPU, in words.
    """

    changes: list[str]
    draws: list[str]
    batches: list[str]
    losses: list[Tensor | None]
    strays: list[str]


@cache
def done_by_hooks(method: Method) -> Done:
    """What the hooks of a method do in two rounds, which are run at the first call."""
    federation, changes, draws, batches = contract_federation(method), set[str](), set[str](), set[str]()
    losses: list[Tensor | None] = []
    strays = set[str]()
    compute, sites = Fit.compute, federation.data.clients
    for client in range(len(sites)):
        sites[client] = sites[client]  # kept: otherwise each hook gets a new one, without what another did to it

    @contextmanager
    def watch(hook: str) -> Iterator[None]:
        before = {name: value.clone() for name, value in lent(federation, hook).items()}
        states = global_states(hook in FIT_HOOKS)
        yield
        drawn = global_states(hook in FIT_HOOKS)
        draws.update(f"{hook} draws from {name}" for name in states if states[name] != drawn[name])
        changed = [name for name, value in lent(federation, hook).items() if not same(value, before[name])]
        changes.update(f"{hook} changes {name}" for name in changed)

    def watched_step(self: Fit, batch: Batch, number: int) -> Any:
        before = {(stream, part): value.clone() for stream, parts in batch.items() for part, value in parts.items()}
        with WatchedDevices(strays):
            made = compute(self, batch, number)
        for (stream, part), value in before.items():
            now = batch.get(stream, {}).get(part)
            if now is None or not same(now, value):
                batches.add(f"batch[{stream!r}][{part!r}]")
        losses.append(self.method.tallied("loss"))
        return made

    with watched(federation.method, watch), patch.object(Fit, "compute", watched_step):
        rounds_until(federation, 2)
    return Done(sorted(changes), sorted(draws), sorted(batches), losses, sorted(strays))


def lent(federation: Federation, hook: str) -> dict[str, Tensor]:
    """What hooks see and must not change, by the name that an error gives it; images only for hooks that see many."""
    data = federation.data
    found = {f"the server's {name}": value for name, value in federation.server.items()}
    found |= {f"the initial {name}": value for name, value in federation.engine.initial.items()}
    for client, own in federation.memory.items():
        found |= {f"the server's memory of client {client}, {name}": value for name, value in own.items()}
    for number, site in enumerate([*data.clients, data.server]):
        where = "the server" if number == data.num_clients else f"client {number}"
        found |= {f"the {part} of {where}": getattr(site, part) for part in ("labelled", "labels", "unlabelled")}
    if hook not in STEP_HOOKS:
        found |= {
            "the training images": data.train_images,
            "all labels": data.train_labels,
            "the test labels": data.test_labels,
        }
    return found


def global_states(training: bool) -> dict[str, object]:
    """States of the generators that a whole process shares, by name; torch's only while a client trains."""
    states: dict[str, object] = {"Python's random": random.getstate(), "numpy.random": repr(np.random.get_state())}
    if training:
        states["torch's global generator"] = torch.get_rng_state().numpy().tobytes()
    return states


@contextmanager
def watched(method: FedMethod, watch: Callable[[str], Any]) -> Iterator[None]:
    """Within this context every hook of the method runs inside ``watch(name)``; a hook called by a hook has its own."""

    def wrapped(name: str) -> Callable[..., Any]:
        hook = getattr(method, name)

        @wraps(hook)
        def run(*args: Any, **kwargs: Any) -> Any:
            with watch(name):
                return hook(*args, **kwargs)

        return run

    own = [name for name in HOOKS if getattr(type(method), name) is not getattr(FedMethod, name)]
    for name in own:
        object.__setattr__(method, name, wrapped(name))
    try:
        yield
    finally:
        for name in own:
            object.__delattr__(method, name)
