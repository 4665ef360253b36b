"""Recorded steps against the same steps run one by one, and what a recording refuses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmark.federation.recording import record
from datamodules.common.errors import RunError
from federations import different

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


@pytest.mark.parametrize("optimizer", [partial(SGD, momentum=0.9), Adam], ids=["momentum", "Adam"])
def test_replays_equal_the_same_steps_run_one_by_one(optimizer: Any) -> None:
    """Bit for bit, at a rate that changes, in a 0-dim tensor; fused Adam counts its steps in tensors, too.

    The first step makes the optimiser's state and the second is recorded, which takes it once.
    """
    eager, recorded = World(optimizer), World(optimizer)
    take = recorded.step
    for number in range(STEPS):
        eager.arrive(number)
        eager.step()
        recorded.arrive(number)
        if number == 1:
            take = record(recorded.step, CPU, [recorded.generator])
        else:
            take()
    expected = eager.tensors()
    assert all(value.isfinite().all() for value in expected.values())
    assert different(recorded.tensors(), expected) == []


X = torch.arange(6.0).reshape(2, 3)
I = torch.tensor([2, 0, 1])  # noqa: E741

HOST_READS: dict[str, tuple[str, Callable[[], object]]] = {
    "item": ("aten._local_scalar_dense", lambda: X.sum().item()),
    "one_hot": ("one_hot", lambda: F.one_hot(I, 3)),
    "inference mode": ("aten._local_scalar_dense", torch.inference_mode()(lambda: bool(X.any()))),
    "equal": ("aten.equal", lambda: torch.equal(X, X)),
    "nonzero": ("aten.nonzero", lambda: X.nonzero()),
    "where in inference mode": ("aten.nonzero", torch.inference_mode()(lambda: torch.where(X > 2))),
    "mask": ("aten.index", lambda: X[X > 2]),
    "mask of bytes": ("aten.index", lambda: torch.ops.aten.index(X, [torch.tensor([1, 0], dtype=torch.uint8)])),
    "write by mask": ("aten.index_put_", lambda: X.clone().index_put_((X > 2,), torch.ones(3))),
    "unique": ("aten._unique2", lambda: I.unique()),
    "histc": ("aten.histc", lambda: X.histc()),
    "inverse": ("aten._linalg_check_errors", lambda: torch.linalg.inv(torch.eye(3))),
    "tolist": ("Tensor.tolist", lambda: X.tolist()),
    "numpy": ("Tensor.numpy", lambda: X.numpy()),
}


@pytest.mark.parametrize("case", HOST_READS)
def test_a_step_that_reads_back_or_makes_shapes_from_data_is_refused(case: str) -> None:
    """The message says which operation, where, and what to do."""
    name, function = HOST_READS[case]
    with pytest.raises(RunError) as error:
        record(lambda: function(), CPU)
    message = str(error.value)
    assert message.startswith(f"{name} at {__file__}:")
    assert ("that of methods.parts.tensors" in message) == (name == "one_hot")


def test_a_read_in_a_backward_pass_is_refused_too() -> None:
    """The backward pass of the CPU runs in the thread that called it, in sight of the recording."""
    w = torch.ones(2, requires_grad=True)

    def step() -> None:
        y = w * 2
        y.register_hook(lambda grad: grad * grad.sum().item())
        y.sum().backward()

    with pytest.raises(RunError, match=r"aten\._local_scalar_dense at .*test_recording"):
        record(step, CPU)


G, FOREIGN = torch.Generator(), torch.Generator()

DRAWS: dict[str, Callable[[], object]] = {
    "rand": lambda: torch.rand(3),
    "bernoulli": lambda: torch.bernoulli(X / 6),
    "dropout": lambda: F.dropout(X, 0.5),
    "attention": lambda: F.scaled_dot_product_attention(*[X[None]] * 3, dropout_p=0.5),
    "gamma": lambda: torch._standard_gamma(X + 1),
    "foreign generator": lambda: torch.rand(3, generator=FOREIGN),
}


@pytest.mark.parametrize("case", DRAWS)
def test_a_draw_from_another_generator_is_refused(case: str) -> None:
    """The global generator, given or not, and one that the recording was not told of."""
    with torch.random.fork_rng(), pytest.raises(RunError, match=r"generator=self\.generator"):
        record(lambda: DRAWS[case](), CPU, [G])


ALLOWED: dict[str, Callable[[], object]] = {
    "integer indices": lambda: X[:, I] + X[:, [0, 1, 2]],
    "write by integers": lambda: X.clone().index_put_((I[:1] - 2,), torch.ones(3)),
    "assignment by mask": lambda: X.clone().__setitem__(X > 2, 0.0),
    "assignment by mask before torch 2.12": lambda: torch.ops.aten.index_put_(X.clone(), [X > 2], torch.tensor(0.0)),
    "0-dim tensors": lambda: X.clone().lerp_(X * 2, X.mean()).clamp(max=X.mean()).fill_(X.sum()),
    "dropout in evaluation": lambda: F.dropout(X, 0.5, training=False) + F.dropout(X, 0.0),
    "gamma": lambda: torch._standard_gamma(X + 1, generator=G),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_looks_alike_is_allowed(case: str) -> None:
    record(lambda: ALLOWED[case](), CPU, [G])()
