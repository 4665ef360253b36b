"""FedDB: DMA against the released server, the local steps against plain torch, and what every switch does."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from datamodules.digits import Digits
from federations import FewDigits, make_method, plain_fabric, site_of, visited
from golden_files import load
from methods.ablations.feddb import CountedSteps
from methods.base import Upload, Visit
from methods.feddb import FedDB, model_weights
from methods.parts.tensors import app_u

DMA = load("feddb/dma")
SIDE = 16
FEW = {"scenario": "all_clients", "partition": "iid", "num_labels": 50, "pipeline": "randaugment_maximal", "side": SIDE}


def small_data(clients: int = 3, **args: Any) -> Digits:
    """A few digits with labels at all clients and the labelled images among the unlabelled ones."""
    data = FewDigits(num_clients=clients, **{**FEW, "union_mode": "labelled", **args})
    data.setup()
    return data


@cache
def warm_start() -> dict[str, Tensor]:
    """Weights of the small network after a little training on the labelled digits: some predictions are certain."""
    model, data = make_method("fedavg", side=SIDE).model, small_data()
    clients = [data.client(k) for k in range(3)]
    x, y = data.take("test", torch.cat([c.labelled for c in clients])), torch.cat([c.labels for c in clients])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(25):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def federation(
    rounds: int = 2, data: Digits | None = None, name: str | type = "feddb", double: bool = False, **args: Any
) -> Federation:
    """A method around the warm network, with a threshold that part of the images pass."""
    method = make_method(name, side=SIDE, **{"threshold": 0.7, "lr": 0.01, **args})
    method.model.load_state_dict(warm_start())
    data = data or small_data()
    if double:
        method.double()
        data.place(torch.device("cpu"), torch.float64)
    return Federation(method, data, data.roster(0), plain_fabric(), rounds, seed=0)


# --- DMA


@pytest.mark.parametrize("case", DMA["cases"], ids=lambda c: c["name"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_released_weights(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Weights as released and as written, and how far the released ones are from uniform."""
    averages, out = torch.tensor(case["inputs"]["app_u"], dtype=dtype), case["outputs"]
    weights = model_weights(averages)
    tolerance = {"rtol": 0.0, "atol": DMA["tolerance"], "check_dtype": False}
    torch.testing.assert_close(weights, torch.tensor(out["weights_as_coded"]), **tolerance)
    change = float((weights * len(weights) - 1).abs().max())
    assert change == pytest.approx(out["max_relative_deviation_from_uniform"], abs=1e-4)
    if (written := out["weights_paper_variant_reference"]) is not None:
        torch.testing.assert_close(model_weights(averages, as_written=True), torch.tensor(written), **tolerance)


@pytest.mark.parametrize("as_written", [False, True])
def test_degenerate_clients(as_written: bool) -> None:
    """One client weighs 1; equal or uniform APP-Us (a root of zero as written) leave equal weights, never NaN."""
    assert model_weights(torch.tensor([[0.7, 0.3]]), as_written).tolist() == [1.0]
    for averages in (torch.full((4, 5), 0.2), torch.tensor([[0.6, 0.4]]).expand(3, 2), torch.eye(4)):
        weights = model_weights(averages, as_written)
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / len(weights)))


# --- server


class Vector(nn.Module):
    """Three weights."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def test_released_server_momentum() -> None:
    """Three rounds of two clients with equal APP-Us."""
    given, out = DMA["server_momentum"]["inputs"], DMA["server_momentum"]["outputs"]
    method = FedDB(Vector(given["initial"]), num_classes=2, server_momentum=given["server_momentum"])
    assert len(given["rounds"]) == len(out["global_after"]) == 3
    for clients, after in zip(given["rounds"], out["global_after"], strict=True):
        equal = {"app_u": torch.tensor([0.8, 0.2])}
        method.aggregate(
            [Upload(Visit(client=k), {"model.w": torch.tensor(w)}, 1.0 + k, equal) for k, w in enumerate(clients)]
        )
        torch.testing.assert_close(method.model.w.data, torch.tensor(after), rtol=0, atol=1e-6)


# --- local training


def test_local_training_is_what_plain_torch_computes() -> None:
    """Losses, clipping, Nesterov momentum, decay and the APP-U of one visit, recomputed by hand in float64."""
    run = federation(rounds=3, clip_norm=0.5, double=True)
    batches: list[Any] = []
    run.method.on_train_batch_start = lambda batch, _: batches.append(batch)
    visit = run.visits(0)[0]
    start: dict[str, Tensor] = {k: v.clone() for k, v in run.server.items()}
    upload = visited(run, visit)[0].upload
    method = run.method
    method.load_tensors(start)
    method.eval()
    parameters = list(method.model.parameters())
    buffers = [torch.zeros_like(p) for p in parameters]
    site_views = run.data.client(visit.client).unlabelled
    site = site_of(run, visit)
    with torch.no_grad():
        average = app_u(torch.cat([method.predict(x) for x in site.views("weak", site_views, size=250)]))
    method.train()
    for number, batch in enumerate(batches):
        with torch.no_grad():
            average = 0.5 * average + 0.5 * method.model(batch["app_u"]["weak"]).softmax(dim=1).mean(dim=0)
        loss = F.cross_entropy(method.model(batch["labelled"]["x"]), batch["labelled"]["y"])
        loss = loss + F.cross_entropy(method.model(batch["unlabelled"]["strong"]), batch["unlabelled"]["y"])
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        with torch.no_grad():
            for p, g, b in zip(parameters, gradients, buffers, strict=True):
                g = g * min(1.0, 0.5 / (float(norm) + 1e-6)) + 5e-4 * p
                b.copy_(g if number == 0 else 0.9 * b + g)
                p -= 0.01 * (g + 0.9 * b)
    assert upload is not None and len(batches) == 5
    torch.testing.assert_close(upload.stats["app_u"], average.to(upload.stats["app_u"].dtype), rtol=1e-5, atol=1e-6)
    for name, value in method.model.named_parameters():
        torch.testing.assert_close(upload.tensors[f"model.{name}"], value.data, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("threshold", "streams"), [(0.7, {"labelled", "unlabelled", "app_u"}), (1.1, {"labelled"})])
def test_counted_steps_do_not_follow_the_confident_images(threshold: float, streams: set[str]) -> None:
    """Seven steps in each of two epochs, with and without confident images, of at most ``unlabelled_bs`` of these."""
    sizes = {"steps_per_epoch": 7, "unlabelled_bs": 12, "batch_size": 8, "full_batch": False, "local_epochs": 2}
    run = federation(rounds=1, name=CountedSteps, threshold=threshold, **sizes)
    seen: list[Any] = []
    run.method.on_train_batch_start = lambda batch, _: seen.append(batch)
    run.run_visits(run.visits(0)[:1])
    assert len(seen) == 14 and all(set(batch) == streams for batch in seen)
    assert all(len(next(iter(batch[name].values()))) <= 12 for batch in seen for name in streams)
