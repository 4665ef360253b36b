"""Batch-norm statistics that the server measures anew: of which images, in which batches, and what uses them."""

from typing import Any

import torch
from torch import Tensor

from benchmark.federation.loop import Federation
from datamodules.partition.sites import true_labels
from federations import make_data, make_method, plain_fabric, site_of
from methods import models
from methods.fl2 import FL2


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
    uploads, *_ = federation.run_visits(federation.visits(0)[:1])
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
