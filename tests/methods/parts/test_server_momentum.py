"""The server's optimiser and the rate that follows the rounds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from golden_files import load
from methods.base import Upload, Visit
from methods.fl2 import FL2
from methods.parts.aggregation import weighted_mean
from methods.parts.server_momentum import momentum_step

GOLDEN = load("fl2/lsaa_and_server_optimizer")


class Toy(nn.Module):
    """The layers of the reference numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.bn1 = nn.BatchNorm1d(2, track_running_stats=False)


def state(values: dict[str, Any]) -> dict[str, Tensor]:
    """Float64 tensors by the method's names."""
    return {f"model.{k}": torch.tensor(v, dtype=torch.float64) for k, v in values.items()}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["id"])
def test_released_aggregation(case: dict[str, Any]) -> None:
    """Weights, global model and momentum over several rounds, fine-tuned in between or not."""
    given = case["inputs"]
    rule = "lsaa" if given["algorithm"] == "flfl" else "uniform"
    method = FL2(Toy(), aggregation=rule, server_momentum=given["server_momentum"]).double()
    method.load_tensors(state(given["initial_global"]))
    tolerance = {"rtol": GOLDEN["rtol"], "atol": GOLDEN["atol"]}
    for number in case["outputs"]["rounds"]:
        method.load_tensors(state(number["global_before"]))
        tau = [{"tau": torch.tensor(t or 0.5, dtype=torch.float64)} for t in number["client_taus"]]
        clients = enumerate(zip(number["client_states"], tau, strict=True))
        uploads = [Upload(Visit(client=k, size=9 + k), state(s), 9.0 + k, t) for k, (s, t) in clients]
        weights = torch.tensor(method.weights(uploads), dtype=torch.float64)
        expected = number["expected"]
        torch.testing.assert_close(
            weights / weights.sum(), torch.tensor(expected["weights"], dtype=torch.float64), **tolerance
        )
        method.aggregate(uploads)
        found = method.tensors("shared", "server")
        for name, value in state(expected["global_after"]).items():
            torch.testing.assert_close(found[name], value, **tolerance)
        for name, value in state(expected["momentum_buffer"]).items():
            torch.testing.assert_close(found[name.replace("model", "velocity", 1)], value, **tolerance)


def test_first_step_and_no_momentum_are_the_mean() -> None:
    """M starts as the displacement itself; without momentum every step is the mean."""
    g = torch.Generator().manual_seed(0)
    sent, *clients = ({"w": torch.randn(5, generator=g, dtype=torch.float64)} for _ in range(4))
    mean = weighted_mean(clients, [1.0, 2.0, 3.0])
    zero = {"w": torch.zeros(5, dtype=torch.float64)}
    torch.testing.assert_close(momentum_step(sent, mean, zero, 0.5)[0], mean)
    torch.testing.assert_close(momentum_step(sent, mean, {"w": torch.ones(5).double()}, 0.0)[0], mean)
