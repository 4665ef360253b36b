"""Recorded steps against the same steps run one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.recording import record

CPU = torch.device("cpu")
STEPS = 5


class World(nn.Module):
    """All that a step may touch: a batch, a net, a generator, a rate, a result, an optimiser."""

    batch: Tensor
    labels: Tensor
    rate: Tensor
    result: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net: nn.Module = Normed()
        self.register_buffer("batch", torch.zeros(8, 3, 16, 16))
        self.register_buffer("labels", torch.zeros(8, dtype=torch.long))
        self.register_buffer("rate", torch.zeros((), dtype=torch.float64))
        self.register_buffer("result", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(1)
        self.optimizer: torch.optim.Optimizer | None = None

    def arrive(self, number: int) -> None:
        """Bring the batch and the numbers of a step, in place."""
        stream = torch.Generator().manual_seed(100 + number)
        self.batch.copy_(torch.randn(self.batch.shape, generator=stream))
        self.labels.copy_(torch.randint(10, self.labels.shape, generator=stream))
        self.rate.fill_(0.1 / (1 + number))

    def loss(self) -> Tensor:
        return F.cross_entropy(self.net(self.batch), self.labels)

    def descend(self, loss: Tensor) -> None:
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers, gradients and optimiser state."""
        found = dict(self.state_dict())
        found |= {f"{name}.grad": p.grad for name, p in self.named_parameters() if p.grad is not None}
        state = self.optimizer.state_dict()["state"] if self.optimizer else {}
        found |= {f"state.{i}.{key}": value for i, kept in state.items() for key, value in kept.items()}
        return {name: tensor.clone() for name, tensor in found.items()}


class Normed(nn.Module):
    """Convolution, batch norm with running statistics, pooling, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))
        return logits


Make = Callable[[World], Callable[[], None]]


def sgd(world: World, **options: Any) -> None:
    world.optimizer = torch.optim.SGD(world.net.parameters(), **{"lr": 0.1, "momentum": 0.9, "fused": True} | options)


def sgd_rate(world: World) -> Callable[[], None]:
    """Batch norm; a rate that changes, in a 0-dim tensor."""
    sgd(world, lr=world.rate)
    return lambda: world.descend(world.loss())


def adam_rate(world: World) -> Callable[[], None]:
    """Fused Adam counts its steps in tensors, and reads its rate from one."""
    world.optimizer = torch.optim.Adam(world.net.parameters(), lr=world.rate, fused=True, weight_decay=1e-3)
    return lambda: world.descend(world.loss())


def draws(world: World) -> Callable[[], None]:
    """Noise, a permutation, a mask in place of dropout, a mix: all from the generator of the step."""
    sgd(world)

    def step() -> None:
        g = world.generator
        order = torch.randperm(8, generator=g)
        x = world.batch + 0.1 * torch.randn(world.batch.shape, generator=g)
        share = torch.empty(8, 1, 1, 1).uniform_(generator=g)
        kept = torch.rand(world.batch.shape, generator=g) >= 0.2
        world.descend(F.cross_entropy(world.net((share * x + (1 - share) * x[order]) * kept), world.labels))

    return step


def views(world: World) -> Callable[[], None]:
    """Writes through views, into preallocated memory, by scatter and by integer indices, and changes of geometry."""
    sgd(world)

    def step() -> None:
        x = world.batch.clone()
        x[:, 0] += 1.0
        x.transpose_(2, 3)
        x[[1, 2]] = x[[2, 1]]
        torch.sub(x, 0.5, out=x)
        constant = torch.tensor([0.5, 2.0])
        constant.mul_(x.mean())
        hot = torch.zeros(8, 10).scatter_(1, world.labels[:, None], 1.0)
        scores = torch.matmul(hot.expand(2, 8, 10), torch.ones(10, 3)) * constant[:, None, None]
        world.result.copy_(scores.sum())
        world.descend(F.cross_entropy(world.net(x), world.labels) + 0.0 * world.result)

    return step


STEPPERS = [sgd_rate, adam_rate, draws, views]


def run(make: Make, recorded: bool, warm_up: int = 1) -> dict[str, Tensor]:
    """What is left after some steps, run one by one, or recorded after a warm-up and replayed."""
    world = World()
    step = make(world)
    replay = None
    for number in range(STEPS):
        world.arrive(number)
        if not recorded or number < warm_up:
            step()
        elif replay is None:
            replay = record(step, CPU, [world.generator])
        else:
            replay()
    return {**world.tensors(), "generator": world.generator.get_state()}


def differences(make: Make, **options: Any) -> list[str]:
    """Names of tensors that recorded steps leave in another state than the same steps run one by one."""
    return compared(run(make, recorded=False), run(make, recorded=True, **options))


def compared(eager: dict[str, Tensor], replayed: dict[str, Tensor]) -> list[str]:
    """Names of tensors that differ in any bit."""
    assert eager.keys() == replayed.keys()
    assert all(tensor.isfinite().all() for tensor in eager.values())
    return [name for name in eager if not torch.equal(eager[name], replayed[name])]


@pytest.mark.parametrize("make", STEPPERS, ids=lambda make: make.__name__)
def test_replays_equal_the_same_steps_run_one_by_one(make: Make) -> None:
    """Bit for bit: parameters, running statistics, gradients, optimiser state, what was drawn."""
    assert differences(make) == []


def test_recording_runs_the_step_once() -> None:
    """Its effects on tensors and in Python happen once; a replay has none in Python."""
    total, calls = torch.zeros(()), []

    def step() -> None:
        total.add_(1.0)
        calls.append(1)

    replay = record(step, CPU)
    assert (float(total), len(calls)) == (1.0, 1)
    replay()
    replay()
    assert (float(total), len(calls)) == (3.0, 1)


def test_a_generator_seeded_anew_seeds_the_replay() -> None:
    generator, out = torch.Generator().manual_seed(3), torch.zeros(4)
    replay = record(lambda: out.uniform_(generator=generator), CPU, [generator])
    first = out.clone()
    replay()
    assert not torch.equal(out, first)
    generator.manual_seed(3)
    replay()
    assert torch.equal(out, first)


def test_the_first_step_of_an_optimiser_cannot_be_replayed() -> None:
    """It makes the momentum; hence the step that runs before the recorded one."""
    assert "net.fc.weight" in differences(sgd_rate, warm_up=0)
    assert differences(sgd_rate, warm_up=2) == []
