"""Check of what hooks change, draw and make in two rounds: no more than what they are given is theirs to touch."""

import inspect
import os
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmark.contract.federations import (
    Method,
    by_place,
    contract_federation,
    different,
    require,
    require_equal,
    rounds_until,
)
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from methods.base import Batch, FedMethod


def check_hooks_keep_to_what_is_theirs(method: Method) -> None:
    """Hooks change only registered tensors, draw only from the visit's generators, and compute on the device.

    What belongs to the server or to the data, and a step's batch, stay as they were. No hook draws from ``random`` or
    NumPy nor, in training, from torch's global generator: clients may train in turns, so it cannot be seeded for one of
    them. A step makes no tensor on the CPU, moves none there, and copies no Python numbers to the device: on a GPU it
    fails, or waits for the copy and cannot be recorded. Its loss, if it has one, is finite.
    """
    notes, losses = done_by_hooks(method)
    for because, found in notes.items():
        require_equal(method, because, sorted(found))
    require(method, losses, "no client takes a step in two rounds")
    finite = all(loss is None or bool(loss.isfinite()) for loss in losses)
    require(method, finite, "the loss of a step is not finite")


CHANGES = (
    "a hook changes in place what belongs to the server or to the data, so that another process, or the next client, "
    "would see something else. Change a clone"
)
DRAWS = (
    "a hook draws from a generator that is not seeded for the visit. Draw from client.generator('a purpose'), and from "
    "self.generator while a client trains"
)
BATCHES = "training_step changes its batch in place; change a clone"
STRAYS = (
    "on a GPU a step would work on tensors of the CPU. Make them on the device (device=self.device), and register "
    "constants as buffers"
)


def done_by_hooks(method: Method) -> tuple[dict[str, set[str]], list[Tensor | None]]:
    """What hooks do wrong in two rounds, by what is wrong with it, and the loss of each step, if it has one."""
    federation = contract_federation(method)
    notes: dict[str, set[str]] = {CHANGES: set(), DRAWS: set(), BATCHES: set(), STRAYS: set()}
    losses: list[Tensor | None] = []
    compute, sites = Fit.compute, federation.data.clients
    for client in range(len(sites)):
        sites[client] = sites[client]  # kept: otherwise each hook gets a new one, without what another did to it

    @contextmanager
    def watch(hook: str) -> Iterator[None]:
        before = {name: value.clone() for name, value in lent(federation).items()}
        states = global_states(hook)
        yield
        drawn = global_states(hook)
        notes[DRAWS].update(f"{hook} draws from {name}" for name in states if states[name] != drawn[name])
        notes[CHANGES].update(f"{hook} changes {name}" for name in different(lent(federation), before))

    def watched_step(self: Fit, batch: Batch, number: int) -> Any:
        before = {place: value.clone() for place, value in by_place(batch).items()}
        with WatchedDevices(notes[STRAYS]):
            made = compute(self, batch, number)
        now = by_place(batch)
        notes[BATCHES].update(f"batch{place}" for place in different(now, before) if place in before)
        losses.append(self.method.tallied("loss"))
        return made

    with watched(federation.method, watch), patch.object(Fit, "compute", watched_step):
        rounds_until(federation, 2)
    return notes, losses


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

    public = [name for name, _ in inspect.getmembers(FedMethod, inspect.isfunction) if not name.startswith("_")]
    own = [name for name in public if getattr(type(method), name) is not getattr(FedMethod, name)]
    for name in own:
        object.__setattr__(method, name, wrapped(name))
    try:
        yield
    finally:
        for name in own:
            object.__delattr__(method, name)


def lent(federation: Federation) -> dict[str, Tensor]:
    """What hooks see and must not change, by the name that an error gives it."""
    data = federation.data
    found = {f"the server's {name}": value for name, value in federation.server.items()}
    found |= {f"the initial {name}": value for name, value in federation.engine.initial.items()}
    for client, own in federation.memory.items():
        found |= {f"the server's memory of client {client}, {name}": value for name, value in own.items()}
    for number, site in enumerate([*data.clients, data.server]):
        where = "the server" if number == data.num_clients else f"client {number}"
        found |= {f"the {part} of {where}": getattr(site, part) for part in ("labelled", "labels", "unlabelled")}
    found |= {"the training images": data.train_images, "all labels": data.train_labels}
    return found | {"the test labels": data.test_labels}


def global_states(hook: str) -> dict[str, object]:
    """States of the generators that a whole process shares, by name; torch's only in training.

    Hooks of training are Lightning's, and the rate of a step.
    """
    states: dict[str, object] = {"Python's random": random.getstate(), "numpy.random": repr(np.random.get_state())}
    if hasattr(L.LightningModule, hook) or hook == "learning_rate":
        states["torch's global generator"] = torch.get_rng_state().numpy().tobytes()
    return states


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
        """Add a call, with the line of the code that is neither torch's nor this module's."""
        others = (f"{Path(torch.__file__).parent}{os.sep}", __file__)
        frame = [one for one in traceback.extract_stack() if not one.filename.startswith(others)][-1]
        self.strays.add(f"{what} at {frame.filename}:{frame.lineno} ({frame.name})")
