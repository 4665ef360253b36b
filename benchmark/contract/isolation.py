"""Checks of what a method may depend on and touch: registered tensors, its batch and the random streams it is given.

What must not matter does not: two rounds under other circumstances come to the same bits. A method that passes takes
them once, under all circumstances together. Only if they come to other bits does each check repeat them under its own,
to find which one matters. What hooks change, draw and make is watched in two more rounds.
"""

import gc
import inspect
import os
import platform
import random
import re
import socket
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmark.contract.attributes import caches_of, common_owners, own_modules, owners, restore, same, values_of
from benchmark.contract.federations import (
    Method,
    Row,
    brief,
    class_of,
    contract_data,
    contract_federation,
    culprits,
    different,
    different_from_reference,
    different_rows,
    make_method,
    plain_fabric,
    reference,
    require,
    require_equal,
    rounds_until,
    some_visits,
)
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common.streams import SERVER, derive_seed
from datamodules.partition.roster import Roster
from datamodules.partition.sites import true_labels
from methods.base import Batch, FedMethod, Visit

OVERFLOW = ("overflow", "server/overflow")
"""Columns with the share of a round's steps that a scaled loss makes skip."""

Fakes = Mapping[tuple[Any, str], Any]
"""Module and name of a function -> its stand-in."""


def _later(clock: Any) -> Any:
    """A clock that is a day ahead."""
    by = 86_413 * (10**9 if clock.__name__.endswith("_ns") else 1)
    return lambda: clock() + by


CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
HOSTS: Mapping[str, Fakes] = {
    "the id of the process": {(os, "getpid"): lambda: 77_001, (os, "getppid"): lambda: 77_000},
    "the name of the host": {(socket, "gethostname"): lambda: "elsewhere", (platform, "node"): lambda: "elsewhere"},
    "the clock": {(time, name): _later(getattr(time, name)) for name in CLOCKS},
    "the number of processors": {(os, "cpu_count"): lambda: 333, (torch, "get_num_threads"): lambda: 333},
}
RANK = "the rank or the number of processes"
RANKS = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "3"}
ORDER = "the order in which clients train"
SCALE = "the scale of the loss"
TURNED = (3, 2, 0, 1)
"""A new id for each client."""


def check_same_seed_same_bits(method: Method) -> None:
    """Two runs of one seed agree to the last bit; another seed does not."""
    require_equal(
        method,
        "two runs of one seed differ: something draws from a generator that nobody seeds, reads the clock or the host, "
        "or is kept where all instances share it",
        differences(method),
    )
    other = contract_federation(method, run_seed=1)
    rounds_until(other, 1)
    changed = different(other.server, reference(method).servers[1])
    require(method, changed, "the seed of the run changes nothing")


def check_order_of_visits_is_irrelevant(method: Method) -> None:
    """Clients that train in another order, as on several processes, give the same bits: no visit leaves a trace."""
    require_equal(
        method,
        "clients that train in another order, as they do on several processes, give another result: a visit leaves "
        "something behind outside the registered tensors",
        differences(method, ORDER),
    )


def check_the_host_does_not_matter(method: Method) -> None:
    """Process id, host name, clock, number of processors, rank and number of processes change nothing."""
    everything = [*HOSTS, RANK]
    if notes := differences(method, *everything):
        alone = (name for name in everything if differences(method, name))
        cause = next(alone, "the process, the host or the clock")
        require_equal(method, f"the result depends on where it runs. It reads {cause}", notes)


def check_a_scaled_loss_leaves_every_bit(method: Method) -> None:
    """With losses scaled by a power of 2, as in ``16-mixed`` but in float32, weights end with the same bits."""
    if class_of(method).no_loss_scaling:
        return
    require_equal(
        method,
        "with a scaled loss, as in 16-mixed, it trains another model: a gradient is used while it is scaled, or was "
        "never scaled. With manual optimisation, call manual_backward, then configure_gradient_clipping, then the step "
        "of self.optimizers(); give torch.autograd.grad self.scaled(loss). If that is impossible, say why in "
        "`no_loss_scaling`",
        differences(method, SCALE),
    )


def differences(method: Method, *circumstances: str) -> list[str]:
    """How two rounds under these circumstances differ from the reference run, in words."""
    return [] if nothing_matters(method) else differences_under(method, circumstances)


@cache
def nothing_matters(method: Method) -> bool:
    """Whether two rounds come to the bits of the reference run under all circumstances together."""
    scale = [] if class_of(method).no_loss_scaling else [SCALE]
    try:
        return not differences_under(method, [*HOSTS, RANK, ORDER, *scale])
    except Exception:  # the check whose circumstance it is meets it again
        return False


def differences_under(method: Method, circumstances: Collection[str]) -> list[str]:
    """How two rounds under these circumstances and no others differ from the reference run, in words."""
    reference(method)
    precision = "32-scaled" if SCALE in circumstances else "32-true"
    plain_fabric(precision)  # launched before the fakes, as is everything that is not the method's
    with ExitStack() as stack:
        fakes = [HOSTS.get(name, {}) for name in circumstances]
        stack.enter_context(faked(method, {place: fake for some in fakes for place, fake in some.items()}))
        if RANK in circumstances:
            stack.enter_context(patch.dict(os.environ, RANKS))
        if ORDER in circumstances:
            stack.enter_context(patch("benchmark.federation.loop.assign", backwards))
        federation = contract_federation(method, precision=precision)
        if RANK in circumstances:
            for seat in federation.engine.seats:
                seat.context = replace(seat.context, rank=1, ranks=3)
        return different_from_reference(method, federation, 2, OVERFLOW if SCALE in circumstances else ())


@contextmanager
def faked(method: Method, fakes: Fakes) -> Iterator[None]:
    """Within this context stand-ins are called, also where a method's modules have imported by name."""
    real = {id(getattr(*place)): fake for place, fake in fakes.items()}
    imported = {
        (source, name): real[id(value)]
        for source in own_modules(class_of(method))
        for name, value in vars(source).items()
        if id(value) in real
    }
    with ExitStack() as stack:
        for (module, name), fake in {**fakes, **imported}.items():
            stack.enter_context(patch.object(module, name, fake))
        yield


def backwards(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """All visits on one rank, the last client's first."""
    return [sorted(visits, key=lambda v: (-v.client, v.repeat))]


def check_names_of_clients_do_not_matter(method: Method) -> None:
    """The same clients under other ids, each with its own draws, give the same model up to the order of summation."""
    server = in_double(method)[2]
    federation = contract_federation(method, precision="64-true")
    sites = federation.data.clients
    for client, site in enumerate([sites[TURNED.index(client)] for client in range(len(sites))]):
        sites[client] = site
    federation.roster = TurnedRoster(len(sites), tuple(k for k, site in enumerate(sites) if len(site.labelled)), seed=0)
    with patch("datamodules.common.streams.derive_seed", former_seed):
        rounds_until(federation, 2)
    shared = federation.method.names("shared")
    far = [name for name in shared if not torch.allclose(federation.server[name], server[name], rtol=1e-7, atol=1e-9)]
    require_equal(
        method, "the same clients under other ids give another model: a step looks at the id of a client", far
    )


class TurnedRoster(Roster):
    """The draws of a roster with the seed 0, under other ids (``TURNED``)."""

    def sample(self, round: int) -> list[int]:
        """Ids of the round's participants, ascending."""
        return sorted(TURNED[client] for client in super().sample(round))

    def shuffled(self, round: int) -> list[int]:
        """The same places for the same clients."""
        old = Roster(self.num_clients, self.labelled, self.seed, self.participants, self.rule)
        return [TURNED[client] for client in old.shuffled(round)]

    def subsets(self, index: int, count: int, size: int) -> list[list[int]]:
        """The same subsets of the same clients."""
        return [[TURNED[client] for client in subset] for subset in super().subsets(index, count, size)]


def former_seed(seed: int, purpose: str, *where: int) -> int:
    """``derive_seed`` of a client's former id, which is in ``where`` or at the end of the purpose."""
    purpose = re.sub(r"(?<=client )\d+$", lambda match: str(TURNED.index(int(match[0]))), purpose)
    if len(where) == 3 and where[1] != SERVER:  # round, client, repeat
        where = where[0], TURNED.index(where[1]), where[2]
    return derive_seed(seed, purpose, *where)


@cache
def in_double(method: Method) -> list[dict[str, Tensor]]:
    """The server's tensors in float64, before the first round and after each of two."""
    federation = contract_federation(method, precision="64-true")
    servers = []
    for stop in range(3):
        rounds_until(federation, stop)
        servers.append(federation.server)
    return servers


def check_hidden_labels_are_not_read(method: Method) -> None:
    """Training is the same when every hidden label is wrong."""
    assert bool(unlabelled(contract_data(method)).any())
    _, notes = with_other_labels_and_images(method)
    if notes:
        _, notes = with_other(method, with_other_hidden_labels)
    require_equal(
        method,
        "with other hidden labels it trains another model; the labels of unlabelled images are for metrics only",
        notes,
    )


def check_test_images_are_not_used(method: Method) -> None:
    """With noise for test images and wrong test labels, the same model is trained; only its scores differ."""
    rows, notes = with_other_labels_and_images(method)
    if notes:
        rows, notes = with_other(method, with_other_test_images)
    known = reference(method).rows[:2]
    require(
        method,
        all(row["acc"] != other["acc"] for row, other in zip(rows, known, strict=True)),
        "with noise for test images and wrong test labels its accuracy is the same: predict does not look at the "
        "images that it is given",
    )
    require_equal(
        method,
        "with other test images it trains another model. Take statistics from training images (data.take), and let "
        "predict change nothing",
        notes,
    )


@cache
def with_other_labels_and_images(method: Method) -> tuple[list[Row], list[str]]:
    """``with_other`` of hidden labels and test images together."""
    return with_other(method, with_other_hidden_labels, with_other_test_images)


def with_other(method: Method, *replaced: Callable[[FSSLDataModule], FSSLDataModule]) -> tuple[list[Row], list[str]]:
    """Rows of two rounds on other data, and how they and the server differ from the reference run, in words.

    Class attributes and globals are as in a new process. Columns that hidden labels and test images may change are not
    compared.
    """
    data, run = contract_data(method), reference(method)
    restore(run.untouched, common_owners(class_of(method)))
    with others_are_wrong(data):
        for replace_in in replaced:
            replace_in(data)
        federation = contract_federation(method, data=data)
        rows = rounds_until(federation, 2)
    but = ["pseudo/", "acc_clients", "acc_worst_clients"]
    if with_other_test_images in replaced:
        but += [name for name in run.averaged if name != "rounds"]
    return rows, different_rows(rows, run.rows[:2], but) + different(federation.server, run.servers[2])


def with_other_unlabelled_images(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with noise for all training images without a label."""
    images, hidden = data.train_images, unlabelled(data)
    data.overwrite(train_images=torch.where(hidden.view(-1, *[1] * (images.ndim - 1)), noise(images), images))
    return data


def with_other_hidden_labels(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with a wrong label for every training image without one."""
    labels, hidden, classes = true_labels(data), unlabelled(data), data.num_classes
    by = torch.arange(len(labels)) % (classes - 1) + 1
    data.overwrite(train_labels=torch.where(hidden, (labels + by) % classes, labels))
    return data


def with_other_test_images(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with noise for test images and wrong test labels."""
    data.overwrite(test_images=noise(data.test_images), test_labels=(data.test_labels + 1) % data.num_classes)
    return data


def noise(images: Tensor) -> Tensor:
    """Noise in the form of these images or feature vectors."""
    generator = torch.Generator().manual_seed(0)
    if images.is_floating_point():
        return torch.randn(images.shape, generator=generator, dtype=images.dtype)
    return torch.randint(256, images.shape, generator=generator, dtype=images.dtype)


def unlabelled(data: FSSLDataModule) -> Tensor:
    """Which training images no site holds with a label, bool ``[n]``."""
    hidden = torch.ones(data.num_images, dtype=torch.bool)
    for site in [*data.clients, data.server]:
        hidden[site.labelled] = False
    return hidden


@contextmanager
def others_are_wrong(data: FSSLDataModule) -> Iterator[None]:
    """Within this context, labels of other data modules, of sites, and copies of this one's labels are wrong.

    A method that looks hidden labels up anywhere in the process finds none but this data module's own.
    """
    gc.collect()
    true = true_labels(data)
    own = {id(labels) for labels in labels_in(data)} | {id(labels) for labels in labels_in(data.server)}
    known = [one for one in gc.get_objects() if issubclass(type(one), (FSSLDataModule, SiteData, Tensor))]
    held = [labels for one in known if not isinstance(one, Tensor) for labels in labels_in(one)]
    held += [one for one in known if isinstance(one, Tensor) and is_copy(one, true)]
    found = {id(labels): labels for labels in held if id(labels) not in own}
    del true, known, held
    classes = {key: max(data.num_classes, int(max(labels.tolist(), default=0)) + 1) for key, labels in found.items()}

    def turn(by: int) -> None:  # and back: a copy of the right ones could be found, too
        for key, labels in found.items():
            known = labels >= 0
            labels[known] = (labels[known] + by) % classes[key]

    turn(1)
    try:
        yield
    finally:
        turn(-1)


def is_copy(one: Tensor, labels: Tensor) -> bool:
    """Whether a tensor, of whatever use, has these labels."""
    return one.dtype == labels.dtype and one.shape == labels.shape and one.device == labels.device and one.equal(labels)


def labels_in(one: FSSLDataModule | SiteData) -> list[Tensor]:
    """The labels that a data module or a site has."""
    if isinstance(one, SiteData):
        labels = [one.labels, one.revealed, one.validation_labels]
    else:
        labels = [true_labels(one), one.train_labels, one.test_labels] if hasattr(one, "clients") else []
    return [found for found in labels if found is not None]


def check_nothing_unregistered_survives_a_visit(method: Method) -> None:
    """A visit gives the same result whether or not this process has visited clients before: see ``scopes``."""
    common = common_owners(class_of(method))
    worn = contract_federation(method)
    untouched = values_of(common)
    rounds_until(worn, 2)
    visits = some_visits(worn)
    kept, found = {}, {}
    for visit in visits:
        kept[visit] = values_of(owners(worn.method))
        found[visit] = all_of(worn, visit)
    filled = [label for label, one in caches_of(class_of(method)).items() if one.cache_info().currsize]

    def fresh() -> Federation:
        restore(untouched, common)
        federation = contract_federation(method, data=worn.data)
        federation.load_state_dict(worn.state_dict())
        federation.become_server()
        federation.visits(2)
        return federation

    for visit in visits:
        expected = all_of(fresh(), visit)
        if notes := different(found[visit], expected):

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
        sorted(done_by_hooks(method).changes),
    )


def check_draws_come_from_streams_of_the_visit(method: Method) -> None:
    """No hook draws from a generator of the whole process: those of ``random`` and NumPy, or, in training, torch's.

    Clients may train in turns, so torch's generator cannot be seeded for one of them.
    """
    require_equal(
        method,
        "a hook draws from a generator that is not seeded for the visit. Draw from client.generator('a purpose'), and "
        "from self.generator while a client trains",
        sorted(done_by_hooks(method).draws),
    )


def check_a_step_leaves_its_batch_alone(method: Method) -> None:
    """A step changes only registered tensors: its batch stays as it was. Its loss, if it has one, is finite."""
    done = done_by_hooks(method)
    require_equal(method, "training_step changes its batch in place; change a clone", sorted(done.batches))
    require(method, done.losses, "no client takes a step in two rounds")
    finite = all(loss is None or bool(loss.isfinite()) for loss in done.losses)
    require(method, finite, "the loss of a step is not finite")


def check_all_tensors_lie_on_the_device(method: Method) -> None:
    """A step makes no tensor on the CPU, moves none there, and copies no Python numbers to the device.

    On a GPU such a step fails, or waits for the copy and cannot be recorded. What a step reads back, and whom it draws
    from, a recording sees (``check_replayed_steps_equal_the_reference``).
    """
    require_equal(
        method,
        "on a GPU a step would work on tensors of the CPU. Make them on the device (device=self.device), and register "
        "constants as buffers",
        sorted(done_by_hooks(method).strays),
    )


@dataclass
class Done:
    """What hooks do in two rounds.

    Args:
        changes: of what they may only read, in words.
        draws: from generators of the whole process, in words.
        batches: parts of batches that a step changes.
        strays: calls in steps that leave tensors on the CPU, in words.
        losses: the loss of each step; None: it has none.
    """

    changes: set[str] = field(default_factory=set)
    draws: set[str] = field(default_factory=set)
    batches: set[str] = field(default_factory=set)
    strays: set[str] = field(default_factory=set)
    losses: list[Tensor | None] = field(default_factory=list)


@cache
def done_by_hooks(method: Method) -> Done:
    """What the hooks of a method do in two rounds, which are run at the first call."""
    federation, done = contract_federation(method), Done()
    compute, sites = Fit.compute, federation.data.clients
    for client in range(len(sites)):
        sites[client] = sites[client]  # kept: otherwise each hook gets a new one, without what another did to it

    @contextmanager
    def watch(hook: str) -> Iterator[None]:
        before = {name: value.clone() for name, value in lent(federation).items()}
        states = global_states(hook)
        yield
        drawn = global_states(hook)
        done.draws.update(f"{hook} draws from {name}" for name in states if states[name] != drawn[name])
        changed = [name for name, value in lent(federation).items() if not same(value, before[name])]
        done.changes.update(f"{hook} changes {name}" for name in changed)

    def watched_step(self: Fit, batch: Batch, number: int) -> Any:
        before = {(stream, part): value.clone() for stream, parts in batch.items() for part, value in parts.items()}
        with WatchedDevices(done.strays):
            made = compute(self, batch, number)
        for (stream, part), value in before.items():
            now = batch.get(stream, {}).get(part)
            if now is None or not same(now, value):
                done.batches.add(f"batch[{stream!r}][{part!r}]")
        done.losses.append(self.method.tallied("loss"))
        return made

    with watched(federation.method, watch), patch.object(Fit, "compute", watched_step):
        rounds_until(federation, 2)
    return done


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

    cls = type(method)
    public = [name for name, _ in inspect.getmembers(FedMethod, inspect.isfunction) if not name.startswith("_")]
    own = [name for name in public if getattr(cls, name) is not getattr(FedMethod, name)]
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
