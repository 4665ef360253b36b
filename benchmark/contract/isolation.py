"""Checks that nothing but registered tensors, batches and the visit's random streams decides what a method comes to.

Two rounds under other circumstances come to the same bits. A method that passes takes them once, under all
circumstances together. Only if they come to other bits are they repeated under each, to find which one matters.
"""

import os
import platform
import re
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmark.contract.attributes import common_owners, own_modules, restore, values_of
from benchmark.contract.federations import (
    Method,
    brief,
    by_place,
    class_of,
    contract_federation,
    different,
    different_from_reference,
    kept_beside,
    make_method,
    plain_fabric,
    reference,
    require,
    require_equal,
    rounds_until,
    some_visits,
)
from benchmark.federation import loop
from datamodules.common.streams import SERVER, derive_seed
from datamodules.partition.roster import Roster
from methods.base import Visit

OVERFLOW = ("overflow", "server/overflow")
"""Columns with the share of a round's steps that a scaled loss makes skip."""

Fakes = Mapping[tuple[Any, str], Any]
"""Module and name of a function -> its stand-in."""


def _later(clock: Any) -> Any:
    """A clock that is a day ahead."""
    by = 86_413 * (10**9 if clock.__name__.endswith("_ns") else 1)
    return lambda: clock() + by


def _backwards(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """All visits on one rank, the last client's first."""
    return [sorted(visits, key=lambda v: (-v.client, v.repeat))]


CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
RANK = "the rank or the number of processes"
RANKS = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "3"}
ORDER = "the order in which clients train"
SCALE = "the scale of the loss"
FAKES: Mapping[str, Fakes] = {
    "the id of the process": {(os, "getpid"): lambda: 77_001, (os, "getppid"): lambda: 77_000},
    "the name of the host": {(socket, "gethostname"): lambda: "elsewhere", (platform, "node"): lambda: "elsewhere"},
    "the clock": {(time, name): _later(getattr(time, name)) for name in CLOCKS},
    "the number of processors": {(os, "cpu_count"): lambda: 333, (torch, "get_num_threads"): lambda: 333},
    RANK: {},
    ORDER: {(loop, "assign"): _backwards},
    SCALE: {},
}
"""Circumstances that must not matter, and what is replaced under each."""
TURNED = (3, 2, 0, 1)
"""A new id for each client."""


CAUSES = {
    ORDER: "clients that train in another order, as they do on several processes, give another result: a visit leaves "
    "something behind outside the registered tensors",
    SCALE: "with a scaled loss, as in 16-mixed, it trains another model: a gradient is used while it is scaled, or was "
    "never scaled. With manual optimisation, call manual_backward, then configure_gradient_clipping, then the step of "
    "self.optimizers(); give torch.autograd.grad self.scaled(loss). If it cannot, say why in `no_loss_scaling`",
}
"""What a method does wrong to which a circumstance matters; of all others, it reads them."""


def check_circumstances_do_not_matter(method: Method) -> None:
    """Two runs of one seed agree to the last bit, and another seed gives another model.

    Host, process, clock and ranks change nothing, nor does the order in which clients train, as on several processes,
    nor a loss that is scaled by a power of 2, as in ``16-mixed`` but in float32.
    """
    other = contract_federation(method, run_seed=1)
    rounds_until(other, 1)
    changed = different(other.server, reference(method).servers[1])
    require(method, changed, "the seed of the run changes nothing")
    known = [name for name in FAKES if name != SCALE or not class_of(method).no_loss_scaling]
    try:
        if not differences(method, known):
            return
    except Exception:  # it is met again under its own circumstance
        pass
    require_equal(
        method,
        "two runs of one seed differ: something draws from a generator that nobody seeds, reads the clock or the host, "
        "or is kept where all instances share it",
        differences(method, []),
    )
    for name in known:
        because = CAUSES.get(name, f"the result depends on where it runs. It reads {name}")
        require_equal(method, because, differences(method, [name]))
    because = f"the result depends on several of these together: {', '.join(known)}"
    require_equal(method, because, differences(method, known))


def differences(method: Method, circumstances: Collection[str]) -> list[str]:
    """How two rounds under these circumstances and no others differ from the reference run, in words."""
    reference(method)
    precision = "32-scaled" if SCALE in circumstances else "32-true"
    plain_fabric(precision)  # launched before the fakes, as is everything that is not the method's
    with ExitStack() as stack:
        for name in circumstances:
            for (owner, attribute), fake in everywhere(method, FAKES[name]).items():
                stack.enter_context(patch.object(owner, attribute, fake))
        if RANK in circumstances:
            stack.enter_context(patch.dict(os.environ, RANKS))
        federation = contract_federation(method, precision=precision)
        if RANK in circumstances:
            for seat in federation.engine.seats:
                there: Any = SimpleNamespace(loggers=[], global_rank=1, world_size=3)
                seat.site._context = replace(seat.context, fabric=there)
        return different_from_reference(method, federation, 2, OVERFLOW if SCALE in circumstances else ())


def everywhere(method: Method, fakes: Fakes) -> Fakes:
    """Stand-ins also for functions that a method's modules have imported by name."""
    real = {id(getattr(*place)): fake for place, fake in fakes.items()}
    named = [
        (source, name, id(value)) for source in own_modules(class_of(method)) for name, value in vars(source).items()
    ]
    return {**fakes, **{(source, name): real[value] for source, name, value in named if value in real}}


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


def check_nothing_unregistered_survives_a_visit(method: Method) -> None:
    """A visit gives the same result whether or not this process has visited clients before: see ``scopes``."""
    common = common_owners(class_of(method))
    worn = contract_federation(method)
    untouched = values_of(common)
    rounds_until(worn, 2)
    found = {visit: all_of(worn, visit) for visit in some_visits(worn)}
    for visit, after_others in found.items():
        restore(untouched, common)
        fresh = contract_federation(method, data=worn.data)
        fresh.load_state_dict(worn.state_dict())
        fresh.become_server()
        fresh.visits(2)
        if notes := different(after_others, all_of(fresh, visit)):
            require_equal(
                method,
                "what a visit gives depends on visits before it, through something that is no registered tensor."
                f"{kept_beside(method)} Register it (register_buffer) and give it a scope: personal, local, shared or "
                "server",
                notes,
            )


def all_of(federation: loop.Federation, visit: Visit) -> dict[str, Tensor]:
    """Everything that comes of a visit, by name: what is uploaded, kept, and logged."""
    engine = federation.engine
    result, state = engine.run_visit(visit, engine.send(visit, federation.server), federation.clients.get(visit.client))
    upload = result.upload
    sent = () if upload is None else (upload.tensors, upload.stats, upload.weight)
    return by_place({"kept": (state.tensors, state.optimizers), "uploaded": sent, "logged": result.sums})


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
