"""The server's own work in the loop, and what a run refuses or says where nobody trains."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmark.registry import KINDS, find_class
from datamodules.common.errors import RunError
from federations import Unaugmented, make_data, make_federation, run_rows
from methods.base import Pass, Upload


class ServerTrains(Unaugmented):
    """Clients do nothing; the server trains on its labels before and in every round."""

    scenario = "server"

    def make_upload(self, client):
        return None

    def server_step(self, server):
        steps = server.fit([Pass(self.streams(server.data))] * (2 if server.visit.before_first_round else 1))
        self.steps = [*getattr(self, "steps", []), steps]


def test_the_server_trains_and_keeps_its_momentum():
    """As plain SGD over 2 + 3 passes would, momentum carried along, after a resume too."""
    whole = make_federation(ServerTrains, rounds=3)
    rows = run_rows(whole)
    assert whole.method.steps == [2, 1, 1, 1]  # 40 labels, a batch of 64
    assert rows[-1]["bytes_up"] == 0
    assert [row["server/loss"] for row in rows] == sorted((r["server/loss"] for r in rows), reverse=True)

    data, site = whole.data, whole.data.server
    model = make_federation(ServerTrains, data).method.model
    optimizer = torch.optim.SGD(model.parameters(), 0.03, 0.9, weight_decay=5e-4, fused=True)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.take("test", site.labelled)), site.labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(whole.server[f"model.{name}"], value, rtol=1e-4, atol=1e-6)


class LogsAtTheServer(ServerTrains):
    """The server logs when it has averaged, and when it trains."""

    def make_upload(self, client):
        return Upload(client.visit, self.tensors("shared"), float(client.visit.client + 1))

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.log("weight", sum(upload.weight for upload in uploads))
        self.log("both", 1.0)
        assert self.tallied("both") == 1.0

    def server_step(self, server):
        self.log("both", 2.0)


@pytest.mark.parametrize("slots", [None, 2])
def test_what_the_server_logs_is_in_the_row(slots: int | None) -> None:
    """A name that both hooks log has the mean of them."""
    rows = run_rows(make_federation(LogsAtTheServer, rounds=2, slots=slots))
    clients = make_federation(LogsAtTheServer).data.num_clients
    assert [row["server/weight"] for row in rows] == [sum(range(1, clients + 1))] * 2
    assert [row["server/both"] for row in rows] == [1.5, 1.5]


def test_what_hooks_draw_outside_visits_is_the_same_after_an_interruption() -> None:
    """Noise at the server comes from a stream of the round, not from wherever torch's generator stands."""

    class Noisy(find_class("fedavg", KINDS["method"])):
        def aggregate(self, uploads: Any) -> None:
            super().aggregate(uploads)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 1e-2 * torch.randn_like(parameter)

    whole, half, rest = (make_federation(Noisy, rounds=n) for n in (2, 1, 2))
    whole.run()
    half.run()
    rest.load_state_dict(half.state_dict())
    torch.manual_seed(99)
    rest.run()
    assert all(torch.equal(value, rest.server[name]) for name, value in whole.server.items())


@pytest.mark.parametrize("name", ["fedavg", "fed_consist", "rscfed", "fedirm", "cbafed", "local_ssl", "feddure"])
def test_training_on_labels_that_nobody_has_is_refused(name: str) -> None:
    """A record of chasing a network that has learnt nothing would look like a result."""
    data = make_data("server", pipeline="randaugment_levels_cutout")
    arguments = {"warmup_rounds": 0} if name == "cbafed" else {}
    with pytest.raises(RunError, match="no client holds labels"):
        make_federation(name, data, **arguments).run()


def test_a_server_that_trains_alone_needs_labels() -> None:
    for name in ("fedcon", "server_only"):
        with pytest.raises(RunError, match=r"the server has no labels to train on; set data\.scenario=server"):
            make_federation(name, make_data("all_clients")).run()
