"""FedAvg's objective and bounds; its residual connection (FedAvg+) against released sequences and closed forms."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from datamodules.base import SiteData
from datamodules.partition.roster import Roster
from federations import few_data, make_federation, make_method, run_rows
from golden_files import load
from methods.parts.labelled_clients import residual_connection

CASES = {case["name"]: case for case in load("cbafed/residual_sequences")["cases"]}


def test_objective_and_participants() -> None:
    """Cross-entropy of the labelled batch; only participants with labels train."""
    method = make_method("fedavg")
    x, y = torch.randn(5, 3, 24, 24), torch.tensor([0, 1, 2, 3, 9])
    torch.testing.assert_close(
        method.training_step({"labelled": {"x": x, "y": y}}, 0), F.cross_entropy(method.model(x), y)
    )
    assert method.select_clients(3, Roster(6, (1, 4))) == [[1, 4]]
    sampled = Roster(100, tuple(range(0, 100, 2)), participants=10)
    assert method.select_clients(3, sampled) == [[c for c in sampled.sample(3) if c % 2 == 0]]


def test_the_upper_bound_weighs_all_clients_by_size() -> None:
    """All clients labelled: sum of n_i w_i over the sum of n_i."""
    data = few_data(3)
    site = data.clients[1]
    data.clients[1] = SiteData(site.labelled[:20], site.labels[:20], site.unlabelled)
    run = make_federation("fedavg", data, rounds=1)
    visits = run.visits(0)
    outcomes = run.engine.run_visits(visits, run.server, {})
    uploads = [outcomes[visit].upload for visit in visits]
    run_rows(run)
    sizes = [data.client(c).size for c in range(3)]
    assert sizes == [83, 20, 83]
    for name in run.method.names("shared"):
        mean = sum(n * u.tensors[name].double() for n, u in zip(sizes, uploads, strict=True) if u) / sum(sizes)
        torch.testing.assert_close(run.server[name], mean.float())


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


def test_everything_is_mixed_and_counters_are_truncated() -> None:
    """Weights, statistics and counters; the reference becomes the mix."""
    model, reference = Scalar(6.0), Scalar(1.0)
    residual_connection(reference, model, 5, 0.7, 5)
    for mixed in (model, reference):
        assert float(mixed) == pytest.approx(0.7 * 1 + 0.3 * 6)
        assert float(mixed.running_mean) == pytest.approx(2.5)
        assert int(mixed.num_batches_tracked) == 2
