"""The server: training on its labels, batch statistics that it measures anew, momentum, rates over rounds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from datamodules.partition.sites import true_labels
from federations import make_data, make_federation, make_method, plain_fabric, site_of
from golden_files import load
from methods import models
from methods.base import Upload, Visit
from methods.fl2 import FL2

# --- labels


def test_server_trains_and_keeps_its_momentum() -> None:
    """Pre-training is the server's routine several times over: 10 calls of 5 epochs of 4 steps, one optimiser state."""
    federation = make_federation("server_only", server_pretrain=2, rounds=1)
    steps = []
    federation.method.on_train_batch_end = lambda *args: steps.append(args[2])
    federation.server_phase(0, first=True)
    assert len(steps) == 2 * 5 * 4
    momenta = [s["momentum_buffer"].clone() for s in federation.server_state[0]]
    federation.run_round(0)
    assert len(steps) == 3 * 5 * 4
    after = [s["momentum_buffer"] for s in federation.server_state[0]]
    assert any(not torch.equal(a, b) for a, b in zip(momenta, after, strict=True))


def test_pre_training_and_the_first_server_step_see_other_batches() -> None:
    """They are two visits of round 0."""
    orders: dict[bool, list[Tensor]] = {}
    federation = make_federation("server_only", server_pretrain=1, server_epochs=1)
    method = federation.method
    method.on_train_batch_end = lambda *args: orders.setdefault(method.visit.before_first_round, []).append(
        args[1]["labelled"]["y"]
    )
    federation.server_phase(0, first=True)
    federation.server_phase(0)
    first, second = (torch.cat(orders[k]) for k in (True, False))
    assert torch.equal(first.sort().values, second.sort().values)
    assert not torch.equal(first, second)


def test_momentum_of_clients_is_reset_without_the_servers() -> None:
    federation = make_federation("fixmatch", server_pretrain=1, server_epochs=1, reset_momentum=True, rounds=1)
    federation.server_phase(0, first=True)
    momenta = [s["momentum_buffer"].clone() for s in federation.server_state[0]]
    federation.run_round(0)
    after = [s["momentum_buffer"] for s in federation.server_state[0]]
    assert any(not torch.equal(a, b) for a, b in zip(momenta, after, strict=True))
    assert all(not state.optimizers for state in federation.clients.values())


# --- momentum

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


# --- batch statistics


def with_norm(**args: Any) -> Federation:
    """(FL)2 around a small network with static batch norm."""
    torch.manual_seed(0)
    method, data = FL2(models.build("wrn28_2", 10, depth=10, width=1), **args), make_data("server")
    return Federation(method, data, data.roster(0), plain_fabric(), rounds=1, seed=0)


def sizes(**args: Any) -> list[int]:
    """Lengths of the batches that norm statistics are measured on: 40 labels, a pool of 1397."""
    method, data = make_method("semifl", **args), make_data("server")
    method.select_clients(0, data.roster(0, participants=2))
    return [len(x) for x in method.norm_batches(data)]


def test_batches_of_the_norm_statistics() -> None:
    """Tens of labelled images first, then the stored pool; scopes and one common stream."""
    assert sizes() == [10] * 4 + [1397]
    assert [len(x) for x in make_method("fl2").norm_batches(make_data("server"))] == sizes()
    assert sizes(sbn_batch=1000) == [10] * 4 + [1000, 397]
    assert sizes(sbn_scope="active") == [349, 349]
    assert sizes(sbn_order="dataset", sbn_batch=250) == [250] * 5 + [187]


def test_order_of_the_pool() -> None:
    """Class by class as stored, or in the data set's order."""
    data = make_data("server")

    def order(**args: Any) -> Tensor:
        return torch.cat(list(make_method("semifl", **args).norm_batches(data)))[40:]

    stored = order()
    classes = true_labels(data)[stored]
    assert torch.equal(classes, classes.sort().values)
    assert torch.equal(order(sbn_order="dataset"), stored.sort().values)


def test_static_statistics_are_measured_sent_and_never_trained() -> None:
    """After the server's step the buffers are those of five batches; clients return them unchanged."""
    federation = with_norm(server_pretrain=0, local_epochs=1)
    federation.server_phase(0, first=True)
    buffers = {k: v.clone() for k, v in federation.server.items() if "running" in k or "tracked" in k}
    assert {int(v) for k, v in buffers.items() if "tracked" in k and k.startswith("model")} == {5}
    first = next(k for k in buffers if k.endswith("running_mean") and k.startswith("model"))
    assert float(buffers[first].abs().sum()) > 0
    uploads, _ = federation.run_visits(federation.visits(0)[:1])
    for upload in uploads:
        assert all(torch.equal(upload.tensors[k], v) for k, v in buffers.items() if k.startswith("model"))
        assert any(not torch.equal(v, federation.server[k]) for k, v in upload.tensors.items())


def test_pseudo_labels_come_from_the_stored_statistics() -> None:
    """The labelling pass runs in evaluation mode: a prediction does not depend on its batch."""
    federation = with_norm(server_pretrain=1)
    federation.server_phase(0, first=True)
    method, data = federation.method, federation.data
    method.load_tensors(federation.server)
    site = site_of(federation)
    index = data.client(0).unlabelled[:8]
    views = torch.cat(list(site.views("weak", index)))
    together = method.probabilities(site, index)
    assert not method.training
    with torch.no_grad():
        alone = torch.cat([method.predict(x[None]) for x in views])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
