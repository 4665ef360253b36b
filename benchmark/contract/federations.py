"""Small federations on real digits, for checks and tests."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

from benchmark.arguments import parameters
from benchmark.contract.attributes import caches_of
from benchmark.federation.loop import Federation
from benchmark.federation.scaling import fabric_precision
from benchmark.registry import KINDS, find_class
from datamodules.base import FSSLDataModule, Scenario
from datamodules.digits import Digits
from datamodules.io import sources
from datamodules.io.sources import Arrays
from methods import models
from methods.base import FedMethod

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
FEWEST_LABELS: Mapping[Scenario, Mapping[str, int]] = {"server": {"num_labels": 20}, "all_clients": {"num_labels": 40}}
"""Numbers of labels among ``FewestDigits``."""


class FewerDigits(Digits):
    """The first 332 training and 120 test images."""

    kept: ClassVar[tuple[int, int]] = (332, 120)

    def read(self) -> Arrays:
        """Digits, cut."""
        return cut(sources.digits(), *self.kept)


class FewestDigits(FewerDigits):
    """The first 96 training and 30 test images: a handful of steps for each client."""

    kept = (96, 30)


class MoreDigits(FewerDigits):
    """The first 480 training images, to learn from before the rounds."""

    kept = (480, 120)


def cut(whole: Arrays, train: int, test: int) -> Arrays:
    """The first images of a data set."""
    return replace(
        whole,
        train_images=whole.train_images[:train].copy(),
        train_labels=whole.train_labels[:train].copy(),
        test_images=whole.test_images[:test].copy(),
        test_labels=whole.test_labels[:test].copy(),
    )


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


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Leave out what Lightning has to say about loaders, devices, precisions and other products; its errors stay."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@cache
def plain_fabric(precision: str = "32-true") -> Fabric:
    """One CPU process; ``32-scaled``: see ``ScaledSingle``."""
    chosen = {"plugins": ScaledSingle()} if precision == "32-scaled" else fabric_precision(precision, "cpu")
    with quiet_lightning():
        fabric = Fabric(accelerator="cpu", devices=1, **chosen)
        fabric.launch()
    return fabric


def class_of(method: str | type) -> type[FedMethod]:
    """The class with this name or dotted path; a class is returned as it is."""
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
        "num_images": Digits.train_size,
        "image_shape": [3, side, side],
    }
    made: FedMethod = cls(**{name: known[name] for name in parameters(cls) if name in known}, **args)
    return made


def brief(method: str | type) -> dict[str, Any]:
    """A short schedule and a low rate (``MOST``), and on top of them the method's own ``contract_args``."""
    own = dict(class_of(method).contract_args)
    known, arguments = parameters(class_of(method)), make_method(method, **own).hparams

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


def data_for(method: FedMethod) -> FewerDigits:
    """The digits in the scenario that a method is made for, with its own ``contract_data``."""
    data = FewerDigits(**{"scenario": method.scenario, "partition": "iid", **options_for(method)})
    data.setup()
    return data


def contract_data(method: str | type) -> FewerDigits:
    """The digits that the checks run a method on."""
    return data_for(make_method(method, **brief(method)))


def options_for(method: FedMethod) -> dict[str, Any]:
    """Options of the data in the scenario that a method is made for, with its own ``contract_data``."""
    named = {"pipeline": method.pipeline} if method.pipeline else {}
    return SCENARIOS[method.scenario] | {"side": SIDE} | named | dict(method.contract_data)


def contract_federation(method: str | type, data: FSSLDataModule | None = None, **args: Any) -> Federation:
    """The federation that the checks run: three short rounds from half-trained weights on fewer digits, where the last
    two global models are averaged.

    What ``functools.cache`` keeps for functions of the method is forgotten, as in a new process.
    """
    for kept in caches_of(class_of(method)).values():
        kept.cache_clear()
    given = {"rounds": ROUNDS, "average_last": 2, **brief(method), **args}
    return make_federation(method, data or contract_data(method), weights=half_trained(), **given)


def tiny_federation(method: str | type, fabric: Fabric | None = None, **engine: Any) -> Federation:
    """Two short rounds on the fewest digits, on any device, in batches of 8 and smaller last ones.

    Args:
        method: name, dotted path or class.
        fabric: launched; default: the CPU.
        engine: arguments of the ``Federation``.
    """
    fabric = fabric or plain_fabric()
    smaller = {"batch_size": 8} if "batch_size" in parameters(class_of(method)) else {}
    made = make_method(method, weights=half_trained(), **(brief(method) | smaller))
    scenario = made.scenario
    options = options_for(made) | dict(FEWEST_LABELS.get(scenario, {})) | dict(made.contract_data)
    data = FewestDigits(**{"scenario": scenario, "partition": "iid", **options})
    data.setup()
    data.place(fabric.device, torch.float32)
    return Federation(made, data, data.roster(0), fabric, rounds=2, seed=0, **engine)


def make_federation(method: str | type, data: FSSLDataModule | None = None, rounds: int = 3, **args: Any) -> Federation:
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
