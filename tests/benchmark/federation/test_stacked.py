"""The stacked engine against the reference engine, in double precision, and what it refuses."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from benchmark.federation.stacked import StackedEngine, unstackable
from benchmark.registry import KINDS, known_names
from datamodules.common.errors import ConfigError, RunError
from datamodules.digits import Digits
from federations import SCENARIOS, FewDigits, few_data, make_data, make_method, plain_fabric, run_rows
from methods import models
from methods.base import Batch, FedMethod
from methods.fedavg import FedAvg

METHODS = [name for name in known_names(KINDS["method"]) if not unstackable(make_method(name))]
TEXT = {"semifl": {"mix": False}}  # mixup draws a random number in every step


def federation(method: FedMethod, data: Digits, stack: int | None, rounds: int = 3) -> Federation:
    """A federation in double precision, whose clients train side by side or one after the other."""
    data.place(torch.device("cpu"), torch.float64)
    return Federation(method.double(), data, data.roster(0), plain_fabric("64-true"), rounds, seed=0, stack=stack)


def both(make: Any, data: Any, rounds: int = 3, stack: int = 4) -> tuple[Federation, Federation, list[Any], list[Any]]:
    """A run of either engine and their rows."""
    one, side = federation(make(), data(), None, rounds), federation(make(), data(), stack, rounds)
    return one, side, run_rows(one), run_rows(side)


def assert_alike(one: Any, side: Any, where: str = "") -> None:
    """Numbers, lists and tensors agree to rounding, everything else exactly."""
    if isinstance(one, dict):
        assert one.keys() == side.keys(), where
        for key, value in one.items():
            assert_alike(value, side[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(side), where
        for number, (a, b) in enumerate(zip(one, side, strict=True)):
            assert_alike(a, b, f"{where}[{number}]")
    elif isinstance(one, Tensor):
        torch.testing.assert_close(side, one, rtol=1e-9, atol=1e-11, msg=lambda m: f"{where}: {m}")
    else:
        assert side == pytest.approx(one, rel=1e-7, abs=1e-9) if isinstance(one, float) else side == one, where


def short(name: str) -> dict[str, Any]:
    """The shortest schedule that has every phase, and thresholds that untrained networks reach."""
    arguments = make_method(name).hparams
    counts = {k: 1 for k in ("warmup_rounds", "server_pretrain", "server_epochs") if arguments.get(k, 0) > 1}
    low = {"threshold": 0.12} if "threshold" in arguments else {}
    return {**counts, **({"local_epochs": 2} if "local_epochs" in arguments else {}), **low, **TEXT.get(name, {})}


@pytest.mark.parametrize("name", METHODS)
def test_whole_runs_are_those_of_the_reference_engine(name: str) -> None:
    """Rows, global model, clients' own tensors and momentum, over rounds, in stacks smaller than the round."""
    scenario = make_method(name).scenario

    def data() -> FewDigits:
        made = FewDigits(scenario=scenario, partition="iid", **SCENARIOS[scenario])
        made.setup()
        return made

    one, side, rows, others = both(lambda: make_method(name, **short(name)), data)
    assert_alike(rows, others, "rows")
    assert_alike(one.state_dict(), side.state_dict(), "state")


class Normed(nn.Module):
    """Batch norm with running statistics, a counter, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.Linear(256, 10)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def normed(**args: Any) -> FedAvg:
    torch.manual_seed(0)
    return FedAvg(Normed(), **args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"momentum": 0.0},
        {"reset_momentum": True, "local_epochs": 2},
        {"nesterov": True, "clip_norm": 0.1, "weight_decay": 0.01},
        {"clip_norm": None, "batch_size": 7, "min_batch": 2},
    ],
    ids=str,
)
def test_batch_norm_ragged_batches_and_optimisers(args: dict[str, Any]) -> None:
    """Clients of unequal size: short last batches, some ready before the others; unused parameters do not move."""
    torch.manual_seed(0)

    def data() -> Digits:
        made = few_data(5)
        for number, site in enumerate(made._clients):
            keep = len(site.labelled) - 9 * number
            made._clients[number] = type(site)(site.labelled[:keep], site.labels[:keep], site.unlabelled)
        return made

    one, side, rows, others = both(lambda: normed(**args), data)
    assert_alike(rows, others, "rows")
    assert_alike(one.state_dict(), side.state_dict(), "state")
    assert int(one.server["model.norm.num_batches_tracked"]) > 0
    assert torch.equal(side.server["model.unused"], torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("stack", [1, 2, 16])
def test_the_size_of_a_stack_changes_nothing(stack: int) -> None:
    """One client, two, or all at a time."""
    _, side, _, others = both(normed, lambda: few_data(5), 2, stack)
    _, four, _, rows = both(normed, lambda: few_data(5), 2, 4)
    assert_alike(rows, others, "rows")
    assert_alike(four.state_dict(), side.state_dict(), "state")


def test_half_precision_runs() -> None:
    """bf16 autocast under the map: close to the reference engine after a round."""
    accuracies = []
    for stack in (None, 4):
        data = few_data(4)
        made = Federation(
            make_method("fedavg"), data, data.roster(0), plain_fabric("bf16-mixed"), 4, seed=0, stack=stack
        )
        rows = run_rows(made)
        accuracies.append(rows[-1]["loss"])
    assert accuracies[0] == pytest.approx(accuracies[1], rel=0.05)


def test_networks_on_feature_vectors() -> None:
    """A linear network on rows of features, as on texts."""
    torch.manual_seed(0)
    network = models.build("linear", 10, in_features=12)

    class Sums(FedAvg):
        """Sees 12 sums of each image."""

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x.flatten(1).unfold(1, 256, 256).mean(dim=2))

    one, side, rows, others = both(lambda: Sums(copy.deepcopy(network)), lambda: few_data(6))
    assert_alike(rows, others, "rows")
    assert_alike(one.server, side.server, "server")


# --- what is refused


class Counting(FedAvg):
    """Its loss depends on an attribute of the client."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1.0 + self.visit.client)


class Uneven(FedAvg):
    """Its clients learn at rates of their own."""

    def learning_rate(self) -> float:
        return 0.01 * (1 + self.visit.client)


class Noisy(FedAvg):
    """Its loss draws a random number."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * torch.rand(())


class Reading(FedAvg):
    """Its loss reads a tensor back."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * float(batch["labelled"]["x"].mean())


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Uneven, "different rates"),
        (Counting, "depends on more than registered tensors"),
        (Noisy, "random"),
        (Reading, "cannot be stacked"),
    ],
)
def test_steps_that_cannot_be_stacked_are_named(cls: type[FedAvg], why: str) -> None:
    """With the way out."""
    made = federation(make_method(cls), few_data(3), 4)
    with pytest.raises(RunError, match=why) as caught:
        made.run_round(0)
    assert "engine=reference" in str(caught.value)


@pytest.mark.parametrize("name", ["fl2", "feddure", "feddb", "local_ssl"])
def test_methods_with_steps_of_their_own_are_refused(name: str) -> None:
    """At the start, with the way out."""
    with pytest.raises(ConfigError, match=r"own local_step.*engine=reference"):
        StackedEngine(make_method(name), make_data(), 0, 1)


def test_an_empty_stack_is_refused() -> None:
    """One client at least."""
    with pytest.raises(ConfigError, match="stack=0"):
        federation(make_method("fedavg"), few_data(3), 0)
