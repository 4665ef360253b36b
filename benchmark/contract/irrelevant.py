"""Checks that what must not matter does not: two rounds under other circumstances come to the same bits.

A method that passes takes these two rounds once, under all the circumstances together. Only if they come to other bits
does each check repeat them under its own, to find which one matters.
"""

import os
import platform
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, cast
from unittest.mock import patch

import torch

from benchmark.contract.attributes import as_first_met, own_modules
from benchmark.contract.federations import (
    brief,
    class_of,
    contract_data,
    contract_federation,
    make_method,
    plain_fabric,
)
from benchmark.contract.reference import (
    Method,
    Row,
    different,
    different_rows,
    reference,
    require_equal,
    rounds_until,
)
from benchmark.contract.replaced import others_are_wrong, unlabelled, with_other_hidden_labels, with_other_test_images
from datamodules.base import FSSLDataModule
from methods.base import Visit

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
    assert changed, f"{class_of(method).__name__}: the seed of the run changes nothing"


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
    notes = differences(method, *everything)
    if notes:
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
    return [] if nothing_matters(cast(Any, method)) else differences_under(method, circumstances)


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
    run = reference(method)
    precision = "32-scaled" if SCALE in circumstances else "32-true"
    plain_fabric(precision)  # launched before the fakes, as is everything that is not the method's
    with ExitStack() as stack:
        stack.enter_context(faked(method, [fake for name in circumstances for fake in HOSTS.get(name, {}).items()]))
        if RANK in circumstances:
            stack.enter_context(patch.dict(os.environ, RANKS))
        if ORDER in circumstances:
            stack.enter_context(patch("benchmark.federation.loop.assign", backwards))
        federation = contract_federation(method, precision=precision)
        if RANK in circumstances:
            federation.engine.context = replace(federation.engine.context, rank=1, ranks=3)
        rows = rounds_until(federation, 2)
    but = OVERFLOW if SCALE in circumstances else ()
    return different_rows(rows, run.rows[:2], but) + different(federation.server, run.servers[2])


@contextmanager
def faked(method: Method, fakes: Sequence[tuple[tuple[Any, str], Any]]) -> Iterator[None]:
    """Within this context stand-ins are called, also where a method's modules have imported by name."""
    real = {id(getattr(*place)): fake for place, fake in fakes}
    with ExitStack() as stack:
        for (module, name), fake in fakes:
            stack.enter_context(patch.object(module, name, fake))
        for source in own_modules(class_of(method)):
            for name, fake in [(name, real[id(value)]) for name, value in vars(source).items() if id(value) in real]:
                stack.enter_context(patch.object(source, name, fake))
        yield


def backwards(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """All visits on one rank, the last client's first."""
    return [sorted(visits, key=lambda v: (-v.client, v.repeat))]


def check_hidden_labels_are_not_read(method: Method) -> None:
    """Training is the same when every hidden label is wrong."""
    assert bool(unlabelled(contract_data(method)).any())
    _, notes = with_other_labels_and_images(cast(Any, method))
    if notes:
        _, notes = with_other(method, with_other_hidden_labels)
    require_equal(
        method,
        "with other hidden labels it trains another model; the labels of unlabelled images are for metrics only",
        notes,
    )


def check_test_images_are_not_used(method: Method) -> None:
    """With noise for test images and wrong test labels, the same model is trained; only its scores differ."""
    rows, notes = with_other_labels_and_images(cast(Any, method))
    if notes:
        rows, notes = with_other(method, with_other_test_images)
    known = reference(method).rows[:2]
    assert all(row["acc"] != other["acc"] for row, other in zip(rows, known, strict=True)), (
        f"{class_of(method).__name__}: with noise for test images and wrong test labels its accuracy is the same: "
        "predict does not look at the images that it is given"
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

    Columns that hidden labels and test images may change are not compared.
    """
    data, run = contract_data(method), reference(method)
    with as_first_met(run.untouched, make_method(method, **brief(method))), others_are_wrong(data):
        for replace_in in replaced:
            replace_in(data)
        federation = contract_federation(method, data=data)
        rows = rounds_until(federation, 2)
    but = ["pseudo/", "acc_clients", "acc_worst_clients"]
    if with_other_test_images in replaced:
        but += [name for name in run.averaged if name != "rounds"]
    return rows, different_rows(rows, run.rows[:2], but) + different(federation.server, run.servers[2])
