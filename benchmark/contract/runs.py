"""Checks of numbers: a run learns from what it says it learns from, and comes to the same bits in other circumstances.

Two rounds in other circumstances come to the same bits. A method that passes takes them once, in all circumstances
together. Only if they come to other bits are they repeated in each, to find which one matters.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from benchmark.contract.attributes import copied, different, own_modules
from benchmark.contract.federations import ROUNDS, Subject, by_place, require_equal, rounds_until, some_visits
from benchmark.contract.isolation import noise, unlabelled
from benchmark.federation import collectives
from benchmark.federation.fit import Fit, OptimizerStates, kept_states, load_states
from benchmark.federation.loop import Federation
from benchmark.federation.replay import RecordedStep, Replay
from benchmark.federation.site import LocalSite, stream_of
from datamodules.base import SiteData
from datamodules.views.batches import Batch, LocalWork
from methods.base import FedMethod, Visit
from methods.parts.aggregation import num_bytes

PSEUDO = ("pseudo/selected", "pseudo/certain")
"""Columns with the share of pseudo-labels that a method uses."""
NEAR = {"32-true": 0.03, "bf16-mixed": 0.5}
"""How far a model in a precision may end from the more exact one, relative to how far that one moved.

Rounding alone accounts for at most 0.0003 in float32. On some processors a pseudo-label at its threshold flips as well,
which accounts for about 0.01. In bfloat16 more of them flip, which accounts for up to 0.1.
"""
FALL = 0.97
"""Within three rounds the test loss must fall to at most this share of that before the first round."""
ELSEWHERE = 5  # how far from its own place in the visit a step is recorded, in steps and epochs


def check_a_run_learns(subject: Subject) -> None:
    """Within three rounds every shared parameter changes, and the test loss falls below that before the first round."""
    first, *_, last = subject.reference.servers
    method = subject.make()
    for name, parameter in method.named_parameters():
        trained = parameter.requires_grad and method.scope(name) == "shared"
        assert not (trained and torch.equal(first[name], last[name])), (
            f"{name!r} does not change. By default the optimiser has self.model alone: give it other parts in "
            "configure_optimizers, or call requires_grad_(False) for what stays as it is. In manual optimisation, "
            "training_step calls optimizer.step() itself; and aggregate has to load what clients upload"
        )
    start, *losses = (loss_of_tests(subject.resumed(rounds)) for rounds in range(ROUNDS + 1))
    assert min(losses) <= FALL * start, (
        f"it does not learn: from half-trained weights, the cross-entropy on the test set is {start:.4f} before the "
        f"first round, then {', '.join(f'{loss:.4f}' for loss in losses)}. If its rates or its pipeline suit larger "
        "networks only, name others in `contract_args` and `contract_data`"
    )


@torch.no_grad()
def loss_of_tests(federation: Federation) -> float:
    """Mean cross-entropy of the test set under ``predict`` of the method as it stands, in nats."""
    method, data = federation.method.eval(), federation.data
    found = torch.cat([method.predict(block()) for _, block in data.test_blocks(method.eval_batch)])
    return float(-found.double().gather(1, data.test_labels[:, None]).clamp_min(1e-12).log().mean())


def check_pseudo_labels_flow(subject: Subject) -> None:
    """The runs that these checks compare do use pseudo-labels, and their unlabelled images do change the model."""
    run = subject.reference
    used = [row[column] for row in run.rows[-2:] for column in PSEUDO if column in row]
    assert not used or max(used) > 0.0, (
        "it selected no pseudo-label in the last two of three rounds, so these checks see little of it: in "
        "`contract_args`, name arguments with which it does, e.g. a low threshold"
    )
    if used or "unlabelled" in subject.make().views:
        data = subject.data()
        images, hidden = data.train_images, unlabelled(data).view(-1, 1, 1, 1)
        data.overwrite(train_images=torch.where(hidden, noise(images), images))
        other = subject.federation(data)
        rounds_until(other, 2)
        assert different(other.server, run.servers[2]), (
            "it declares unlabelled images or reports pseudo-labels, but replacing those images with noise does not "
            "change the model after two rounds: in `contract_args`, name arguments with which they train it"
        )


def check_resume_is_exact(subject: Subject) -> None:
    """A round that continues from the bytes of a checkpoint of the round before comes to the same bits."""
    for stop in (1, 2):
        if notes := subject.differences(subject.resumed(stop), stop + 1):
            require_equal(
                notes,
                f"a run resumed from its checkpoint of round {stop} differs: something that the next round depends on "
                f"is in no registered tensor.{subject.kept_beside()} Register it (register_buffer) and give it a scope",
            )


def check_the_averaged_model_is_the_mean_of_what_the_server_held(subject: Subject) -> None:
    """It predicts as the method does with the mean, in float64, of the server's tensors after the last two rounds."""
    run, federation = subject.reference, subject.resumed(ROUNDS)
    *_, before, last = run.servers
    floats = [key for key, value in last.items() if value.is_floating_point()]
    means = {key: ((before[key].double() + last[key].double()) / 2).to(last[key].dtype) for key in floats}
    federation.method.load_tensors({**last, **means})
    assert run.averaged == {"rounds": 2, **federation.evaluate()}, (
        "the averaged model is not the mean of the last two global models: `predict` depends on something other than "
        "registered tensors of scope shared or server"
    )


def check_lower_precisions_are_close_to_double(subject: Subject) -> None:
    """Weights in float32 end near those in float64, and those under autocast to bf16 near those in float32.

    Near is a share of the distance that the more exact ones moved (``NEAR``). Under autocast only the second of two
    rounds is run, from the weights in float32.
    """
    run = subject.reference
    shared = [name for name in subject.make().names("shared") if run.servers[0][name].is_floating_point()]
    comparisons = [("32-true", "64-true", 0, subject.in_double), ("bf16-mixed", "32-true", 1, run.servers[2])]
    for precision, finer, begin, exact in comparisons if shared else []:
        federation = subject.resumed(begin, precision=precision)
        rounds_until(federation, 2)
        moved = distance(run.servers[begin], exact, shared)
        off = distance(federation.server, exact, shared)
        assert off <= NEAR[precision] * moved, (
            f"in {precision} the weights end {float(off / moved):.3f} of the distance moved from those in {finer}; "
            f"{NEAR[precision]} is allowed"
        )


def distance(weights: Mapping[str, Tensor], exact: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Euclidean distance of the tensors of these names from exact ones, 0-dim, float64."""
    return torch.cat([(weights[name].double() - exact[name]).flatten() for name in names]).norm()


def check_bytes_are_counted(subject: Subject) -> None:
    """Every visit sends at least the shared tensors (unless the method counts by itself), and both directions count."""
    row = subject.reference.rows[0]
    counts_itself = subject.cls.sent_bytes is not FedMethod.sent_bytes
    least = 1 if counts_itself else num_bytes(subject.make().tensors("shared"))
    down, up, visits = row["bytes_down"], row["bytes_up"], row["visits"]
    assert down >= visits * least, f"a round sends {down} bytes down; the models have {visits * least}"
    assert bool(up) == bool(visits), f"a round sends {up} bytes up in {visits} visits"


def check_clients_with_one_image_or_none(subject: Subject) -> None:
    """A client with a single image and one with none do not break a round: a mean over no images is NaN."""
    federation = subject.federation()
    sites = federation.data.clients
    site, empty = sites[-1], sites[-1].labelled[:0]
    image = site.unlabelled[:1]
    sites[-1] = SiteData(empty, empty, image) if len(image) else SiteData(site.labelled[:1], site.labels[:1], empty)
    sites[-2] = SiteData(empty, empty, empty)
    rounds_until(federation, 2)


def check_default_arguments_are_plain(subject: Subject) -> None:
    """All hyperparameters can be written into a configuration file."""
    for name, value in subject.make().hparams.items():
        assert isinstance(value, (int, float, str, bool, list, type(None))), (
            f"the default of {name!r} is a {type(value).__name__}, which a configuration file cannot hold: take a "
            "number, a string, a list or None"
        )


class Epochs:
    """The batches of a client's local epochs, one epoch per iteration."""

    def __init__(self, site: LocalSite, work: LocalWork) -> None:
        self.site, self.work, self.numbers = site, work, iter(range(len(work)))

    def __iter__(self) -> Iterator[Batch]:
        yield from self.site.batches(self.work, next(self.numbers))


def check_a_visit_is_a_fit(subject: Subject) -> None:
    """``Trainer.fit`` over the batches of a client's visit takes the same steps, to the bit."""
    federation = subject.resumed(2)
    engine, module = federation.engine, federation.method
    visits, steps = some_visits(federation), 0
    for visit in visits:
        sent, start = engine.send(visit, federation.server), engine.start_of(federation.clients.get(visit.client))
        left = engine.start_of(engine.run_visit(visit, sent, start)[1]).optimizers
        visited = copied(module.registered())
        with engine.context.seeded(*stream_of(visit)), warnings.catch_warnings(action="ignore"):
            site, work = engine.seats[0].begin_visit(visit, sent, start)
            if not work:  # no fit
                continue
            trainer = trainer_from(site.optimizer_states, len(work))
            trainer.fit(module, Epochs(site, work))
            steps += trainer.global_step
            module.make_upload(site)
        notes = different(visited, module.registered())
        require_equal(notes, "a plain Trainer over a client's batches takes other steps")
        notes = different(by_place(left), by_place(kept_states(module, trainer.optimizers)))
        require_equal(notes, "a plain Trainer leaves other states in the optimisers of a client")
        module.trainer = None
    assert steps or not visits, "none of its clients takes a step"


def trainer_from(states: OptimizerStates, epochs: int) -> L.Trainer:
    """A silent Trainer whose optimisers start from the states that a client has kept."""
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
    start = LambdaCallback(on_fit_start=lambda trainer, module: load_states(module, trainer.optimizers, states))
    return L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[start], **quiet)  # type: ignore[arg-type]


def check_slots_equal_the_reference(subject: Subject) -> None:
    """Clients that take turns in three slots give the same bits."""
    notes = subject.differences(subject.federation(slots=3, replay=False), 2)
    require_equal(notes, "clients that train in three copies of it give another result: only registered tensors travel")


def check_replayed_steps_equal_the_reference(subject: Subject) -> None:
    """Steps that are recorded once and replayed give the same bits, whichever step of a visit was recorded."""
    federation = subject.federation(slots=1, replay=True)
    with patch.object(Replay, "record", recorded_elsewhere(Replay.record)):
        notes = subject.differences(federation, ROUNDS)  # one with few batches replays in the last round
    require_equal(
        notes,
        "a step that is recorded and replayed gives another result: it reads or writes something other than its batch "
        "and registered tensors (self.visit.round, batch_idx, current_epoch and global_step are Python numbers: assign "
        "a StepNumber in on_train_start), or Python code takes a decision that must be left to tensors",
    )
    replay = federation.engine.seats[0].replay
    if replay and replay.repeatable:  # else its optimisers cannot be recorded
        assert replay.taken["replayed"], (
            "no step is replayed: no three have batches of equal shapes and equal settings; in `contract_args`, name "
            "arguments with which they do"
        )


def recorded_elsewhere(record: Callable[..., RecordedStep]) -> Callable[..., RecordedStep]:
    """``record``, which records a step, made to record it as another step of the visit: one recording serves all."""

    def shift(fit: Fit, by: int) -> None:
        for name in ("batch_idx", "current_epoch", "global_step"):
            setattr(fit, name, getattr(fit, name) + by)

    def recorded(self: Replay, batch: Batch, fit: Fit) -> RecordedStep:
        shift(fit, ELSEWHERE)
        made = record(self, batch, fit)
        shift(fit, -ELSEWHERE)
        return made

    return recorded


RANK = "the rank or the number of processes"
RANKS = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "3"}
ORDER = "the order in which clients train"
TOMORROW = time.time() + 86_413
FAKES: dict[str, dict[str, object]] = {
    "the id of the process": {"os.getpid": 77_001, "os.getppid": 77_000},
    "the name of the host": {"socket.gethostname": "elsewhere", "platform.node": "elsewhere"},
    "the clock": {"time.time": TOMORROW, "time.monotonic": TOMORROW, "time.perf_counter": TOMORROW},
    "the number of processors": {"os.cpu_count": 333, "torch.get_num_threads": 333},
    RANK: {},
    ORDER: {},
}
"""Circumstances that must not matter, and what functions return in each."""
CAUSES = {
    "": "two runs of one seed differ: something draws from a generator that nobody seeds, reads the clock or the host, "
    "or is kept where all instances share it",
    ORDER: "clients that train in another order, as they do on several processes, give another result: a visit leaves "
    "something behind outside the registered tensors",
}
"""What a method does wrong to which a circumstance matters; of all others, it reads them."""


def check_circumstances_do_not_matter(subject: Subject) -> None:
    """Two runs of one seed agree to the last bit.

    Host, process, clock and ranks change nothing, nor does the order in which clients train, as on several processes.
    """
    with suppress(Exception):  # it is met again in its own circumstance
        if not differences(subject, FAKES):
            return
    for name in ("", *FAKES):
        because = CAUSES.get(name, f"the result depends on where it runs. It reads {name}")
        require_equal(differences(subject, [name] if name else []), because)
    because = f"the result depends on several of these together: {', '.join(FAKES)}"
    require_equal(differences(subject, FAKES), because)


def differences(subject: Subject, circumstances: Collection[str]) -> list[str]:
    """How two rounds in these circumstances and no others differ from the reference run, in words."""
    assert subject.reference  # made before the fakes
    with ExitStack() as stack:
        for path, fake in [pair for name in circumstances for pair in FAKES[name].items()]:
            module, _, function = path.rpartition(".")
            real = getattr(sys.modules[module], function)
            for owner in (sys.modules[module], *own_modules(subject.cls).values()):  # some import it by name
                for alias in [alias for alias, value in vars(owner).items() if value is real]:
                    stack.enter_context(patch.object(owner, alias, lambda fake=fake: fake))
        if RANK in circumstances:
            stack.enter_context(patch.dict(os.environ, RANKS))
        federation = subject.federation()
        (seat,) = federation.engine.seats
        if RANK in circumstances:
            fabric: Any = SimpleNamespace(loggers=[], global_rank=1, world_size=3)
            seat.site._context = replace(seat.context, fabric=fabric)
        if ORDER in circumstances:
            stack.enter_context(patch.object(collectives, "assign", backwards))
        return subject.differences(federation, 2)


def backwards(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """All visits on one rank, the last client's first."""
    return [sorted(visits, key=lambda visit: (-visit.client, visit.repeat))]
