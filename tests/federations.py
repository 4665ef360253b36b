"""Small federations on real digits, for tests."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from lightning import Fabric

from benchmark.federation.loop import Federation
from benchmark.federation.reference import ClientState, LocalSite, Outcome
from benchmark.registry import KINDS, find_class, without_default
from datamodules.digits import Digits
from datamodules.io.sources import Arrays
from methods import models
from methods.base import FedMethod, Visit

SCENARIOS: dict[str, dict[str, Any]] = {
    "partial_clients": {"num_clients": 6, "labelled_clients": 1},
    "server": {"num_clients": 6, "num_labels": 40, "pipeline": "randaugment_uniform"},
    "all_clients": {"num_clients": 6, "num_labels": 100, "pipeline": "randaugment_levels_cutout"},
}


def make_data(scenario: str = "partial_clients", **args: Any) -> Digits:
    """Digits over six clients, set up."""
    data = Digits(scenario=scenario, partition="iid", **{**SCENARIOS[scenario], **args})
    data.setup()
    return data


class FewDigits(Digits):
    """The first 250 training and 90 test images, where the number of images does not matter."""

    def read(self) -> Arrays:
        """Digits, cut."""
        whole = super().read()
        return replace(
            whole,
            train_images=whole.train_images[:250],
            train_labels=whole.train_labels[:250],
            test_images=whole.test_images[:90],
            test_labels=whole.test_labels[:90],
        )


def few_data(clients: int, labelled: int | None = None, **args: Any) -> FewDigits:
    """``FewDigits`` over clients of whom ``labelled`` (all by default) hold labels, set up."""
    data = FewDigits(num_clients=clients, labelled_clients=labelled or clients, partition="iid", **args)
    data.setup()
    return data


@cache
def plain_fabric(precision: str = "32-true") -> Fabric:
    """One CPU process."""
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    fabric.launch()
    return fabric


def make_method(name: str | type, num_classes: int = 10, seed: int = 0, **args: Any) -> FedMethod:
    """A method, by name or class, around a freshly initialised small CNN."""
    cls: Any = find_class(name, KINDS["method"]) if isinstance(name, str) else name
    torch.manual_seed(seed)
    known = {
        "model": models.build("small_cnn", num_classes),
        "num_classes": num_classes,
        "num_clients": 6,
        "image_shape": (3, 32, 32),
    }
    supplied = {k: v for k, v in known.items() if k in without_default(cls)}
    return cls(**supplied, **args)


SHORT = ("warmup_rounds", "local_epochs", "server_pretrain", "server_epochs")
FLOWING = {
    "threshold": 0.1003,
    "pl_threshold": 0.1003,
    "confidence_gate": 0.05,
    "entropy_gate": 5.0,
    "helper_every": 1,
    "lambda_s": 1.0,  # ten times a loss is more than a network without norms can bear
    "lambda_l2": 1.0,
    "projector_width": 64,
}


def quick(name: str | type) -> dict[str, Any]:
    """Shortest schedule: one warm-up round, one local epoch, one pre-training call, where the method has them."""
    arguments = make_method(name).hparams
    return {k: 1 for k in SHORT if arguments.get(k, 0) > 1}


def flowing(name: str | type) -> dict[str, Any]:
    """The shortest schedule with thresholds that untrained networks reach, so that pseudo-labels flow."""
    arguments = make_method(name).hparams
    return quick(name) | {k: v for k, v in FLOWING.items() if k in arguments}


def make_federation(name: str | type, data: Digits | None = None, rounds: int = 3, **args: Any) -> Federation:
    """A federation of a method in the scenario it was made for."""
    precision = args.pop("precision", "32-true")
    engine = {k: args.pop(k) for k in ("slots", "replay", "callbacks") if k in args}
    method = make_method(name, **args)
    data = data or make_data(method.scenario)
    if precision == "64-true":
        method = method.double()
        data.place(torch.device("cpu"), torch.float64)
    return Federation(method, data, data.roster(0), plain_fabric(precision), rounds, seed=0, **engine)


def site_of(federation: Federation, visit: Visit | None = None) -> LocalSite:
    """The place of a client's visit; by default that of client 0 in round 0."""
    data = federation.data.client(visit.client if visit else 0)
    return LocalSite(federation.method, federation.engine.around, data, visit or Visit(size=data.size), [])


def visited(federation: Federation, visit: Visit, state: ClientState | None = None) -> tuple[Outcome, ClientState]:
    """One visit by the federation's engine: what came of it, and what the client keeps."""
    return federation.engine.client(visit, federation.engine.sent(visit, federation.server), state)


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
