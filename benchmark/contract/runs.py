"""Checks of whole runs on real digits, in the scenario that the method is made for."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from benchmark.contract.federations import brief, class_of, contract_data, contract_federation, make_method
from benchmark.contract.irrelevant import OVERFLOW
from benchmark.contract.reference import (
    Method,
    culprits,
    different,
    different_rows,
    reference,
    require_equal,
    resumed,
    rounds_until,
)
from benchmark.contract.replaced import with_other_unlabelled_images
from benchmark.federation.loop import Federation
from benchmark.federation.reference import LocalSite, ReferenceEngine
from datamodules.base import SiteData
from datamodules.common.streams import SERVER
from datamodules.partition.roster import Roster
from methods.base import FedMethod
from methods.parts.aggregation import num_bytes

PSEUDO = ("pseudo/selected", "pseudo/certain")
"""Columns that count the pseudo-labels a method uses."""
SINGLE, BRAIN = 0.03, 0.5
"""How far a model in float32, or under autocast, may end from the one in float64, relative to how far that one moved.

Rounding alone accounts for at most 0.0003 in float32. On some processors a pseudo-label at its threshold flips as well,
which accounts for about 0.01. In bfloat16 more of them flip, which accounts for up to 0.2.
"""
MOST_OVERFLOW = 0.1
"""The largest share of a round's steps that ``16-mixed`` may skip."""
FALL = 0.97
"""The test loss must fall below this share of its initial value within three rounds."""
TURNED = (3, 2, 0, 1)
"""A new id for each client."""


def check_a_run_is_finite_and_learns(method: Method) -> None:
    """Three rounds from half-trained weights end with finite numbers, and the test loss falls on the way."""
    run = reference(method)
    assert len(run.rows) == 3
    assert all(0 <= row["acc"] <= 100 for row in run.rows)
    broken = [name for name, value in run.servers[-1].items() if not known(value, run.servers[0][name])]
    require_equal(method, "the global model is not finite after three rounds", broken)
    start, *losses = run.losses
    assert min(losses) <= FALL * start, (
        f"{class_of(method).__name__} does not learn: from half-trained weights with a cross-entropy of {start:.4f} on "
        f"the test set it comes to {', '.join(f'{loss:.4f}' for loss in losses)}. If its rates suit larger networks "
        "only, name others in `contract_args`"
    )


def known(value: Tensor, at_first: Tensor) -> bool:
    """Whether a tensor of the server is finite, or was not at first either: NaN may mark what nobody knows yet."""
    return bool(value.isfinite().all()) or not at_first.isfinite().all()


def check_pseudo_labels_flow(method: Method) -> None:
    """The runs that these checks compare do use pseudo-labels, and their unlabelled images do change the model."""
    run, name = reference(method), class_of(method).__name__
    counts = [[row[column] for row in run.rows if column in row] for column in PSEUDO]
    reported = [count for count in counts if count]
    assert not reported or max(max(count[-2:]) for count in reported) > 0.0, (
        f"{name} selected no pseudo-label in the last two of three rounds, so these checks see little of it: in "
        "`contract_args`, name arguments with which it does, e.g. a low threshold"
    )
    if not reported and "unlabelled" not in make_method(method, **brief(method)).views:
        return
    other = contract_federation(method, data=with_other_unlabelled_images(contract_data(method)))
    rounds_until(other, 2)
    assert different(other.server, run.servers[2]), (
        f"{name} declares unlabelled images or reports pseudo-labels, but replacing those images with noise does not "
        "change the model after two rounds: in `contract_args`, name arguments with which they train it"
    )


def check_resume_is_exact(method: Method) -> None:
    """A round that continues from a checkpoint of the round before, through a file, comes to the same bits."""
    for stop in (1, 2):
        _resume(method, stop)


def _resume(method: Method, stop: int) -> None:
    run = reference(method)

    def afresh() -> Federation:
        return resumed(method, stop)

    def differences(rest: Federation) -> list[str]:
        rows = rounds_until(rest, stop + 1)
        return different_rows(rows, run.rows[stop : stop + 1]) + different(rest.server, run.servers[stop + 1])

    if notes := differences(afresh()):
        blame = culprits(afresh, run.attributes[stop], lambda rest: not differences(rest))
        require_equal(
            method,
            f"a run resumed from its checkpoint of round {stop} differs: something that the next round depends on is "
            f"in no registered tensor.{blame} Register it (register_buffer) and give it a scope",
            notes,
        )


def check_the_averaged_model_is_the_mean_of_what_the_server_held(method: Method) -> None:
    """It predicts as the method does with the mean, in float64, of the server's tensors after the last two rounds.

    Evaluating it leaves the server as it was, and a resumed run has the same average, bit for bit.
    """
    run, name = reference(method), class_of(method).__name__
    *_, before, last = run.servers
    federation = resumed(method, len(run.rows))
    means = {
        key: ((before[key].double() + value.double()) / 2).to(value.dtype) if value.is_floating_point() else value
        for key, value in last.items()
    }
    federation.method.load_tensors(means)
    assert run.averaged == {"rounds": 2, **federation.evaluate()}, (
        f"{name}: the averaged model is not the mean of the last two global models: `predict` depends on something "
        "other than registered tensors of scope shared or server"
    )
    federation.become_server()
    assert federation.evaluate_averaged() == run.averaged, f"{name}: a resumed run averages to another model"
    notes = different(federation.method.tensors("shared", "server"), last)
    require_equal(method, "evaluating the averaged model leaves it in the server", notes)


def check_names_of_clients_do_not_matter(method: Method) -> None:
    """The same clients under other ids, each with its own draws, give the same model up to the order of summation."""
    server = in_double(cast(Any, method))[2]
    federation = contract_federation(method, precision="64-true")
    sites = federation.data.clients
    for client, site in enumerate([sites[TURNED.index(client)] for client in range(len(sites))]):
        sites[client] = site
    federation.roster = TurnedRoster(len(sites), tuple(k for k, site in enumerate(sites) if len(site.labelled)), seed=0)
    with ExitStack() as stack:
        draws = (LocalSite, "generator", None), (ReferenceEngine, "torch_seed", 0), (ReferenceEngine, "hook_context", 2)
        for owner, name, place in draws:
            stack.enter_context(patch.object(owner, name, under_old_id(getattr(owner, name), place)))
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


def under_old_id(draw: Callable[..., Any], place: int | None) -> Callable[..., Any]:
    """``draw``, a function of a visit (the argument at ``place``, if any, or the site's), that sees the client's former
    id.
    """

    def drawn(owner: Any, *args: Any) -> Any:
        visit = owner.visit if place is None else args[place] if place < len(args) else None
        if visit is None or visit.client == SERVER:
            return draw(owner, *args)
        old = replace(visit, client=TURNED.index(visit.client))
        if place is not None:
            return draw(owner, *args[:place], old)
        twin = copy.copy(owner)
        twin.visit = old
        return draw(twin, *args)

    return drawn


@cache
def in_double(method: Method) -> list[dict[str, Tensor]]:
    """The server's tensors in float64, before the first round and after each of two."""
    federation = contract_federation(method, precision="64-true")
    servers = []
    for stop in range(3):
        rounds_until(federation, stop)
        servers.append(federation.server)
    return servers


def check_single_precision_is_close_to_double(method: Method) -> None:
    """Weights in float32 end near those in float64: within ``SINGLE`` of the distance that those moved."""
    _require_near(method, reference(method).servers[2], "float32", SINGLE)


def check_bf16_autocast_is_close_to_double(method: Method) -> None:
    """Weights under bf16 autocast end near those in float64: within ``BRAIN`` of the distance that those moved."""
    federation = contract_federation(method, precision="bf16-mixed")
    rounds_until(federation, 2)
    _require_near(method, federation.server, "bf16", BRAIN)


def check_half_autocast_is_close_to_double(method: Method) -> None:
    """Weights under float16 autocast with a scaled loss end as near to those in float64 as is asked of bf16."""
    if class_of(method).no_loss_scaling:
        return
    federation = contract_federation(method, precision="16-mixed")
    rows = rounds_until(federation, 2)
    overflow = max(row.get(name, 0.0) for row in rows for name in OVERFLOW)
    assert overflow <= MOST_OVERFLOW, (
        f"{class_of(method).__name__}: 16-mixed skips {overflow:.0%} of a round's steps because a gradient overflows: "
        "compute what is steep in float32 (torch.autocast(self.device.type, enabled=False))"
    )
    _require_near(method, federation.server, "float16", BRAIN)


def _require_near(method: Method, server: dict[str, Tensor], precision: str, bound: float) -> None:
    exact = in_double(cast(Any, method))[2]
    start = reference(method).servers[0]
    module = make_method(method, **brief(method))
    names = [name for name in module.names("shared") if exact[name].is_floating_point()]
    if not names:  # only the server's tensors move
        return
    way = torch.cat([(exact[name] - start[name].double()).flatten() for name in names]).norm()
    off = torch.cat([(server[name].double() - exact[name]).flatten() for name in names]).norm()
    assert off <= bound * way, (
        f"{class_of(method).__name__}: in {precision} the weights end {float(off / way):.3f} of the distance moved "
        f"from those in float64; {bound} is allowed"
    )


def check_bytes_are_counted(method: Method) -> None:
    """Every visit sends at least the shared tensors (unless the method counts by itself), and both directions count."""
    module = make_method(method, **brief(method))
    shared = num_bytes(module.tensors("shared"))
    row, name = reference(method).rows[0], class_of(method).__name__
    counts_itself = class_of(method).sent_bytes is not FedMethod.sent_bytes
    least = row["visits"] * (1 if counts_itself else shared)
    assert row["bytes_down"] >= least, f"{name}: a round sends {row['bytes_down']} bytes down; the models have {least}"
    counted = bool(row["bytes_up"]) == bool(row["visits"])
    assert counted, f"{name}: a round sends {row['bytes_up']} bytes up in {row['visits']} visits"


def check_clients_with_one_image_or_none(method: Method) -> None:
    """A client with a single image and one with none do not break a round."""
    federation = contract_federation(method)
    sites = federation.data.clients
    site = sites[-1]
    keep = 1 if len(site.unlabelled) else 0
    sites[-1] = SiteData(site.labelled[: 1 - keep], site.labels[: 1 - keep], site.unlabelled[:keep])
    sites[-2] = SiteData(site.labelled[:0], site.labels[:0], site.unlabelled[:0])
    rounds_until(federation, 2)
    broken = [name for name, value in federation.server.items() if not known(value, reference(method).servers[0][name])]
    require_equal(
        method,
        "with one client that has a single image and one that has none, the global model is not finite after two "
        "rounds: a mean over no images is NaN",
        broken,
    )


def check_default_arguments_are_plain(method: Method) -> None:
    """All hyperparameters can be written into a configuration file."""
    for name, value in make_method(method, **brief(method)).hparams.items():
        plain = isinstance(value, (int, float, str, bool, list, type(None)))
        assert plain, (
            f"{class_of(method).__name__}: the default of {name!r} is a {type(value).__name__}, which a configuration "
            "file cannot hold: take a number, a string, a list or None"
        )
