"""Checks of what a method reads, keeps and changes: only what it is given, and its registered tensors."""

import gc
import inspect
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any
from unittest.mock import patch

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from benchmark.contract.attributes import different, same
from benchmark.contract.federations import Subject, by_place, require_equal, rounds_until, some_visits
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from benchmark.federation.recording import users_line
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common import streams
from datamodules.partition.roster import Roster
from datamodules.partition.sites import true_labels
from methods.base import Batch, FedMethod, Visit

TURNED = (3, 2, 0, 1)
"""The ids that the clients get in ``check_names_of_clients_do_not_matter``."""

# --- hidden labels and test images


def check_hidden_labels_and_test_images_are_not_read(subject: Subject) -> None:
    """With wrong hidden labels, noise for test images and wrong test labels, training is the same; scores differ."""
    federation, notes = with_others(subject, test_images=True)
    if notes:
        because = "with other hidden labels it trains another model; they are for metrics only"
        require_equal(with_others(subject, test_images=False)[1], because)
    require_equal(
        notes,
        "with other test images it trains another model. Take statistics from training images (data.take), and let "
        "predict change nothing",
    )
    assert federation.evaluate()["acc"] != subject.reference.rows[1]["acc"], (
        "with noise for test images and wrong test labels its accuracy is the same: predict does not look at images"
    )


def with_others(subject: Subject, test_images: bool) -> tuple[Federation, list[str]]:
    """A federation after two rounds with a wrong label for every training image without one, and perhaps with noise for
    test images and wrong test labels; and how it differs from the reference run, in words.

    Columns that these may change are not compared.
    """
    data, run = subject.data(), subject.reference
    but = ["pseudo/", "acc_clients", "acc_worst_clients"]
    with others_are_wrong(data):
        data.overwrite(train_labels=with_wrong_hidden_ones(data))
        if test_images:
            labels = (data.test_labels + 1) % data.num_classes
            data.overwrite(test_images=noise(data.test_images), test_labels=labels)
            but += run.averaged
        federation = subject.federation(data)
        return federation, subject.differences(federation, 2, but)


def with_wrong_hidden_ones(data: FSSLDataModule) -> Tensor:
    """Training labels, with a wrong one for every image that no site has with a label."""
    labels, classes = true_labels(data), data.num_classes
    by = torch.arange(len(labels)) % (classes - 1) + 1
    return torch.where(unlabelled(data), (labels + by) % classes, labels)


def noise(images: Tensor) -> Tensor:
    """Noise in the form of these images."""
    return torch.randint(256, images.shape, generator=torch.Generator().manual_seed(0), dtype=images.dtype)


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
    own = {id(labels) for holder in (data, data.server) for labels in labels_in(holder, true)}
    holders = [holder for holder in gc.get_objects() if issubclass(type(holder), (FSSLDataModule, SiteData, Tensor))]
    others = {id(labels): labels for holder in holders for labels in labels_in(holder, true) if id(labels) not in own}
    del true, holders
    classes = {key: max(data.num_classes, int(max(labels.tolist(), default=0)) + 1) for key, labels in others.items()}

    def turn(by: int) -> None:  # and back: a copy of the right ones could be found, too
        for key, labels in others.items():
            known = labels >= 0
            labels[known] = (labels[known] + by) % classes[key]

    turn(1)
    try:
        yield
    finally:
        turn(-1)


def labels_in(holder: FSSLDataModule | SiteData | Tensor, true: Tensor) -> list[Tensor]:
    """The labels that a data module or a site has; or a tensor, of whatever use, that is a copy of the true ones."""
    if isinstance(holder, Tensor):
        return [holder] if holder.device == true.device and same(holder, true) else []
    if isinstance(holder, SiteData):
        fields = [holder.labels, holder.revealed]
    else:
        fields = [true_labels(holder), holder.train_labels, holder.test_labels] if hasattr(holder, "clients") else []
    return [labels for labels in fields if labels is not None]


# --- what a visit leaves behind


def check_nothing_unregistered_survives_a_visit(subject: Subject) -> None:
    """A visit gives the same result whether or not this process has visited clients before: see ``scopes``."""
    worn = subject.federation()
    rounds_until(worn, 2)
    outcomes = {visit: outcome_of(worn, visit) for visit in some_visits(worn)}
    for visit, after_others in outcomes.items():
        fresh = subject.federation(worn.data)
        fresh.load_state_dict(worn.state_dict())
        fresh.visits(2)
        if notes := different(after_others, outcome_of(fresh, visit)):
            require_equal(
                notes,
                "what a visit gives depends on visits before it, through something that is no registered tensor."
                f"{subject.kept_beside()} Register it (register_buffer) and give it a scope: personal, local, shared "
                "or server",
            )


def outcome_of(federation: Federation, visit: Visit) -> dict[str, Tensor]:
    """Everything that comes of a visit, by name: what is uploaded, kept, and logged."""
    federation.become_server()  # as it is when a round begins
    engine, state = federation.engine, federation.clients.get(visit.client)
    result, kept = engine.run_visit(visit, engine.send(visit, federation.server), state)
    upload = result.upload
    uploaded = () if upload is None else (upload.tensors, upload.stats, upload.weight)
    return by_place({"kept": (kept.tensors, kept.optimizers), "uploaded": uploaded, "logged": result.sums})


def check_names_of_clients_do_not_matter(subject: Subject) -> None:
    """The same clients under other ids, each with its own draws, give the same model up to the order of summation."""
    federation = subject.federation(precision="64-true")
    sites = federation.data.clients
    for client, site in enumerate([sites[TURNED.index(client)] for client in range(len(sites))]):
        sites[client] = site
    federation.roster = TurnedRoster(len(sites), tuple(k for k, site in enumerate(sites) if len(site.labelled)), seed=0)
    with patch.object(streams, "derive_seed", former_seed):
        rounds_until(federation, 2)
    found, expected = federation.server, subject.in_double
    shared = federation.method.names("shared")
    far = [name for name in shared if not torch.allclose(found[name], expected[name], rtol=1e-7, atol=1e-9)]
    require_equal(
        far,
        "the same clients under other ids give another model: a step looks at the id of a client, or "
        "select_clients draws by itself (take roster.sample or roster.shuffled, or let contract_args select all)",
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


def former_seed(seed: int, purpose: str, *where: int, derive: Callable[..., int] = streams.derive_seed) -> int:
    """``derive_seed`` of a client's former id, which is in ``where`` or at the end of the purpose."""
    purpose = re.sub(r"(?<=client )\d+$", lambda match: str(TURNED.index(int(match[0]))), purpose)
    if len(where) == 3 and where[1] != streams.SERVER:  # round, client, repeat
        where = where[0], TURNED.index(where[1]), where[2]
    return derive(seed, purpose, *where)


def check_registered_tensors_are_its_own(subject: Subject) -> None:
    """No registered tensor shares memory with another instance's: what one run writes, the next would start with."""
    one, other = (subject.make() for _ in range(2))
    taken = {value.untyped_storage().data_ptr() for value in other.state_dict().values() if value.numel()}
    require_equal(
        [name for name, value in one.state_dict().items() if value.untyped_storage().data_ptr() in taken],
        "registered tensors lie in memory that all instances share, so a run that changes them in place changes those "
        "of the next run. Register a clone",
    )


# --- what hooks change, draw and make

CHANGE = "another process, or the next client, would see something else; change a clone"
LOST = "the next visit undoes it; change it in aggregate, remember, server_step or refresh_norm"
DRAW = (
    "it is not seeded for the visit; take client.generator('a purpose'), self.generator while a client trains, and "
    "torch's global generator in hooks of the server, which is seeded for each"
)
STRAY = (
    "on a GPU it would be slow or fail; make tensors on the device (device=self.device), register constants as buffers"
)


def check_hooks_keep_to_what_is_theirs(subject: Subject) -> None:
    """Hooks change only registered tensors, draw only from the visit's generators, and compute on the device.

    What belongs to the server or to the data, and a step's batch, stay as they were. No hook draws from ``random`` or
    NumPy nor, in training, from torch's global generator: clients may train in turns, so it cannot be seeded for one of
    them. A step makes no tensor on the CPU, moves none there, and copies no Python numbers to the device: on a GPU it
    fails, or waits for the copy and cannot be recorded.
    """
    federation = subject.federation()
    notes: set[str] = set()
    compute, sites = Fit.compute, federation.data.clients
    for client in range(len(sites)):
        sites[client] = sites[client]  # kept: otherwise each hook gets a new one, without what another did to it

    @contextmanager
    def watch(hook: str) -> Iterator[None]:
        before = {name: value.clone() for name, value in lent(federation).items()}
        states, own = global_states(hook), federation.method.tensors("shared", "server")
        yield
        drawn = global_states(hook)
        if hook in ("select_clients", "broadcast", "sent_bytes"):
            lost = different(federation.method.tensors("shared", "server"), own)
            notes.update(f"{hook} changes {name}: {LOST}" for name in lost)
        notes.update(f"{hook} draws from {name}: {DRAW}" for name in states if states[name] != drawn[name])
        notes.update(f"{hook} changes {name}: {CHANGE}" for name in different(lent(federation), before))

    def watched_step(self: Fit, batch: Batch, number: int) -> Any:
        before = {place: value.clone() for place, value in by_place(batch).items()}
        with WatchedDevices(notes):
            outputs = compute(self, batch, number)
        changed = before.keys() & different(by_place(batch), before)
        notes.update(f"training_step changes batch{place}: {CHANGE}" for place in changed)
        return outputs

    watch_hooks(federation.method, watch)
    with patch.object(Fit, "compute", watched_step):
        rounds_until(federation, 2)
    assert federation.steps, "no client takes a step in two rounds"
    require_equal(sorted(notes), "hooks touch what is not theirs")


def watch_hooks(method: FedMethod, watch: Callable[[str], ContextDecorator]) -> None:
    """From now on every hook that the method overrides runs inside ``watch(name)``, also where a hook calls it."""
    for name, usual in inspect.getmembers(FedMethod, inspect.isfunction):
        if not name.startswith("_") and getattr(type(method), name) is not usual:
            object.__setattr__(method, name, watch(name)(getattr(method, name)))


def lent(federation: Federation) -> dict[str, Tensor]:
    """What hooks see and must not change, by the name that an error gives it."""
    data, parts = federation.data, ("labelled", "labels", "unlabelled")
    seen = {
        "server": federation.server,
        "initial": federation.engine.initial,
        "memory": federation.memory,
        "sites": [{part: getattr(site, part) for part in parts} for site in (*data.clients, data.server)],
        "data": {name: getattr(data, name) for name in ("train_images", "train_labels", "test_labels")},
    }
    return by_place(seen)


def global_states(hook: str) -> dict[str, object]:
    """States of the generators that a whole process shares, by name; torch's only in training.

    Hooks of training are Lightning's, and the rate of a step.
    """
    states: dict[str, object] = {"Python's random": random.getstate(), "numpy.random": repr(np.random.get_state())}
    if hasattr(L.LightningModule, hook) or hook == "learning_rate":
        states["torch's global generator"] = torch.get_rng_state().numpy().tobytes()
    return states


class WatchedDevices(TorchFunctionMode):
    """Notes, in ``strays``, calls that on a GPU would make a tensor on the CPU, move one there, or copy numbers."""

    def __init__(self, strays: set[str]) -> None:
        super().__init__()
        self.strays = strays

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        takes_tensor = any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs)))
        if isinstance(result, Tensor) and result.ndim and not takes_tensor:
            if kwargs.get("device") is None:
                self.note(f"{func.__name__} makes a tensor {list(result.shape)} on the CPU")
            elif func in (torch.tensor, torch.as_tensor):
                self.note(f"{func.__name__} copies numbers to the device")
        elif func is Tensor.to and any(isinstance(arg, str) and arg == "cpu" for arg in (*args, *kwargs.values())):
            self.note("Tensor.to moves a tensor to the CPU")
        return result

    def note(self, what: str) -> None:
        """Add a call, with the line of the code that is neither torch's nor this module's."""
        line, function = users_line(__file__)
        self.strays.add(f"{what} at {line} ({function}): {STRAY}")
