"""Checks of whole runs on real digits, in the scenario that the method is made for, and of steps in all engines."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from benchmark.contract.federations import (
    ROUNDS,
    Method,
    brief,
    by_place,
    class_of,
    contract_data,
    contract_federation,
    different,
    different_from_reference,
    kept_beside,
    make_method,
    reference,
    require,
    require_equal,
    resumed,
    rounds_until,
    some_visits,
)
from benchmark.contract.hidden import with_other_unlabelled_images
from benchmark.contract.isolation import OVERFLOW, in_double
from benchmark.federation.fit import Fit, OptimizerStates, kept_states, load_states
from benchmark.federation.replay import Replay
from benchmark.federation.site import LocalSite, stream_of
from datamodules.base import SiteData
from datamodules.views.batches import Batch, LocalWork
from methods.base import FedMethod, Scope
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
SCOPES: tuple[Scope, ...] = ("shared", "personal", "local", "server")
ELSEWHERE = 5  # how far from its own place in the visit a step is recorded, in steps and epochs


def check_a_run_is_finite_and_learns(method: Method) -> None:
    """Three rounds from half-trained weights end with finite numbers, and the test loss falls on the way."""
    run = reference(method)
    assert all(0 <= row["acc"] <= 100 for row in run.rows)
    require_equal(method, "the global model is not finite after three rounds", not_finite(method, run.servers[-1]))
    start, *losses = run.losses
    require(
        method,
        min(losses) <= FALL * start,
        f"it does not learn: from half-trained weights with a cross-entropy of {start:.4f} on the test set it comes to "
        f"{', '.join(f'{loss:.4f}' for loss in losses)}. If its rates suit larger networks only, name others in "
        "`contract_args`",
    )


def not_finite(method: Method, server: dict[str, Tensor]) -> list[str]:
    """Tensors of the server that are not finite, but were at first: NaN may mark what nobody knows yet."""
    at_first = reference(method).servers[0]
    return [n for n, value in server.items() if not value.isfinite().all() and at_first[n].isfinite().all()]


def check_pseudo_labels_flow(method: Method) -> None:
    """The runs that these checks compare do use pseudo-labels, and their unlabelled images do change the model."""
    run = reference(method)
    reported = [count for column in PSEUDO if (count := [row[column] for row in run.rows if column in row])]
    require(
        method,
        not reported or max(max(count[-2:]) for count in reported) > 0.0,
        "it selected no pseudo-label in the last two of three rounds, so these checks see little of it: in "
        "`contract_args`, name arguments with which it does, e.g. a low threshold",
    )
    if not reported and "unlabelled" not in make_method(method, **brief(method)).views:
        return
    other = contract_federation(method, data=with_other_unlabelled_images(contract_data(method)))
    rounds_until(other, 2)
    require(
        method,
        different(other.server, run.servers[2]),
        "it declares unlabelled images or reports pseudo-labels, but replacing those images with noise does not change "
        "the model after two rounds: in `contract_args`, name arguments with which they train it",
    )


def check_resume_is_exact(method: Method) -> None:
    """A round that continues from a checkpoint of the round before, through a file, comes to the same bits."""
    for stop in (1, 2):
        if notes := different_from_reference(method, resumed(method, stop), stop + 1):
            require_equal(
                method,
                f"a run resumed from its checkpoint of round {stop} differs: something that the next round depends on "
                f"is in no registered tensor.{kept_beside(method)} Register it (register_buffer) and give it a scope",
                notes,
            )


def check_the_averaged_model_is_the_mean_of_what_the_server_held(method: Method) -> None:
    """It predicts as the method does with the mean, in float64, of the server's tensors after the last two rounds."""
    run = reference(method)
    *_, before, last = run.servers
    federation = resumed(method, ROUNDS)
    means = {
        key: ((before[key].double() + value.double()) / 2).to(value.dtype) if value.is_floating_point() else value
        for key, value in last.items()
    }
    federation.method.load_tensors(means)
    require(
        method,
        run.averaged == {"rounds": 2, **federation.evaluate()},
        "the averaged model is not the mean of the last two global models: `predict` depends on something other than "
        "registered tensors of scope shared or server",
    )


def check_lower_precisions_are_close_to_double(method: Method) -> None:
    """Weights in float32, and under autocast to bf16 or (with a scaled loss) float16, end near those in float64.

    Near is a share of the distance that those moved: ``SINGLE`` in float32, ``BRAIN`` under autocast.
    """
    require_near(method, reference(method).servers[2], "float32", SINGLE)
    halves = [("bf16-mixed", "bf16")] + ([] if class_of(method).no_loss_scaling else [("16-mixed", "float16")])
    for precision, name in halves:
        federation = contract_federation(method, precision=precision)
        rows = rounds_until(federation, 2)
        overflow = max(row.get(column, 0.0) for row in rows for column in OVERFLOW)
        require(
            method,
            overflow <= MOST_OVERFLOW,
            f"16-mixed skips {overflow:.0%} of a round's steps because a gradient overflows: compute what is steep in "
            "float32 (torch.autocast(self.device.type, enabled=False))",
        )
        require_near(method, federation.server, name, BRAIN)


def require_near(method: Method, server: dict[str, Tensor], precision: str, bound: float) -> None:
    """Fail unless these tensors, after two rounds, lie near those of a run in float64."""
    start, exact = reference(method).servers[0], in_double(method)[2]
    names = [n for n in make_method(method, **brief(method)).names("shared") if exact[n].is_floating_point()]
    if not names:  # only the server's tensors move
        return
    way = torch.cat([(exact[name] - start[name].double()).flatten() for name in names]).norm()
    off = torch.cat([(server[name].double() - exact[name]).flatten() for name in names]).norm()
    require(
        method,
        off <= bound * way,
        f"in {precision} the weights end {float(off / way):.3f} of the distance moved from those in float64; {bound} "
        "is allowed",
    )


def check_bytes_are_counted(method: Method) -> None:
    """Every visit sends at least the shared tensors (unless the method counts by itself), and both directions count."""
    row = reference(method).rows[0]
    counts_itself = class_of(method).sent_bytes is not FedMethod.sent_bytes
    shared = 1 if counts_itself else num_bytes(make_method(method, **brief(method)).tensors("shared"))
    down, up, visits = row["bytes_down"], row["bytes_up"], row["visits"]
    least = visits * shared
    require(method, down >= least, f"a round sends {down} bytes down; the models have {least}")
    require(method, bool(up) == bool(visits), f"a round sends {up} bytes up in {visits} visits")


def check_clients_with_one_image_or_none(method: Method) -> None:
    """A client with a single image and one with none do not break a round."""
    federation = contract_federation(method)
    sites = federation.data.clients
    site = sites[-1]
    keep = 1 if len(site.unlabelled) else 0
    sites[-1] = SiteData(site.labelled[: 1 - keep], site.labels[: 1 - keep], site.unlabelled[:keep])
    sites[-2] = SiteData(site.labelled[:0], site.labels[:0], site.unlabelled[:0])
    rounds_until(federation, 2)
    require_equal(
        method,
        "with one client that has a single image and one that has none, the global model is not finite after two "
        "rounds: a mean over no images is NaN",
        not_finite(method, federation.server),
    )


def check_default_arguments_are_plain(method: Method) -> None:
    """All hyperparameters can be written into a configuration file."""
    for name, value in make_method(method, **brief(method)).hparams.items():
        require(
            method,
            isinstance(value, (int, float, str, bool, list, type(None))),
            f"the default of {name!r} is a {type(value).__name__}, which a configuration file cannot hold: take a "
            "number, a string, a list or None",
        )


class Visited(IterableDataset[Batch]):
    """A client's local epochs, one per iteration."""

    def __init__(self, site: LocalSite, work: LocalWork) -> None:
        self.site, self.work, self.epochs = site, work, 0

    def __iter__(self) -> Iterator[Batch]:
        self.epochs += 1
        return self.site.batches(self.work, self.epochs - 1)


def check_a_visit_is_a_fit(method: Method) -> None:
    """``Trainer.fit`` over the batches of a client's visit takes the same steps, to the bit."""
    federation = resumed(method, 2)
    engine, module = federation.engine, federation.method
    visits, steps = some_visits(federation), 0
    for visit in visits:
        sent, start = engine.send(visit, federation.server), engine.start_of(federation.clients.get(visit.client))
        left = engine.start_of(engine.run_visit(visit, sent, start)[1]).optimizers
        visited = module.tensors(*SCOPES)
        with engine.context.seeded(*stream_of(visit)), warnings.catch_warnings(action="ignore"):
            site, work = engine.seats[0].begin_visit(visit, sent, start)
            trainer = trainer_from(site.optimizer_states, len(work))
            if work:
                trainer.fit(module, DataLoader(Visited(site, work), batch_size=None))
                steps += trainer.global_step
            module.make_upload(site)
        notes = different(visited, module.tensors(*SCOPES))
        require_equal(method, "a plain Trainer over a client's batches takes other steps", notes)
        if work:
            notes = different(by_place(left), by_place(kept_states(module, trainer.optimizers)))
            require_equal(method, "a plain Trainer leaves other states in the optimisers of a client", notes)
        module.trainer = None
    require(method, steps > 0 or not visits, "none of its clients takes a step")


def trainer_from(states: OptimizerStates, epochs: int) -> L.Trainer:
    """A silent Trainer whose optimisers start from the states that a client has kept."""
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
    start = LambdaCallback(on_fit_start=lambda trainer, module: load_states(trainer.optimizers, states))
    return L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[start], **quiet)  # type: ignore[arg-type]


def check_slots_equal_the_reference(method: Method) -> None:
    """Clients that take turns in three slots give the same bits."""
    federation = contract_federation(method, slots=3, replay=False)
    require_equal(
        method,
        "clients that train in three copies of the method give another result: only registered tensors travel with a "
        "client",
        different_from_reference(method, federation, 2),
    )


def check_replayed_steps_equal_the_reference(method: Method) -> None:
    """Steps that are recorded once and replayed give the same bits, whichever step of a visit was recorded."""
    federation = contract_federation(method, slots=1, replay=True)
    with patch.object(Replay, "record", recorded_elsewhere(Replay.record)):
        notes = different_from_reference(method, federation, ROUNDS)  # one with few batches replays in the last round
    require_equal(
        method,
        "a step that is recorded and replayed gives another result: it reads or writes something other than its batch "
        "and registered tensors (self.visit.round, batch_idx, current_epoch and global_step are Python numbers: assign "
        "a StepNumber in on_train_start), or Python code takes a decision that must be left to tensors",
        notes,
    )
    (seat,) = federation.engine.seats
    if seat.replay and seat.replay.met:  # else its optimisers cannot be recorded
        what = "no step is replayed, because no two batches of a client have the same shapes"
        require(method, federation.engine.counts()["replayed"], what)


def recorded_elsewhere(record: Callable[..., Any]) -> Callable[..., Any]:
    """``record``, which records a step, made to record it as another step of the visit: one recording serves all."""

    def recorded(self: Replay, batch: Batch, fit: Fit) -> Any:
        counters = ("batch_idx", "current_epoch", "global_step")
        for name in counters:
            setattr(fit, name, getattr(fit, name) + ELSEWHERE)
        made = record(self, batch, fit)
        for name in counters:
            setattr(fit, name, getattr(fit, name) - ELSEWHERE)
        return made

    return recorded
