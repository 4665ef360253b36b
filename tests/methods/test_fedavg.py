"""FedAvg's residual connection (FedAvg+) against released sequences and closed forms."""

from typing import Any

import pytest
import torch
from torch import nn

from federations import make_federation
from golden_files import load
from methods.ops import residual_connection

CASES = {case["name"]: case for case in load("cbafed/residual_sequences")["cases"]}


class Scalar(nn.Module):
    """One number, one statistic and one counter."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value))
        self.register_buffer("running_mean", torch.tensor(value))
        self.register_buffer("num_batches_tracked", torch.tensor(int(value)))

    def set(self, value: float) -> None:
        """Overwrite all three."""
        for tensor in self.state_dict().values():
            tensor.copy_(torch.tensor(value))

    def __float__(self) -> float:
        return float(self.weight.detach())


@pytest.mark.parametrize("name", CASES)
def test_released_sequences(name: str) -> None:
    """Values after every epoch or round: +1 each, or the aggregates given."""
    case = CASES[name]
    given, server = case["inputs"], case["inputs"]["level"] == "server"
    start = given["warmup_value"] if server else given["start"]
    values = given.get("aggregates") or [None] * (given["rounds"] if server else given["epochs"])
    model, reference, seen = Scalar(start), Scalar(start), []
    for index, value in enumerate(values):
        model.set(float(model) + 1 if value is None else value)
        residual_connection(reference, model, index, 0.5 if server else 0.8, 5, first=not server)
        seen.append(float(model))
    assert len(seen) >= len(case["outputs"]) > 0
    assert seen[-len(case["outputs"]) :] == pytest.approx(case["outputs"], abs=1e-3)


def test_first_reference_of_the_server_may_be_the_first_round() -> None:
    """first: the mix at index 5 is with the model after index 0, so 1 and 6 become 3.5 instead of 3."""
    seen = {}
    for first in (False, True):
        model, reference = Scalar(0.0), Scalar(0.0)
        for index in range(6):
            model.set(float(model) + 1)
            residual_connection(reference, model, index, 0.5, 5, first)
        seen[first] = float(model)
    assert seen == {False: 3.0, True: 3.5}


def test_everything_is_mixed_and_counters_are_truncated() -> None:
    """Weights, statistics and counters; the reference becomes the mix."""
    model, reference = Scalar(6.0), Scalar(1.0)
    residual_connection(reference, model, 5, 0.7, 5)
    for mixed in (model, reference):
        assert float(mixed) == pytest.approx(0.7 * 1 + 0.3 * 6)
        assert float(mixed.running_mean) == pytest.approx(2.5)
        assert int(mixed.num_batches_tracked) == 2


def test_no_mix_without_alpha_or_between_the_steps() -> None:
    """alpha = 0 and other indices leave both modules alone."""
    for index, alpha in ((5, 0.0), (0, 0.0), (4, 0.8), (6, 0.8), (7, 0.8)):
        model, reference = Scalar(6.0), Scalar(1.0)
        residual_connection(reference, model, index, alpha, 5)
        assert (float(model), float(reference)) == (6.0, 1.0)


def run(rounds: int, **args: Any) -> list[dict[str, torch.Tensor]]:
    """Global models after each round."""
    federation, seen = make_federation("fedavg", rounds=rounds, **args), []
    for number in range(rounds):
        federation.run_round(number)
        seen.append({k: v.clone() for k, v in federation.server.items() if k.startswith("model.")})
    return seen


def test_first_mix_is_the_weighted_mean_of_two_global_models() -> None:
    """Until the mix FedAvg+ is FedAvg; then 0.8 of the old model and 0.2 of the new one."""
    plain, plus = run(3), run(3, res_client_alpha=0.8, res_skip=2)
    for number in (0, 1):
        assert all(torch.equal(v, plain[number][k]) for k, v in plus[number].items())
    for name, value in plus[2].items():
        torch.testing.assert_close(value, 0.8 * plain[0][name] + 0.2 * plain[2][name])


def test_the_first_reference_may_be_the_initial_model() -> None:
    """res_client_reference = initial draws back to the untrained network."""
    initial = {k: v for k, v in make_federation("fedavg").server.items()}
    plain = run(3)
    for name, value in run(3, res_client_alpha=0.8, res_skip=2, res_client_reference="initial")[2].items():
        torch.testing.assert_close(value, 0.8 * initial[name] + 0.2 * plain[2][name])
