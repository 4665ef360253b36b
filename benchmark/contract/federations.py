"""Small federations on real digits for checks and tests, the reference run of a method, and how runs are compared."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from lightning import Fabric
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from benchmark.contract.attributes import common_owners, different, owners, restore, values_of
from benchmark.federation.checkpoint import dumped, opened
from benchmark.federation.loop import Federation
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
ENGINE = ("slots", "replay", "callbacks", "average_last", "nonfinite", "sums")
"""Arguments of a ``Federation`` beside those of a method."""


class FewerDigits(Digits):
    """The first 332 training and 120 test images."""

    kept: ClassVar[tuple[int, int]] = (332, 120)

    def read(self) -> Arrays:
        """Digits, cut."""
        whole, (train, test) = super().read(), self.kept
        return replace(
            whole,
            train_images=whole.train_images[:train],
            train_labels=whole.train_labels[:train],
            test_images=whole.test_images[:test],
            test_labels=whole.test_labels[:test],
        )


class MoreDigits(FewerDigits):
    """The first 480 training images, to learn from before the rounds."""

    kept = (480, 120)


def make_data(scenario: Scenario = "partial_clients", kind: type[Digits] = Digits, **args: Any) -> Digits:
    """Digits over a few clients, set up."""
    data = kind(**{"scenario": scenario, "partition": "iid", **SCENARIOS[scenario], **args})
    data.setup()
    return data


@cache
def plain_fabric(precision: str = "32-true") -> Fabric:
    """One CPU process."""
    with warnings.catch_warnings(action="ignore"):  # what Lightning thinks of the precision
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)  # type: ignore[arg-type]
        fabric.launch()
    return fabric


def class_of(method: Method) -> Any:
    """The class with this name or dotted path; a class is returned as it is."""
    return find_class(method, KINDS["method"]) if isinstance(method, str) else method


def make_method(
    method: Method, weights: Mapping[str, Tensor] | None = None, side: int = SIDE, **args: Any
) -> FedMethod:
    """A method around a small CNN with these weights, or freshly initialised.

    Args:
        method: name, dotted path or class.
        weights: of the network; none: fresh ones.
        side: of the images, in pixels.
        args: the method's own.
    """
    cls = class_of(method)
    torch.manual_seed(0)
    make_model = partial(models.build, "small_cnn", Digits.num_classes, image_size=side)
    model = make_model()
    if weights is not None:
        model.load_state_dict(weights)
    counts = {"num_classes": Digits.num_classes, "num_clients": NUM_CLIENTS, "num_images": 1_437}  # of Digits
    known: dict[str, Any] = {"model": model, "make_model": make_model, "image_shape": [3, side, side], **counts}
    made: FedMethod = cls(**{name: value for name, value in known.items() if name in parameters(cls)} | args)
    return made


def make_federation(
    method: Method, data: FSSLDataModule | None = None, rounds: int = ROUNDS, precision: str = "32-true", **args: Any
) -> Federation:
    """A federation of a method with a new network, in the scenario that the method is made for.

    Args:
        method: name, dotted path or class.
        data: set up; default: all digits.
        rounds: number of rounds.
        precision: see ``RunConfig``.
        args: of the federation (``ENGINE``), and of ``make_method``.
    """
    data = data or make_data(**options_for(method))
    options = {name: args.pop(name) for name in ENGINE if name in args}
    module = make_method(method, side=data.image_size, **args)
    if precision == "64-true":
        module = module.double()
        data.place(torch.device("cpu"), torch.float64)
    return Federation(module, data, data.roster(0), plain_fabric(precision), rounds, seed=0, **options)


def brief(method: Method) -> dict[str, Any]:
    """A short schedule and a low rate (``MOST``), and on top of them the method's own ``contract_args``."""
    cls = class_of(method)
    defaults = {name: argument.default for name, argument in parameters(cls).items()}
    numbers = {name: value for name, value in defaults.items() if isinstance(value, int | float)}
    shortened = {name: most for name, most in MOST.items() if numbers.get(name, most) > most}
    return shortened | dict(cls.contract_args)


def options_for(method: Method) -> dict[str, Any]:
    """Options of the data in the scenario that a method is made for, with its own ``contract_data``."""
    cls = class_of(method)
    named = {"pipeline": cls.pipeline} if cls.pipeline else {}
    return {"scenario": cls.scenario, **SCENARIOS[cls.scenario], "side": SIDE, **named, **cls.contract_data}


@cache
def half_trained() -> dict[str, Tensor]:
    """Weights of a small CNN that classifies about two thirds of the digits correctly, some of them with confidence.

    In the contract methods start from them, so that from the first round on there are pseudo-labels of all classes,
    some of them wrong, and some images that stay below every usual threshold. They are trained in float64: float32
    rounds differently on different processors, and 120 steps of Adam turn that into another network.
    """
    data = make_data(kind=MoreDigits, num_clients=1, side=SIDE)
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


class ReferenceRun(NamedTuple):
    """What the reference engine makes of a method in the contract's three rounds.

    Args:
        rows: the lines of the record, by round.
        servers: the server's tensors before the first round and after each.
        states: what a checkpoint at the same moments would hold, as bytes.
        averaged: the reading of the averaged model of the last two rounds.
    """

    rows: list[Row]
    servers: list[dict[str, Tensor]]
    states: list[bytes]
    averaged: Row


class Subject:
    """A method as the checks see it: what it is made with, the federations that they run, and how these compare.

    Args:
        method: name, dotted path or class.
        digits: the data.
    """

    def __init__(self, method: Method, digits: type[Digits] = FewerDigits) -> None:
        self.cls, self.digits = class_of(method), digits
        self.common = common_owners(self.cls)
        self.untouched = values_of(self.common)

    def make(self) -> FedMethod:
        """The method, around a fresh network."""
        return make_method(self.cls, **brief(self.cls))

    def data(self, **options: Any) -> Digits:
        """The digits, set up."""
        return make_data(kind=self.digits, **{**options_for(self.cls), **options})

    def federation(self, data: FSSLDataModule | None = None, **args: Any) -> Federation:
        """Three short rounds from half-trained weights, where the last two global models are averaged.

        Class attributes and globals are as when this subject was made, and caches that have grown are empty.
        """
        restore(self.untouched, self.common)
        given = {"rounds": ROUNDS, "average_last": 2, **brief(self.cls), **args}
        return make_federation(self.cls, data or self.data(), weights=half_trained(), **given)

    @cached_property
    def reference(self) -> ReferenceRun:
        """The reference run. It must not be changed."""
        federation, rows, servers, states = self.federation(), [], [], []
        for stop in range(ROUNDS + 1):
            rows.extend(rounds_until(federation, stop))
            servers.append(federation.server)
            states.append(bytes(dumped(federation.state_dict())))
        return ReferenceRun(rows, servers, states, federation.evaluate_averaged())

    @cached_property
    def in_double(self) -> dict[str, Tensor]:
        """The server's tensors after two rounds in float64."""
        federation = self.federation(precision="64-true")
        rounds_until(federation, 2)
        return federation.server

    def resumed(self, rounds: int, **args: Any) -> Federation:
        """A new federation that continues the reference run after this many rounds; ``args``: see ``federation``."""
        state = opened(self.reference.states[rounds])
        federation = self.federation(**args)
        federation.load_state_dict(state)
        return federation

    def differences(self, federation: Federation, stop: int, but: Sequence[str] = ()) -> list[str]:
        """How a federation that now runs up to round ``stop`` differs from the reference run, in words.

        Columns that begin with one of ``but`` do not count.
        """
        notes, expected = [], self.reference.rows[federation.round : stop]
        for row, other in zip(rounds_until(federation, stop), expected, strict=True):
            for name in sorted(set(row) | set(other)):
                if not name.startswith(tuple(but)) and row.get(name) != other.get(name):
                    notes.append(f"round {row['round']}: {name} is {row.get(name)} instead of {other.get(name)}")
        return notes + different(federation.server, self.reference.servers[stop])

    def kept_beside(self) -> str:
        """Where it keeps what changes in two rounds and is no registered tensor, as a sentence for an error."""
        federation = self.federation()
        before = values_of(owners(federation.method))
        rounds_until(federation, 2)
        found = [".".join(place) for place in different(values_of(owners(federation.method)), before)]
        return f" It may be {' or '.join(found)}." if found else ""


def rounds_until(federation: Federation, stop: int) -> list[Row]:
    """Run up to round ``stop`` (exclusive); returns the rows without their timing."""
    if federation.round == 0 and federation.server_state is None:
        federation.server_phase(0, first=True)
    rows = []
    while federation.round < stop:
        rows.append(federation.run_round(federation.round) or {})
        federation.round += 1
    return rows


def some_visits(federation: Federation) -> list[Visit]:
    """Visits of the third round: one for each kind of client, both new clients and ones that have taken part before."""
    return list({(visit.labelled, visit.first): visit for visit in reversed(federation.visits(2))}.values())


def by_place(values: Any) -> dict[str, Tensor]:
    """The tensors and numbers in nested containers, by where they are."""
    found = tree_flatten_with_path(values)[0]
    return {keystr(path): value if isinstance(value, Tensor) else torch.tensor(value) for path, value in found}


def require_equal(notes: Sequence[str], because: str) -> None:
    """Fail if a check has found differences.

    Args:
        notes: the differences, in words.
        because: what the method does wrong, and what to do about it.

    Raises:
        AssertionError: there are differences; names the first three.
    """
    more = f", and {len(notes) - 3} more" if len(notes) > 3 else ""
    assert not notes, f"{because} (different: {'; '.join(notes[:3])}{more})"
