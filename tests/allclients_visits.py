"""Two visits of SAGE's or ProxyFL's released trainer on a toy network, replayed by our methods."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.fit import Fit, OptimizerStates, kept_states
from federations import sums_of
from methods.base import Batch, FedMethod
from methods.models.backbone import Backbone, LinearHead


class Toy(Backbone):
    """Linear 4→5, batch norm, ReLU; a linear head of three classes."""

    feature_dim = 5

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), LinearHead(5, 3)

    def features(self, x: Tensor) -> Tensor:
        """Map vectors [B, 4] to features [B, 5]."""
        return F.relu(self.bn(self.fc1(x)))


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of a case as arguments of a method."""
    given = case["inputs"]
    same = {name: given[name] for name in ("threshold", "lr", "momentum", "weight_decay")}
    return {**same, "batch_size": given["labelled_batch"], "unlabelled_bs": given["unlabelled_batch"]}


def own_name(name: str) -> str:
    """Translate the released network's tensor name to ours."""
    return name if name.startswith(("feat_proj", "proxy_proj")) else f"model.{name.replace('classifier', 'head')}"


def start(method: FedMethod, case: dict[str, Any]) -> None:
    """Load the initial weights of a case into a method."""
    method.load_tensors({own_name(name): precise(value) for name, value in case["inputs"]["start_state"].items()})


def visits(method: FedMethod, case: dict[str, Any], tolerance: float) -> Iterator[dict[str, Any]]:
    """Run both visits with one optimiser state; compare with the released states and momenta; yield the results."""
    states: OptimizerStates = []
    for visit in case["visits"]:
        start(method, case)
        given = visit["inputs"]
        batches = list(batches_of(given))
        method.train()
        sums_of(method)
        fit = Fit(method, states, given["epochs"])
        for _ in fit.run(lambda _, batches=batches: batches):
            pass
        states = kept_states(method, fit.optimizers)
        names = {parameter: name for name, parameter in method.named_parameters()}
        found = {names[p]: own["momentum_buffer"] for one in fit.optimizers for p, own in one.state.items() if own}
        for ours, theirs in ((method.registered(), "state"), (found, "momentum")):
            for name, value in visit["outputs"][theirs].items():
                torch.testing.assert_close(ours[own_name(name)].double(), precise(value), rtol=0.0, atol=tolerance)
        yield visit["outputs"]


def batches_of(given: dict[str, Any]) -> Iterator[Batch]:
    """Yield the batches of a local epoch; labelled and unlabelled ones restart when exhausted."""
    labelled, unlabelled = given["batches"]["labelled"], given["batches"]["unlabelled"]
    for step in range(given["steps_per_epoch"]):
        one, other = labelled[step % len(labelled)], unlabelled[step % len(unlabelled)]
        yield {
            "labelled": {"x": precise(one["x"]), "y": torch.tensor(one["y"])},
            "unlabelled": {**{field: precise(other[field]) for field in ("weak", "strong")}, "index": torch.tensor([])},
        }


def precise(value: Any) -> Tensor:
    """Convert numbers to double precision."""
    return torch.tensor(value, dtype=torch.float64)
