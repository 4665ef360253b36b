"""The server's own work in the loop, and what a run refuses or says where nobody trains."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmark.contract.federations import NUM_CLIENTS
from benchmark.registry import KINDS, find_class
from datamodules.common.errors import RunError
from federations import Unaugmented, few_federation, make_data, make_federation, run_rows
from methods.base import FedMethod, Pass, Upload


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


@pytest.mark.parametrize("hook", ["select_clients", "broadcast", "aggregate", "remember", "refresh_norm", "predict"])
@pytest.mark.parametrize("slots", [None, 2])
def test_errors_outside_visits_say_where(hook: str, slots: int | None) -> None:
    """A hook that breaks where nobody trains is named with its method and round."""

    def broken(*_: object) -> None:
        raise KeyError("lost")

    breaks = type("Breaks", (Unaugmented,), {hook: broken})
    with pytest.raises(RunError, match=rf"Breaks\.{hook}\b.*round 0: KeyError"):
        few_federation(breaks, 3, slots=slots).run()


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


class TeachesNothing(FedMethod):
    """Returns no loss, as a step may; ``from_round`` is where it begins to."""

    from_round = 99

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
        return loss if self.visit.round >= self.from_round else None


class TeachesLate(TeachesNothing):
    from_round = 1


def test_a_run_without_a_loss_in_any_step_says_so_once(recwarn):
    """One whose steps have a loss at last, or that takes no step, says nothing."""
    for quiet in (make_federation(TeachesLate, rounds=2), make_federation(TeachesNothing, rounds=1, local_epochs=0)):
        quiet.run()
    assert not [one for one in recwarn if "returned None" in str(one.message)]
    loud = make_federation(TeachesNothing, rounds=2)
    loud.run()
    (told,) = [str(one.message) for one in recwarn if "returned None" in str(one.message)]
    assert told.startswith(f"TeachesNothing.training_step returned None in all {loud.steps} steps of the run")


class StepsBySelf(FedMethod):
    """Takes its own steps, from ``from_round`` on."""

    from_round = 0

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"]))
        if self.visit.round >= self.from_round:
            optimizer.step()


class ForgetsToStep(StepsBySelf):
    from_round = 99


class StepsNotAlways(StepsBySelf):
    """Takes no step for clients that have not taken part before, but client 0."""

    def training_step(self, batch, batch_idx):
        self.from_round = 0 if self.visit.client == 0 or not self.visit.first else 99
        super().training_step(batch, batch_idx)


class StepsUncounted(StepsBySelf):
    """Calls torch's own optimiser, which Lightning's ``global_step`` does not count."""

    def optimizers(self):
        return super().optimizers(use_pl_optimizer=False)


class StepsWithoutOptimizer(StepsBySelf):
    """Descends by itself."""

    def training_step(self, batch, batch_idx):
        self.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"]))
        with torch.no_grad():
            for value in self.model.parameters():
                value.sub_(value.grad, alpha=0.01)


def warned_of(recwarn, words):
    return [str(one.message) for one in recwarn if words in str(one.message)]


@pytest.mark.parametrize("slots", [None, 2])
def test_a_first_round_without_an_optimiser_step_is_told_once(recwarn, slots):
    """One in which some visits take none, that trains in another way, or that has no batches, is not."""
    for method in (StepsBySelf, StepsNotAlways, StepsUncounted, StepsWithoutOptimizer):
        make_federation(method, make_data("all_clients"), rounds=2, slots=slots).run()
    make_federation(ForgetsToStep, make_data("all_clients"), rounds=2, slots=slots, local_epochs=0).run()
    assert not warned_of(recwarn, "as it was")
    loud = make_federation(ForgetsToStep, make_data("all_clients"), rounds=2, slots=slots)
    loud.run()
    (told,) = warned_of(recwarn, "as it was")
    assert told == (
        f"ForgetsToStep.training_step took no optimiser step in all {loud.steps // 2} steps of round 0, and the model "
        "is as it was: with automatic_optimization = False it calls self.optimizers().step() itself"
    )


class SendsNothing(FedMethod):
    """Trains at clients from whom nothing comes back, until ``from_round``."""

    from_round = 99

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])

    def make_upload(self, client):
        return super().make_upload(client) if client.visit.round >= self.from_round else None


class SendsNothingLater(SendsNothing):
    def make_upload(self, client):
        return None if client.visit.round else FedMethod.make_upload(self, client)


class SendsLess(SendsNothing):
    def make_upload(self, client):
        return FedMethod.make_upload(self, client) if client.visit.client == 0 else None


@pytest.mark.parametrize("sums", ["ordered", "by_rank"])
def test_clients_that_train_and_send_nothing_are_told_once(recwarn, sums):
    """Not where one of them sends something, nor where nobody has anything to train on, nor after a first upload."""
    data = make_data("all_clients")
    for method, more in ((SendsLess, {}), (SendsNothingLater, {}), (SendsNothing, {"local_epochs": 0})):
        make_federation(method, data, rounds=2, sums=sums, **more).run()
    make_federation("server_only", make_data("server"), rounds=2).run()
    assert not warned_of(recwarn, "make_upload")
    make_federation(SendsNothing, data, rounds=3, sums=sums).run()
    (told,) = warned_of(recwarn, "make_upload")
    assert told == (
        f"SendsNothing.make_upload returned None in all {NUM_CLIENTS} visits of round 0, in which clients took steps: "
        "the server learns nothing from them; return an Upload, as super().make_upload(client) does"
    )
