"""Small federations on real digits, for checks and tests."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from lightning import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

from benchmark.arguments import parameters
from benchmark.federation.loop import Federation
from benchmark.federation.scaling import fabric_precision
from benchmark.registry import KINDS, find_class
from datamodules.base import FSSLDataModule, Scenario
from datamodules.digits import Digits
from datamodules.io import sources
from datamodules.io.sources import Arrays
from methods import models
from methods.base import FedMethod

NUM_CLIENTS = 6
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
    "lr": 0.01,
}
"""The most that the contract leaves of an argument: short schedules, and a rate that a network without norms bears."""


class FewerDigits(Digits):
    """The first 480 training and 120 test images, read once per process."""

    def read(self) -> Arrays:
        """Digits, cut."""
        return cut(_digits(), 480, 120)


class FewestDigits(Digits):
    """The first 120 training and 30 test images: a handful of steps for each client."""

    def read(self) -> Arrays:
        """Digits, cut."""
        return cut(_digits(), 120, 30)


def cut(whole: Arrays, train: int, test: int) -> Arrays:
    """The first images of a data set."""
    return replace(
        whole,
        train_images=whole.train_images[:train].copy(),
        train_labels=whole.train_labels[:train].copy(),
        test_images=whole.test_images[:test].copy(),
        test_labels=whole.test_labels[:test].copy(),
    )


@cache
def _digits() -> Arrays:
    return sources.digits()


def make_data(scenario: Scenario = "partial_clients", **args: Any) -> Digits:
    """Digits over six clients, set up."""
    data = Digits(**{"scenario": scenario, "partition": "iid", **SCENARIOS[scenario], **args})
    data.setup()
    return data


class ScaledSingle(MixedPrecision):
    """Losses are scaled as in ``16-mixed``, and everything is computed in float32."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu")

    def forward_context(self) -> AbstractContextManager[Any]:
        """No autocast."""
        return nullcontext()


@cache
def plain_fabric(precision: str = "32-true") -> Fabric:
    """One CPU process; ``32-scaled``: see ``ScaledSingle``."""
    chosen = {"plugins": ScaledSingle()} if precision == "32-scaled" else fabric_precision(precision, "cpu")
    fabric = Fabric(accelerator="cpu", devices=1, **chosen)
    fabric.launch()
    return fabric


def class_of(method: str | type) -> type[FedMethod]:
    """The class that a name or a dotted path means; a class stays."""
    return find_class(method, KINDS["method"]) if isinstance(method, str) else method


def make_method(
    method: str | type,
    num_classes: int = 10,
    seed: int = 0,
    weights: Mapping[str, Tensor] | None = None,
    side: int = SIDE,
    **args: Any,
) -> FedMethod:
    """A method, by name or class, around a small CNN with these weights, or freshly initialised.

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
        "num_images": len(_digits().train_images),
        "image_shape": [3, side, side],
    }
    made: FedMethod = cls(**{name: known[name] for name in parameters(cls) if name in known}, **args)
    return made


def brief(method: str | type) -> dict[str, Any]:
    """A short schedule and a gentle rate (``MOST``), and on top what a method says itself (``contract_args``)."""
    own = dict(class_of(method).contract_args)
    arguments = make_method(method, **own).hparams
    return {name: most for name, most in MOST.items() if (arguments.get(name) or 0) > most} | own


@cache
def half_trained() -> dict[str, Tensor]:
    """Weights of a small CNN that is right about two thirds of the digits, and sure of some.

    Methods start from them in the contract, so that pseudo-labels of all classes flow from the first round on, some
    of them wrong, and some images below every usual threshold. They are trained in float64, since 120 steps of Adam
    make another network of float32's rounding errors, which are not the same on every processor.
    """
    data = FewerDigits(num_clients=1, labelled_clients=1, partition="iid", side=SIDE)
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


def data_for(method: FedMethod) -> FewerDigits:
    """The digits in the scenario that a method was made for, with what it says itself (``contract_data``)."""
    data = FewerDigits(**{"scenario": method.scenario, "partition": "iid", **options_for(method)})
    data.setup()
    return data


def options_for(method: FedMethod) -> dict[str, Any]:
    """Options of the data in the scenario that a method was made for, with what it says itself."""
    named = {"pipeline": method.pipeline} if method.pipeline else {}
    return SCENARIOS[method.scenario] | {"side": SIDE} | named | dict(method.contract_data)


def contract_federation(method: str | type, data: FSSLDataModule | None = None, **args: Any) -> Federation:
    """The federation that the checks run: three brief rounds from half-trained weights, on fewer digits, the
    last two averaged.
    """
    given = {"rounds": ROUNDS, "average_last": 2, **brief(method), **args}
    data = data or data_for(make_method(method, **brief(method)))
    return make_federation(method, data, weights=half_trained(), **given)


def tiny_federation(method: str | type, fabric: Fabric | None = None, **engine: Any) -> Federation:
    """Two brief rounds on the fewest digits, in batches of 8 and ragged ones, on any device.

    Args:
        method: name, dotted path or class.
        fabric: launched; default: the CPU.
        engine: arguments of the ``Federation``.
    """
    fabric = fabric or plain_fabric()
    made = make_method(method, weights=half_trained(), **(brief(method) | {"batch_size": 8}))
    scenario = made.scenario
    labels = {"server": {"num_labels": 20}, "all_clients": {"num_labels": 60}}.get(scenario, {})
    options = options_for(made) | labels | dict(made.contract_data)
    data = FewestDigits(**{"scenario": scenario, "partition": "iid", **options})
    data.setup()
    data.place(fabric.device, torch.float32)
    return Federation(made, data, data.roster(0), fabric, rounds=2, seed=0, **engine)


def make_federation(method: str | type, data: FSSLDataModule | None = None, rounds: int = 3, **args: Any) -> Federation:
    """A federation of a method, around a fresh network, in the scenario it was made for."""
    precision, run_seed = args.pop("precision", "32-true"), args.pop("run_seed", 0)
    options = ("slots", "replay", "callbacks", "average_last", "nonfinite", "sums")
    engine = {name: args.pop(name) for name in options if name in args}
    made = make_method(method, side=data.image_size if data else SIDE, **args)
    data = data or make_data(made.scenario, **options_for(made))
    if precision == "64-true":
        made = made.double()
        data.place(torch.device("cpu"), torch.float64)
    return Federation(made, data, data.roster(0), plain_fabric(precision), rounds, seed=run_seed, **engine)


class Rows:
    """Keeps the rows of a run without their wall-clock."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        """Collect."""
        if row is not None:
            self.rows.append({k: v for k, v in row.items() if k != "timing"})


def run_rows(federation: Federation) -> list[dict[str, Any]]:
    """Run to the end and return the rows."""
    rows = Rows()
    federation.callbacks = [*federation.callbacks, rows]
    federation.run()
    return rows.rows
