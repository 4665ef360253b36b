"""Small federations on real digits for checks and tests, the reference run of a method, and how runs are compared."""

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from benchmark.contract.attributes import (
    Values,
    caches_of,
    changed,
    common_owners,
    owners,
    same,
    values_of,
)
from benchmark.federation.loop import Federation
from benchmark.federation.scaling import fabric_precision
from benchmark.registry import KINDS, find_class, parameters
from datamodules.base import FSSLDataModule, Scenario
from datamodules.digits import Digits
from datamodules.io.sources import Arrays
from methods import models
from methods.base import FedMethod, Visit

Method = Any
"""A method: its name, its dotted path or its class."""
Row = dict[str, Any]

NUM_CLIENTS = 4
ROUNDS = 3
SIDE = 24
"""Side of the images, in pixels: enough for the small network to learn from, and half the work of 32."""
SCENARIOS: dict[Scenario, dict[str, Any]] = {
    "partial_clients": {"num_clients": NUM_CLIENTS, "labelled_clients": 1},
    "server": {"num_clients": NUM_CLIENTS, "num_labels": 40, "pipeline": "randaugment_uniform"},
    "all_clients": {"num_clients": NUM_CLIENTS, "num_labels": 100, "pipeline": "randaugment_levels_cutout"},
}
MOST = {
    "warmup_rounds": 1,
    "local_epochs": 1,
    "server_pretrain": 1,
    "server_epochs": 1,
    "steps_per_visit": 2,
    "gpt_epochs": 10,
    "lr": 0.01,
    "subset_size": 3,
}
"""Upper limits for arguments in the contract: short schedules, small subsets, a rate for networks without norms."""


class FewerDigits(Digits):
    """The first 332 training and 120 test images."""

    kept: ClassVar[tuple[int, int]] = (332, 120)

    def read(self) -> Arrays:
        """Digits, cut."""
        whole, (train, test) = super().read(), self.kept
        return replace(
            whole,
            train_images=whole.train_images[:train].copy(),
            train_labels=whole.train_labels[:train].copy(),
            test_images=whole.test_images[:test].copy(),
            test_labels=whole.test_labels[:test].copy(),
        )


class MoreDigits(FewerDigits):
    """The first 480 training images, to learn from before the rounds."""

    kept = (480, 120)


def make_data(scenario: Scenario = "partial_clients", **args: Any) -> Digits:
    """Digits over a few clients, set up."""
    data = Digits(**{"scenario": scenario, "partition": "iid", **SCENARIOS[scenario], **args})
    data.setup()
    return data


class ScaledSingle(MixedPrecision):
    """Scales losses as ``16-mixed`` does, but computes everything in float32."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu")

    def forward_context(self) -> AbstractContextManager[Any]:
        """No autocast."""
        return nullcontext()


@cache
def plain_fabric(precision: str = "32-true") -> Fabric:
    """One CPU process; ``32-scaled``: see ``ScaledSingle``."""
    chosen = {"plugins": ScaledSingle()} if precision == "32-scaled" else fabric_precision(precision, "cpu")
    with warnings.catch_warnings(action="ignore"):  # what Lightning thinks of the precision
        fabric = Fabric(accelerator="cpu", devices=1, **chosen)
        fabric.launch()
    return fabric


def class_of(method: Method) -> type[FedMethod]:
    """The class with this name or dotted path; a class is returned as it is."""
    return find_class(method, KINDS["method"]) if isinstance(method, str) else method


def make_method(
    method: Method,
    num_classes: int = 10,
    seed: int = 0,
    weights: Mapping[str, Tensor] | None = None,
    side: int = SIDE,
    **args: Any,
) -> FedMethod:
    """A method around a small CNN with these weights, or freshly initialised.

    Args:
        method: name, dotted path or class.
        num_classes: of the data.
        seed: of the weights.
        weights: of the network; none: fresh ones.
        side: of the images, in pixels.
        args: the method's own.
    """
    cls: Any = class_of(method)
    torch.manual_seed(seed)
    model = models.build("small_cnn", num_classes, image_size=side)
    if weights is not None:
        model.load_state_dict(weights)
    known = {
        "model": model,
        "num_classes": num_classes,
        "num_clients": NUM_CLIENTS,
        "num_images": 1_437,  # of Digits
        "image_shape": [3, side, side],
    }
    made: FedMethod = cls(**{name: known[name] for name in parameters(cls) if name in known}, **args)
    return made


def brief(method: Method) -> dict[str, Any]:
    """A short schedule and a low rate (``MOST``), and on top of them the method's own ``contract_args``."""
    cls: type = class_of(method)
    own = dict(class_of(method).contract_args)
    known, arguments = parameters(cls), make_method(method, **own).hparams

    def is_more(name: str) -> bool:
        value = arguments.get(name)
        return name in known and isinstance(value, int | float) and value > MOST[name]

    return {name: most for name, most in MOST.items() if is_more(name)} | own


@cache
def half_trained() -> dict[str, Tensor]:
    """Weights of a small CNN that classifies about two thirds of the digits correctly, some of them with confidence.

    In the contract methods start from them, so that from the first round on there are pseudo-labels of all classes,
    some of them wrong, and some images that stay below every usual threshold. They are trained in float64: float32
    rounds differently on different processors, and 120 steps of Adam turn that into another network.
    """
    data = MoreDigits(num_clients=1, labelled_clients=1, partition="iid", side=SIDE)
    data.setup()
    site = data.client(0)
    torch.manual_seed(0)
    model = models.build("small_cnn", data.num_classes, image_size=SIDE).double()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        drawn = torch.randint(len(site.labelled), (64,), generator=generator)
        images = data.take("weak", site.labelled[drawn], generator).double()
        loss = F.cross_entropy(model(images), site.labels[drawn])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.clone() for name, value in model.float().state_dict().items()}


def options_for(method: FedMethod | type[FedMethod]) -> dict[str, Any]:
    """Options of the data in the scenario that a method is made for, with its own ``contract_data``."""
    named = {"pipeline": method.pipeline} if method.pipeline else {}
    return SCENARIOS[method.scenario] | {"side": SIDE} | named | dict(method.contract_data)


def contract_data(method: Method) -> FewerDigits:
    """The digits that the checks run a method on."""
    made = make_method(method, **brief(method))
    data = FewerDigits(**{"scenario": made.scenario, "partition": "iid", **options_for(made)})
    data.setup()
    return data


def contract_federation(method: Method, data: FSSLDataModule | None = None, **args: Any) -> Federation:
    """The federation that the checks run: three short rounds from half-trained weights on fewer digits, where the last
    two global models are averaged.

    What ``functools.cache`` keeps for functions of the method is forgotten, as in a new process.
    """
    for kept in caches_of(class_of(method)).values():
        kept.cache_clear()
    given = {"rounds": ROUNDS, "average_last": 2, **brief(method), **args}
    return make_federation(method, data or contract_data(method), weights=half_trained(), **given)


def make_federation(method: Method, data: FSSLDataModule | None = None, rounds: int = 3, **args: Any) -> Federation:
    """A federation of a method with a new network, in the scenario that the method is made for."""
    precision, run_seed = args.pop("precision", "32-true"), args.pop("run_seed", 0)
    options = ("slots", "replay", "callbacks", "average_last", "nonfinite", "sums")
    engine = {name: args.pop(name) for name in options if name in args}
    made = make_method(method, side=data.image_size if data else SIDE, **args)
    data = data or make_data(made.scenario, **options_for(made))
    if precision == "64-true":
        made = made.double()
        data.place(torch.device("cpu"), torch.float64)
    return Federation(made, data, data.roster(0), plain_fabric(precision), rounds, seed=run_seed, **engine)


@dataclass
class ReferenceRun:
    """What the reference engine makes of a method in the contract's three rounds.

    Args:
        untouched: values of class attributes and globals before the run.
        rows: the lines of the record, by round.
        servers: the server's tensors before the first round and after each.
        states: what a checkpoint at the same moments would hold, as bytes.
        losses: cross-entropy of the test set at the start, and at the same moments.
        averaged: the reading of the averaged model of the last two rounds.
    """

    untouched: Values
    rows: list[Row] = field(default_factory=list)
    servers: list[dict[str, Tensor]] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    averaged: dict[str, Any] = field(default_factory=dict)


@cache
def reference(method: Method) -> ReferenceRun:
    """The reference run of a method, made at the first call. It must not be changed."""
    federation = contract_federation(method)
    run = ReferenceRun(values_of(common_owners(class_of(method))))
    federation.become_server()
    run.losses.append(loss_of_tests(federation))
    for stop in range(ROUNDS + 1):
        run.rows += rounds_until(federation, stop)
        run.losses.append(loss_of_tests(federation))
        buffer = io.BytesIO()
        torch.save(federation.state_dict(), buffer)
        run.states.append(buffer.getvalue())
        run.servers.append(federation.server)
    run.averaged = federation.evaluate_averaged()
    return run


def some_visits(federation: Federation) -> list[Visit]:
    """Visits of the third round: one for each kind of client, both new clients and ones that have taken part before."""
    chosen: dict[Any, Visit] = {}
    for visit in federation.visits(2):
        chosen.setdefault((visit.labelled, visit.first), visit)
    return list(chosen.values())


def resumed(method: Method, rounds: int, **args: Any) -> Federation:
    """A new federation that continues the reference run after this many rounds."""
    federation = contract_federation(method, **args)
    federation.load_state_dict(torch.load(io.BytesIO(reference(method).states[rounds]), weights_only=True))
    return federation


def rounds_until(federation: Federation, stop: int) -> list[Row]:
    """Run up to round ``stop`` (exclusive); returns the rows without their timing."""
    if federation.round == 0 and federation.server_state is None:
        federation.server_phase(0, first=True)
    rows = []
    while federation.round < stop:
        row = federation.run_round(federation.round)
        federation.round += 1
        rows.append(row or {})
    return rows


@torch.no_grad()
def loss_of_tests(federation: Federation) -> float:
    """Mean cross-entropy of the test set under ``predict`` of the method as it stands, in nats."""
    method, data = federation.method, federation.data
    method.eval()
    with method.autocast():
        found = torch.cat([method.predict(block()) for _, block in data.test_blocks(method.eval_batch)])
    federation.engine.seats[0].train_mode()
    right = found.double().gather(1, data.test_labels[:, None])
    return float(-right.clamp_min(1e-12).log().mean())


def kept_beside(method: Method) -> str:
    """Where a method keeps what changes in two rounds and is no registered tensor, as a sentence for an error."""
    federation = contract_federation(method)
    before = values_of(owners(federation.method))
    rounds_until(federation, 2)
    places = [".".join(place) for place in changed(values_of(owners(federation.method)), before)]
    caches = [label for label, one in caches_of(class_of(method)).items() if one.cache_info().currsize]
    found = [*places, *(f"what functools.cache keeps for {label}" for label in caches)]
    return f" It may be {' or '.join(found)}." if found else ""


def by_place(values: Any) -> dict[str, Tensor]:
    """The tensors and numbers in nested containers, by where they are."""
    return {keystr(path): torch.as_tensor(value) for path, value in tree_flatten_with_path(values)[0]}


def different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that are not equal bit for bit, or are in one of the two only."""
    both = [name for name in expected if name in found and not same(found[name], expected[name])]
    return both + sorted(set(found) ^ set(expected))


def different_rows(found: Sequence[Row], expected: Sequence[Row], but: Iterable[str] = ()) -> list[str]:
    """How rows differ, in words; columns that begin with one of ``but`` do not count."""
    skipped = tuple(but)
    notes = []
    for row, other in zip(found, expected, strict=True):
        for name in sorted(set(row) | set(other)):
            if not name.startswith(skipped) and row.get(name) != other.get(name):
                notes.append(f"round {row['round']}: {name} is {row.get(name)} instead of {other.get(name)}")
    return notes


def different_from_reference(method: Method, federation: Federation, stop: int, but: Iterable[str] = ()) -> list[str]:
    """How a federation that now runs up to round ``stop`` differs from the reference run, in words."""
    run, start = reference(method), federation.round
    rows = rounds_until(federation, stop)
    return different_rows(rows, run.rows[start:stop], but) + different(federation.server, run.servers[stop])


def require(method: Method, condition: object, what: str) -> None:
    """Fail, with the name of the method, unless a condition holds.

    Raises:
        AssertionError: it does not.
    """
    if not condition:
        raise AssertionError(f"{class_of(method).__name__}: {what}")


def require_equal(method: Method, because: str, notes: Sequence[str]) -> None:
    """Fail if a check has found differences.

    Args:
        method: the one that was checked.
        because: what the method does wrong, and what to do about it.
        notes: the differences, in words.

    Raises:
        AssertionError: there are differences; names the first three.
    """
    more = f", and {len(notes) - 3} more" if len(notes) > 3 else ""
    require(method, not notes, f"{because} (different: {'; '.join(notes[:3])}{more})")
