"""Fed-Consist: the mean-teacher client against the released one, and when its teacher begins."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.federation.fit import Fit, OptimizerStates, kept_states
from federations import different, few_data, fewest_data, make_federation, sums_of
from golden_files import close, load
from methods.base import Visit
from methods.fed_consist import FedConsist

GOLDEN = load("rscfed/local_update_unlabelled")


class Toy(nn.Module):
    """The three-layer network that the reference numbers were made with."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, 3]`` of ``[B, 2, 2, 2]``."""
        return self.fc2(torch.relu(self.bn(self.fc1(x.flatten(1)))))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["name"])
def test_unlabelled_client_over_two_visits(case: dict[str, Any]) -> None:
    """Student, teacher, step counter and momentum follow the released client, clipping included."""
    c = case["config"]
    method = FedConsist(
        Toy(),
        lr_unlabelled=c["lr"],
        lambda_u=c["lambda_u"],
        temperature=c["tau"],
        ema_decay=c["ema_decay"],
        momentum=c["momentum"],
        weight_decay=c["weight_decay"],
        clip_norm=c["max_grad_norm"],
        batch_size=c["batch_size"],
    )
    states: OptimizerStates = []
    for number, call in enumerate(case["calls"]):
        method.visit = Visit(round=10 + number, labelled=False)
        method.load_tensors({f"model.{k}": v for k, v in call["inputs"]["global_state"].items()})
        method.train()
        sums_of(method)
        fit = Fit(method, states, 1)
        views = [{"teacher": one["teacher_view"], "student": one["student_view"]} for one in call["inputs"]["batches"]]
        batches = [{"unlabelled": one} for one in views]
        for _ in fit.run(lambda epoch, batches=batches: batches):
            pass
        states = kept_states(method, fit.optimizers)
        out = call["outputs"]
        close(method.tallied("loss"), torch.tensor(out["mean_loss"]), GOLDEN)
        assert int(method.teacher_step) == out["iter_num_after"]
        for name, value in out["student_state"].items():
            close(method.model.state_dict()[name], value, GOLDEN)
        for name, value in out["teacher_state"].items():
            close(method.teacher.state_dict()[name], value, GOLDEN)
    # The reference file recorded the live buffers: both calls show the momentum after the last one.
    for i, value in case["calls"][-1]["outputs"]["momentum_after"].items():
        close(states[0][int(i)]["momentum_buffer"], value, GOLDEN)


def test_a_client_with_all_labels_has_no_teacher_before_the_warmup_ends() -> None:
    """Its teacher is the global model after the warm-up, not the untrained one that it received first."""
    federation = make_federation("fed_consist", data=few_data(3), rounds=3, warmup_rounds=2)
    federation.run_round(0)
    federation.run_round(1)
    visit = replace(federation.visits(2)[0], first=False)
    sent = federation.engine.send(visit, federation.server)
    federation.engine.seats[0].begin_visit(visit, sent, federation.clients[0])
    federation.method.on_train_start()
    for name, value in federation.method.teacher.state_dict().items():
        assert torch.equal(value, federation.server[f"model.{name}"])


def test_clients_with_labels_can_pass_over_their_data_more_often() -> None:
    """As with so many local epochs in the warm-up, in which no others train; the others keep theirs."""
    plain, own, all_clients = (
        make_federation("fed_consist", fewest_data(3, 1), rounds=2, warmup_rounds=1, **epochs)
        for epochs in ({}, {"labelled_epochs": 3}, {"local_epochs": 3})
    )
    for federation in (plain, own, all_clients):
        federation.run_round(0)
    assert own.steps == all_clients.steps == 3 * plain.steps
    assert not different(own.server, all_clients.server)
    labelled = plain.steps
    for federation in (plain, own, all_clients):
        federation.run_round(1)
    assert own.steps - plain.steps == 4 * labelled < all_clients.steps - plain.steps
