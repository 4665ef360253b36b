"""Recorded steps against the same steps run one by one."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmark.federation.recording import record

CPU = torch.device("cpu")
STEPS = 5


class World:
    """All that a step may touch: a batch, a net with batch norm, a generator, a rate, a result, an optimiser."""

    def __init__(self, optimizer: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
        self.batch, self.labels = torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)
        self.rate, self.result = torch.zeros((), dtype=torch.float64), torch.zeros(())
        self.generator = torch.Generator().manual_seed(1)
        self.optimizer = optimizer(self.net.parameters(), lr=self.rate, fused=True)

    def arrive(self, number: int) -> None:
        """Bring the batch and the numbers of a step, in place."""
        stream = torch.Generator().manual_seed(100 + number)
        self.batch.copy_(torch.randn(self.batch.shape, generator=stream))
        self.labels.copy_(torch.randint(10, self.labels.shape, generator=stream))
        self.rate.fill_(0.1 / (1 + number))

    def step(self) -> None:
        """Writes through views, into preallocated memory, by scatter and by integer indices, and changes geometry."""
        x = self.batch + torch.rand(self.batch.shape, generator=self.generator)
        x[:, 0] += 1.0
        x.transpose_(2, 3)
        x[[1, 2]] = x[[2, 1]]
        torch.sub(x, 0.5, out=x)
        constant = torch.tensor([0.5, 2.0])
        constant.mul_(x.mean())
        hot = torch.zeros(8, 10).scatter_(1, self.labels[:, None], 1.0)
        scores = torch.matmul(hot.expand(2, 8, 10), torch.ones(10, 3)) * constant[:, None, None]
        self.result.copy_(scores.sum())
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(x), self.labels).backward()
        self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers, gradients, optimiser state, the result, and what was drawn."""
        state = self.optimizer.state_dict()["state"]
        return {
            **self.net.state_dict(),
            **{f"{name}.grad": p.grad for name, p in self.net.named_parameters()},
            **{f"state.{i}.{key}": value for i, kept in state.items() for key, value in kept.items()},
            "result": self.result,
            "generator": self.generator.get_state(),
        }


def differences(optimizer: Any, warm_up: int = 1) -> list[str]:
    """Names of tensors that recorded steps leave in another state than the same steps run one by one."""
    eager, recorded = World(optimizer), World(optimizer)
    replay = None
    for number in range(STEPS):
        eager.arrive(number)
        eager.step()
        recorded.arrive(number)
        if number < warm_up:
            recorded.step()
        elif replay is None:
            replay = record(recorded.step, CPU, [recorded.generator])
        else:
            replay()
    expected, found = eager.tensors(), recorded.tensors()
    assert found.keys() == expected.keys() and all(value.isfinite().all() for value in expected.values())
    return [name for name, value in expected.items() if not torch.equal(value, found[name])]


MOMENTUM = partial(SGD, momentum=0.9)


@pytest.mark.parametrize("optimizer", [MOMENTUM, Adam], ids=["momentum", "Adam"])
def test_replays_equal_the_same_steps_run_one_by_one(optimizer: Any) -> None:
    """Bit for bit, at a rate that changes, in a 0-dim tensor; fused Adam counts its steps in tensors, too."""
    assert differences(optimizer) == []


def test_the_first_step_of_an_optimiser_cannot_be_replayed() -> None:
    """It makes the momentum; hence the step that runs before the recorded one."""
    assert "4.weight" in differences(MOMENTUM, warm_up=0)
    assert differences(MOMENTUM, warm_up=2) == []


def test_recording_runs_the_step_once_and_a_replay_draws_from_the_generator_as_it_is_seeded() -> None:
    """The effects of a step in Python happen when it is recorded, and not when it is replayed."""
    generator, out, total, calls = torch.Generator().manual_seed(3), torch.zeros(4), torch.zeros(()), []

    def step() -> None:
        total.add_(1.0)
        out.uniform_(generator=generator)
        calls.append(1)

    replay = record(step, CPU, [generator])
    first = out.clone()
    assert (float(total), len(calls)) == (1.0, 1)
    replay()
    assert not torch.equal(out, first)
    generator.manual_seed(3)
    replay()
    assert torch.equal(out, first)
    assert (float(total), len(calls)) == (3.0, 1)
