"""FedDB: DMA against the released server, the local steps against plain torch, and what every switch does."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from datamodules.digits import Digits
from federations import FewDigits, make_method, plain_fabric, run_rows, site_of, visited
from golden_files import load
from methods.ablations.feddb import AllImages, CountedSteps
from methods.base import Upload, Visit
from methods.feddb import FedDB, model_weights
from methods.fixmatch import FixMatch
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


def test_one_released_iteration_is_a_nesterov_step_of_a_fresh_optimiser() -> None:
    """100 times: a new torch.optim.SGD on the mean squared error, then softmax."""
    averages = torch.distributions.Dirichlet(torch.full((10,), 0.3)).sample((6,)).double()
    beta = torch.full((6,), 1 / 6, dtype=torch.float64)
    for _ in range(100):
        beta = beta.detach().requires_grad_()
        step = torch.optim.SGD([beta], lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.9)
        F.mse_loss(beta @ averages, torch.full((10,), 0.1, dtype=torch.float64)).backward()
        step.step()
        beta = beta.detach().softmax(dim=0)
    torch.testing.assert_close(model_weights(averages), beta)


@pytest.mark.parametrize("as_written", [False, True])
def test_degenerate_clients(as_written: bool) -> None:
    """One client weighs 1; equal or uniform APP-Us (a root of zero as written) leave equal weights, never NaN."""
    assert model_weights(torch.tensor([[0.7, 0.3]]), as_written).tolist() == [1.0]
    for averages in (torch.full((4, 5), 0.2), torch.tensor([[0.6, 0.4]]).expand(3, 2), torch.eye(4)):
        weights = model_weights(averages, as_written)
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / len(weights)))


@pytest.mark.parametrize("as_written", [False, True])
def test_weights_follow_the_clients_and_ignore_the_order_of_classes(as_written: bool) -> None:
    """Permuting clients permutes the weights; permuting classes changes nothing."""
    averages = torch.distributions.Dirichlet(torch.full((7,), 0.5)).sample((5,)).double()
    clients, classes = torch.randperm(5), torch.randperm(7)
    weights = model_weights(averages, as_written)
    torch.testing.assert_close(model_weights(averages[clients], as_written), weights[clients])
    torch.testing.assert_close(model_weights(averages[:, classes], as_written), weights)
    assert float(weights.sum()) == pytest.approx(1.0)


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


def test_clients_weigh_by_app_u_and_never_by_size() -> None:
    """The aggregate is the DMA mean whatever the sizes; without DMA it is the plain mean."""
    averages = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    uploads = [
        Upload(Visit(client=k), {"model.w": torch.eye(3)[k]}, 1000.0**k, {"app_u": averages[k]}) for k in range(2)
    ]
    for rule, expected in (("dma", model_weights(averages)), ("uniform", torch.tensor([0.5, 0.5]))):
        method = FedDB(Vector([0.0] * 3), num_classes=2, aggregation=rule, server_momentum=0.0)
        method.aggregate(uploads)
        torch.testing.assert_close(method.model.w.data[:2], expected)


# --- local training


@pytest.mark.parametrize("share", [1, 2])
def test_the_loss_over_all_images_is_the_mean_over_confident_ones_times_their_share(share: int) -> None:
    """As written; the same step where all are confident."""
    run = federation(name=AllImages, threshold=0.0)
    method, site = run.method, site_of(run)
    probabilities = torch.full((len(site.data.unlabelled), 10), 0.1)
    method.hparams.threshold = 0.5
    probabilities[::share, 3] = 0.9
    stream = method.pseudo_labelled(site, probabilities, *method.select(probabilities))["unlabelled"]
    assert stream.fields["share"].tolist() == [pytest.approx(1 / share, abs=0.02)] * len(stream)
    samples = {"strong": torch.randn(4, 3, SIDE, SIDE), "y": torch.arange(4), "share": stream.fields["share"][:4]}
    plain = F.cross_entropy(method(samples["strong"]), samples["y"])
    torch.testing.assert_close(method.unlabelled_loss(samples), plain * float(samples["share"][0]))


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


@pytest.mark.parametrize("threshold", [0.0, 1.1], ids=["all", "none"])
def test_counted_steps_are_feddbs_own_where_the_numbers_agree(threshold: float) -> None:
    """All images are confident, or none is: a pass over the images, or the labels, is the number of steps."""
    data = small_data(1)
    images = len(data.client(0).unlabelled if threshold == 0 else data.client(0).labelled)
    args = {"threshold": threshold, "full_batch": False, "batch_size": 32, "local_epochs": 2}
    counted = federation(data=data, name=CountedSteps, steps_per_epoch=-(-images // 32), **args)
    plain = federation(data=data, **args)
    assert run_rows(counted) == run_rows(plain)
    assert all(torch.equal(value, plain.server[name]) for name, value in counted.server.items())


# --- relations to other methods


def test_without_dma_it_is_debiased_fixmatch_bit_for_bit() -> None:
    """FixMatch-FedDPL is FedDB with uniform weights."""
    same = {"dpl": True, "full_batch": True, "local_epochs": 2}
    feddb, fixmatch = federation(aggregation="uniform", **same), federation(name="fixmatch", eval_batch=250, **same)
    assert isinstance(fixmatch.method, FixMatch) and not isinstance(fixmatch.method, FedDB)
    rows, other = run_rows(feddb), run_rows(fixmatch)
    assert rows == other
    assert all(torch.equal(v, fixmatch.server[k]) for k, v in feddb.server.items() if k in fixmatch.server)


def test_dma_changes_the_average_only() -> None:
    """In the first round the clients' models do not depend on dma; the APP-U momentum draws its own views."""
    with_dma, without = federation(rounds=1), federation(rounds=1, aggregation="uniform")
    first, second = (r.run_visits(r.visits(0))[0] for r in (with_dma, without))
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(v, b.tensors[k]) for k, v in a.tensors.items())
        assert "app_u" in a.stats and "app_u" not in b.stats
