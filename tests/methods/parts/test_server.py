"""The server: training on its labels, batch statistics that it measures anew, momentum, rates over rounds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from datamodules.partition.sites import true_labels
from federations import few_in, make_data, make_federation, make_method, plain_fabric, site_of
from golden_files import load
from methods import models
from methods.ablations.fl2 import AsWritten
from methods.ablations.semifl import NormsInOneStream
from methods.base import Upload, Visit
from methods.fl2 import FL2
from methods.parts.server import StaticNorms
from methods.semifl import SemiFL

# --- labels


def test_pre_training_goes_on_in_the_first_round() -> None:
    """It is the server's routine several times over, with one optimiser state, in other orders of the labels."""
    federation = make_federation("server_only", server_pretrain=2, server_epochs=1, rounds=1, lr=0.0, weight_decay=1e3)
    steps: list[Tensor] = []
    federation.method.on_train_batch_end = lambda *args: steps.append(args[1]["labelled"]["y"])
    federation.server_phase(0, first=True)
    assert len(steps) == 2 * 4
    federation.server_phase(0)
    assert len(steps) == 3 * 4
    momenta = [state["momentum_buffer"] for state in federation.server_state[0]]
    decays = [1e3 * (1 - 0.9**12) / 0.1 * p.detach() for p in federation.method.model.parameters()]
    torch.testing.assert_close(momenta, decays, rtol=0, atol=40.0)  # gradients are cut short
    first, last = torch.cat(steps[:4]), torch.cat(steps[8:])
    assert torch.equal(first.sort().values, last.sort().values)
    assert not torch.equal(first, last)


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


def test_batches_of_the_norm_statistics() -> None:
    """Tens of labelled images first, then the pool, class by class as stored; or one stream in the data set's order; or
    the active clients' images, once there are any.
    """
    data = make_data("server")  # 40 labels, a pool of 1397

    def batches(cls: type[StaticNorms], select: bool = True) -> list[Tensor]:
        method = make_method(cls)
        if select:
            method.select_clients(0, data.roster(0, participants=2))
        return list(method.norm_batches(data))

    def sizes(cls: type[StaticNorms], **args: bool) -> list[int]:
        return [len(batch) for batch in batches(cls, **args)]

    assert sizes(SemiFL) == sizes(FL2) == sizes(AsWritten, select=False) == [10] * 4 + [1397]
    assert sizes(AsWritten) == [349, 349]
    assert sizes(NormsInOneStream) == [250] * 5 + [187]
    stored = batches(SemiFL)[-1]
    classes = true_labels(data)[stored]
    assert torch.equal(classes, classes.sort().values)
    assert torch.equal(torch.cat(batches(NormsInOneStream))[40:], stored.sort().values)


def test_static_statistics_are_measured_sent_used_and_never_trained() -> None:
    """After the server's step the buffers are those of five batches; a client labels with them in evaluation mode, so
    that a prediction does not depend on its batch, and returns them unchanged.
    """
    torch.manual_seed(0)
    network = models.build("wrn28_2", 10, image_size=16, depth=8, width=1)
    method = FL2(network, server_pretrain=1, server_epochs=1, local_epochs=1)
    data = few_in("server", side=16)
    federation = Federation(method, data, data.roster(0), plain_fabric(), rounds=1, seed=0)
    federation.server_phase(0, first=True)
    of_model = {k: v.clone() for k, v in federation.server.items() if k.startswith("model")}
    buffers = {k: v for k, v in of_model.items() if "running" in k or "tracked" in k}
    assert {int(v) for k, v in buffers.items() if "tracked" in k} == {5}
    assert all(bool(v.any()) for v in buffers.values())

    (upload,), _ = federation.run_visits(federation.visits(0)[:1])
    assert all(torch.equal(upload.tensors[k], v) for k, v in buffers.items())
    assert any(not torch.equal(upload.tensors[k], v) for k, v in of_model.items())

    method.load_tensors(federation.server)
    site = site_of(federation)
    index = site.data.unlabelled[:8]
    views = torch.cat(list(site.views("weak", index)))
    together = method.probabilities(site, index)
    with torch.no_grad():
        alone = torch.cat([method.predict(x[None]) for x in views])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
