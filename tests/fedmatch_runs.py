"""Runs of FedMatch on small networks and a few digits, in double precision unless asked otherwise."""

from typing import Any

import torch
from torch import Tensor

from benchmark.federation.loop import Federation
from datamodules.base import Scenario
from datamodules.digits import Digits
from federations import NUM_CLIENTS, FewDigits, few_in, plain_fabric
from methods import models
from methods.fedmatch import FedMatch

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet9_plain": {"width": 2},
    "resnet9": {"width": 2},
    "static": {"name": "wrn28_2", "depth": 10, "width": 1, "norm": "static"},
    "running": {"name": "wrn28_2", "depth": 10, "width": 1, "norm": "running"},
    "group": {"name": "wrn28_2", "depth": 10, "width": 1, "norm": "group"},
}


GENTLE = {"lr": 0.01, "lambda_s": 1.0, "lambda_l2": 1.0}
"""The small CNN has no norms, and cannot bear a loss that counts ten times."""


PLAIN = {"lr_schedule": "constant", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}


AT_CLIENTS: dict[str, Any] = {"batches": "in_order", "batch_size": 10, "l1_threshold": 1e-3, "delta": 2e-4, **PLAIN}
"""The released recipe with labels at the clients, but for thresholds that some entries of every message reach."""


def few(
    scenario: Scenario = "server", dtype: torch.dtype = torch.float64, clients: int = 6, side: int = 16
) -> FewDigits:
    """A few digits over these clients, set up."""
    data = few_in(scenario, num_clients=clients, side=side)
    data.place(torch.device("cpu"), dtype)
    return data


def single() -> FewDigits:
    """In single precision, with labels at the server, for as many clients as a method of the contract has."""
    return few(dtype=torch.float32, clients=NUM_CLIENTS)


def method(network: str = "resnet9_plain", cls: type[FedMatch] = FedMatch, seed: int = 0, **args: Any) -> FedMatch:
    """Around a small network, in double precision, with one epoch everywhere unless the arguments say otherwise."""
    options = dict(NETWORKS[network])
    torch.manual_seed(seed)
    model = models.build(options.pop("name", network), 10, **options)
    known = {"num_classes": 10, "num_clients": 6, "image_shape": (3, 16, 16)}
    return cls(model, **known, **{"local_epochs": 1, "server_epochs": 1, **args}).double()


def federation(made: FedMatch, data: Digits | None = None, rounds: int = 4) -> Federation:
    """In double precision, with labels at the server unless the data says otherwise."""
    data = data or few()
    return Federation(made, data, data.roster(0), plain_fabric("64-true"), rounds, seed=0)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of tensors that both have and that differ."""
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}
