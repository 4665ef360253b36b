"""FixMatch: when pseudo-labels are made, what the loss is a mean over, and joint batches with a client's own labels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark.registry import KINDS, find_class
from datamodules.base import SiteData
from federations import FewDigits, different, few_in, make_federation, rounds_until, site_of
from methods.ablations.fixmatch import EveryStep
from methods.fixmatch import FixMatch


@pytest.mark.parametrize("cls", [FixMatch, EveryStep])
def test_clients_with_labels(cls: type[FixMatch]) -> None:
    """Own labels cycle beside the pseudo-labelled images, or are walked through once where there are none of these."""
    data = few_in("all_clients")
    for threshold, labelled_only in ((0.0, False), (1.1, cls is FixMatch)):
        federation = make_federation(cls, data, threshold=threshold, batch_size=4, local_epochs=1)
        site = data.client(0)
        streams = federation.method.visit_streams(site_of(federation))
        assert streams["labelled"].batch_size == 4
        assert streams["labelled"].cycle != labelled_only
        assert len(streams["unlabelled"]) == (0 if labelled_only else len(site.unlabelled))
        seen: list[dict[str, Any]] = []
        federation.method.on_train_batch_end = lambda *a, to=seen: to.append(a[1])
        federation.run_visits(federation.visits(0)[:1])
        assert len(seen) == -(-len(site.labelled if labelled_only else site.unlabelled) // 4)
        assert all(("unlabelled" in b) != labelled_only for b in seen)


@pytest.mark.parametrize("threshold", [0.0, 1.1])
def test_full_batches(threshold: float) -> None:
    """One step per epoch on everything; a client that keeps nothing walks through its labels, at most 64 at once."""
    federation = make_federation("fixmatch", few_in("all_clients"), threshold=threshold, full_batch=True)
    site = federation.data.client(0)
    (first, *others) = federation.method.local_work(site_of(federation))
    sizes = {name: (len(stream), stream.batch_size) for name, stream in first.streams.items() if stream.usable}
    labels = len(site.labelled)
    if threshold:
        assert sizes == {"labelled": (labels, 64)}
    else:
        assert sizes == {"labelled": (labels, labels), "unlabelled": (len(site.unlabelled),) * 2}
    assert len(others) == 4 and all(one is first for one in others)


@pytest.mark.parametrize("name", ["fixmatch", "semifl", "feddb"])
def test_one_confident_image_where_batches_need_two(name: str) -> None:
    """It cannot be trained on, so the client walks through its labels once, as without any."""
    cls: Any = find_class(name, KINDS["method"])

    class One(cls):  # type: ignore[misc]
        def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
            labels, keep = super().select(probabilities)
            return labels, torch.arange(len(keep)) == 3

    run = make_federation(One, few_in("all_clients"), min_batch=2, batch_size=64, local_epochs=1)
    seen: list[dict[str, Any]] = []
    run.method.on_train_batch_end = lambda *a: seen.append(a[1])
    run.run_visits(run.visits(0)[:1])
    assert [set(batch) for batch in seen] == [{"labelled"}]


class HalfLabelled(FewDigits):
    """At every client the second half of the labelled images loses its labels."""

    def setup(self, stage: str | None = None) -> None:
        """Cut the clients' sets."""
        super().setup(stage)
        for k, site in enumerate(self.clients):
            half = len(site.labelled) // 2
            index = site.labelled[:half], site.labels[:half], site.labelled[half : 2 * half]
            self.clients[k] = SiteData(*index)


def test_without_weight_of_pseudo_labels_it_is_fedavg_on_the_labels() -> None:
    """lambda_u = 0 while pseudo-labels are selected: the bits of ``FedAvg``; with lambda_u = 1 another model."""

    def trained(name: str | type, **args: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        data = HalfLabelled(num_clients=3, labelled_clients=3, partition="iid", pipeline="randaugment_uniform", side=16)
        data.setup()
        same = {"batch_size": 32, "local_epochs": 2, "lr_schedule": "constant", "server_momentum": 0.0}
        run = make_federation(name, data, clip_norm=1.0, nesterov=True, **same, **args)
        return rounds_until(run, 2)[-1], run.method.tensors("shared")

    _, fedavg = trained("fedavg", aggregation="uniform")
    for weight, others in ((0.0, []), (1.0, list(fedavg))):
        row, model = trained(EveryStep, threshold=0.1, lambda_u=weight)
        assert row["pseudo/selected"] > 0
        assert different(model, fedavg) == others


def test_labels_are_fixed_for_the_visit() -> None:
    """round_start: an image keeps its label over the epochs while its strong view is drawn anew."""
    federation = make_federation("fixmatch", few_in("server"), threshold=0.0, local_epochs=3)
    federation.method.hparams["lr"] = 0.5
    seen: list[dict[str, Tensor]] = []
    federation.method.on_train_batch_end = lambda *a: seen.append(a[1]["unlabelled"])
    federation.run_visits(federation.visits(0)[:1])
    images = federation.data.client(0).size
    steps = -(-images // 32)
    epochs = [torch.cat([s["y"] for s in seen[k * steps : (k + 1) * steps]]) for k in range(3)]
    assert len(seen) == 3 * steps
    assert all(torch.equal(e.sort().values, epochs[0].sort().values) for e in epochs)
    views = [torch.cat([s["strong"] for s in seen[k * steps : (k + 1) * steps]]) for k in range(2)]
    assert not torch.equal(views[0].sum((1, 2, 3)).sort().values, views[1].sum((1, 2, 3)).sort().values)
