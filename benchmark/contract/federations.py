"""Small federations on real digits, for checks and tests."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from lightning import Fabric

from benchmark.federation.loop import Federation
from benchmark.registry import KINDS, find_class, parameters
from datamodules.base import FSSLDataModule, Scenario
from datamodules.digits import Digits
from methods import models
from methods.base import FedMethod

NUM_CLIENTS = 6
SCENARIOS: dict[Scenario, dict[str, Any]] = {
    "partial_clients": {"num_clients": NUM_CLIENTS, "labelled_clients": 1},
    "server": {"num_clients": NUM_CLIENTS, "num_labels": 40, "pipeline": "randaugment_uniform"},
    "all_clients": {"num_clients": NUM_CLIENTS, "num_labels": 100, "pipeline": "randaugment_levels_cutout"},
}
SHORT = ("warmup_rounds", "local_epochs", "server_pretrain", "server_epochs")
FLOWING: Mapping[str, Any] = {
    "threshold": 0.1003,
    "pl_threshold": 0.1003,
    "confidence_gate": 0.05,
    "entropy_gate": 5.0,
    "helper_every": 1,
    "lambda_s": 1.0,  # ten times a loss is more than a network without norms can bear
    "lambda_l2": 1.0,
    "projector_width": 64,
}


def make_data(scenario: Scenario = "partial_clients", **args: Any) -> Digits:
    """Digits over six clients, set up."""
    data = Digits(**{"scenario": scenario, "partition": "iid", **SCENARIOS[scenario], **args})
    data.setup()
    return data


@cache
def plain_fabric(precision: str = "32-true") -> Fabric:
    """One CPU process."""
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)  # type: ignore[arg-type]
    fabric.launch()
    return fabric


def class_of(method: str | type) -> type[FedMethod]:
    """The class that a name or a dotted path means; a class stays."""
    return find_class(method, KINDS["method"]) if isinstance(method, str) else method


def make_method(method: str | type, num_classes: int = 10, seed: int = 0, **args: Any) -> FedMethod:
    """A method, by name or class, around a freshly initialised small CNN."""
    cls: Any = class_of(method)
    torch.manual_seed(seed)
    known = {
        "model": models.build("small_cnn", num_classes),
        "num_classes": num_classes,
        "num_clients": NUM_CLIENTS,
        "image_shape": [3, 32, 32],
    }
    made: FedMethod = cls(**{name: known[name] for name in parameters(cls) if name in known}, **args)
    return made


def quick(method: str | type) -> dict[str, Any]:
    """Shortest schedule: one warm-up round, one local epoch, one pre-training call, where the method has them."""
    arguments = make_method(method).hparams
    return {name: 1 for name in SHORT if arguments.get(name, 0) > 1}


def flowing(method: str | type) -> dict[str, Any]:
    """The shortest schedule with thresholds that untrained networks reach, so that pseudo-labels flow.

    What a method says itself (``contract_args``) comes on top.
    """
    arguments = make_method(method).hparams
    low = {name: value for name, value in FLOWING.items() if name in arguments}
    return quick(method) | low | dict(class_of(method).contract_args)


def data_for(method: FedMethod) -> Digits:
    """Digits in the scenario that a method was made for, with what it says itself (``contract_data``)."""
    return make_data(method.scenario, **method.contract_data)


def make_federation(method: str | type, data: FSSLDataModule | None = None, rounds: int = 3, **args: Any) -> Federation:
    """A federation of a method in the scenario it was made for."""
    precision = args.pop("precision", "32-true")
    engine = {name: args.pop(name) for name in ("slots", "replay", "callbacks") if name in args}
    made = make_method(method, **args)
    data = data or data_for(made)
    if precision == "64-true":
        made = made.double()
        data.place(torch.device("cpu"), torch.float64)
    return Federation(made, data, data.roster(0), plain_fabric(precision), rounds, seed=0, **engine)


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
