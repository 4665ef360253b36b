"""Recorded steps against the same steps run one by one, and what a recording refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from benchmark.federation.recording import count_host_reads, record
from datamodules.common.errors import RunError
from methods import models

CPU = torch.device("cpu")
STEPS = 5


class World(nn.Module):
    """All that a step may touch: a batch, a net and its slow copy, a generator, a rate, a result, an optimiser."""

    batch: Tensor
    labels: Tensor
    rate: Tensor
    result: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net: nn.Module = Normed()
        self.slow = Normed()
        self.register_buffer("batch", torch.zeros(8, 3, 16, 16))
        self.register_buffer("labels", torch.zeros(8, dtype=torch.long))
        self.register_buffer("rate", torch.zeros((), dtype=torch.float64))
        self.register_buffer("result", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(1)
        self.optimizer: torch.optim.Optimizer | None = None
        self.number = 0  # a Python number that changes from step to step

    def arrive(self, number: int) -> None:
        """Bring the batch and the numbers of a step, in place."""
        stream = torch.Generator().manual_seed(100 + number)
        self.batch.copy_(torch.randn(self.batch.shape, generator=stream))
        self.labels.copy_(torch.randint(10, self.labels.shape, generator=stream))
        self.rate.fill_(0.1 / (1 + number))
        self.number = number

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


def small_cnn(world: World) -> Callable[[], None]:
    """A network of the suite in channels_last, clipped gradients, SGD with momentum."""
    world.net = models.build("small_cnn", 10, image_size=16)
    sgd(world, weight_decay=1e-3, nesterov=True)

    def step() -> None:
        assert world.optimizer is not None
        world.optimizer.zero_grad()
        world.loss().backward()
        nn.utils.clip_grad_norm_(world.net.parameters(), 0.5)
        world.optimizer.step()

    return step


def sgd_rate(world: World) -> Callable[[], None]:
    """Batch norm; a rate that changes, in a 0-dim tensor."""
    sgd(world, lr=world.rate)
    return lambda: world.descend(world.loss())


def adam_rate(world: World) -> Callable[[], None]:
    """Fused Adam counts its steps in tensors, and reads its rate from one."""
    world.optimizer = torch.optim.Adam(world.net.parameters(), lr=world.rate, fused=True, weight_decay=1e-3)
    return lambda: world.descend(world.loss())


def accumulated(world: World) -> Callable[[], None]:
    """Gradients of two backward passes, cleared by filling with zero."""
    sgd(world)

    def step() -> None:
        assert world.optimizer is not None
        world.optimizer.zero_grad(set_to_none=False)
        world.loss().backward()
        (0.5 * world.net(world.batch.flip(-1)).square().mean()).backward()
        world.optimizer.step()

    return step


def double_backward(world: World) -> Callable[[], None]:
    """A look-ahead by hand, differentiated through."""
    sgd(world)

    def step() -> None:
        names, values = zip(*world.net.named_parameters(), strict=True)
        gradients = torch.autograd.grad(world.loss(), values, create_graph=True)
        ahead = {n: v - 0.05 * g for n, v, g in zip(names, values, gradients, strict=True)}
        world.descend(F.cross_entropy(functional_call(world.net, ahead, (world.batch.flip(-1),)), world.labels))

    return step


def forward_mode(world: World) -> Callable[[], None]:
    """A derivative along the slow copy by dual tensors, which scales the update."""
    sgd(world)

    def step() -> None:
        with forward_ad.dual_level():
            slow = dict(world.slow.named_parameters())
            dual = {n: forward_ad.make_dual(p, slow[n].detach()) for n, p in world.net.named_parameters()}
            out = functional_call(world.net, dual, (world.batch,))
            tangent = forward_ad.unpack_dual(F.cross_entropy(out, world.labels)).tangent
            world.result.copy_(tangent.detach())
        world.descend(world.loss() * world.result.tanh())

    return step


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


def teacher(world: World) -> Callable[[], None]:
    """Pseudo-labels of a slow copy in inference mode, confident ones by a mask, then the average moves in place."""
    sgd(world)

    def step() -> None:
        with torch.inference_mode():
            confidence, labels = world.slow(world.batch).softmax(dim=1).max(dim=1)
        losses = F.cross_entropy(world.net(world.batch), labels.clone(), reduction="none")
        world.descend((losses * (confidence > 0.15)).mean())
        with torch.no_grad():
            for slow, fast in zip(world.slow.parameters(), world.net.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            torch._foreach_lerp_([*world.slow.parameters()], [*world.net.parameters()], 0.1)
            world.result.mul_(0.9).add_(losses.mean(), alpha=0.1)

    return step


def mixed_precision(world: World) -> Callable[[], None]:
    """Forward under autocast, whose casts are operations too."""
    sgd(world)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = world.loss()
        world.descend(loss)

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


STEPPERS = [small_cnn, sgd_rate, adam_rate, accumulated, double_backward, draws, teacher, mixed_precision, views]


def run(make: Make, recorded: bool, warm_up: int = 1) -> dict[str, Tensor]:
    """What is left after some steps, run one by one, or recorded after a warm-up and replayed."""
    world = World()
    step = make(world)
    recording = None
    for number in range(STEPS):
        world.arrive(number)
        if not recorded or number < warm_up:
            step()
        elif recording is None:
            recording = record(step, CPU, [world.generator])
        else:
            recording.replay()
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


def test_replays_of_tangents_equal_steps_with_the_same_formulas() -> None:
    """Torch rounds tangents of batch norm otherwise while operations are looked at: equal to the bit only then."""
    with count_host_reads() as reads:
        eager = run(forward_mode, recorded=False)
    replayed = run(forward_mode, recorded=True)
    assert compared(eager, replayed) == [] and not reads
    for name, tensor in run(forward_mode, recorded=False).items():
        torch.testing.assert_close(replayed[name], tensor, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("make", [*STEPPERS, forward_mode], ids=lambda make: make.__name__)
def test_replays_change_what_is_compared(make: Make) -> None:
    """Every replay moves every parameter; only the step that draws moves the generator. Else equality says nothing."""
    world = World()
    step = make(world)
    world.arrive(0)
    step()
    recording = record(step, CPU, [world.generator])
    for number in range(2):
        before, state = world.tensors(), world.generator.get_state()
        world.arrive(1 + number)
        recording.replay()
        after = world.tensors()
        assert [name for name, _ in world.net.named_parameters("net") if torch.equal(before[name], after[name])] == []
        assert torch.equal(state, world.generator.get_state()) == (make is not draws)


def test_recording_runs_the_step_once() -> None:
    """Its effects on tensors and in Python happen once; a replay has none in Python."""
    total, calls = torch.zeros(()), []

    def step() -> None:
        total.add_(1.0)
        calls.append(1)

    recording = record(step, CPU)
    assert (float(total), len(calls)) == (1.0, 1)
    recording.replay()
    recording.replay()
    assert (float(total), len(calls)) == (3.0, 1)


def test_a_result_is_overwritten_by_every_replay() -> None:
    """Who keeps a tensor that the step made sees the newest value."""
    x, kept = torch.ones(3), []
    recording = record(lambda: kept.append((x * 2).sum()), CPU)
    x.fill_(5.0)
    recording.replay()
    assert float(kept[0]) == 30.0


def test_a_generator_seeded_anew_seeds_the_replay() -> None:
    generator, out = torch.Generator().manual_seed(3), torch.zeros(4)
    recording = record(lambda: out.uniform_(generator=generator), CPU, [generator])
    first = out.clone()
    recording.replay()
    assert not torch.equal(out, first)
    generator.manual_seed(3)
    recording.replay()
    assert torch.equal(out, first)


def test_a_replay_minds_no_autocast_or_gradient_mode_around_it() -> None:
    """The casts and the gradients of the recording are all that there are."""
    a, b, out = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True), torch.zeros(4, 4)
    recording = record(lambda: out.copy_((a @ b).detach()), CPU)
    expected = out.clone()
    with torch.autocast("cpu", torch.bfloat16):
        recording.replay()
    assert torch.equal(out, expected) and not out.requires_grad


# What a replay gets wrong, and how a comparison with the step run anew finds it.


def branch(world: World) -> Callable[[], None]:
    """Python decides by a number that changes."""
    sgd(world)
    return lambda: world.descend(world.loss() * (2.0 if world.number > 2 else 1.0))


def python_rate(world: World) -> Callable[[], None]:
    """A rate as a Python number."""
    sgd(world)

    def step() -> None:
        assert world.optimizer is not None
        world.optimizer.param_groups[0]["lr"] = 0.1 / (1 + world.number)
        world.descend(world.loss())

    return step


def baked_fill(world: World) -> Callable[[], None]:
    """A tensor made from a Python number that changes."""
    sgd(world)
    return lambda: world.descend(world.loss() * torch.full((), 1.0 + world.number))


def baked_tensor(world: World) -> Callable[[], None]:
    """The same by ``torch.tensor``."""
    sgd(world)
    return lambda: world.descend(world.loss() * torch.tensor(1.0 + world.number))


def exchanged(world: World) -> Callable[[], None]:
    """State that is exchanged for another tensor instead of changed in place."""
    sgd(world)

    def step() -> None:
        world.descend(world.loss() * world.result)
        world.result = world.result + 1.0

    return step


@pytest.mark.parametrize(
    "make", [branch, python_rate, baked_fill, baked_tensor, exchanged], ids=lambda make: make.__name__
)
def test_what_python_decides_is_found_as_a_difference(make: Make) -> None:
    """Such a step is recorded without complaint; its replays differ from it."""
    assert "net.fc.weight" in differences(make)


def test_the_first_step_of_an_optimiser_cannot_be_replayed() -> None:
    """It makes the momentum; hence the step that runs before the recorded one."""
    assert "net.fc.weight" in differences(sgd_rate, warm_up=0)
    assert differences(sgd_rate, warm_up=2) == []


# What is refused.

X = torch.arange(6.0).reshape(2, 3)
I = torch.tensor([2, 0, 1])  # noqa: E741

HOST_READS: dict[str, tuple[str, Callable[[], object]]] = {
    "item": ("aten._local_scalar_dense", lambda: X.sum().item()),
    "float": ("aten._local_scalar_dense", lambda: float(X.sum())),
    "if": ("aten._local_scalar_dense", lambda: 1 if X.sum() > 0 else 0),
    "format": ("aten._local_scalar_dense", lambda: f"{X.sum():.3f}"),
    "slice": ("aten._local_scalar_dense", lambda: X[: I[0]]),
    "scalar argument": ("aten._local_scalar_dense", lambda: torch.full((2,), X.sum())),
    "assertion": ("aten._local_scalar_dense", lambda: F.one_hot(I, 3)),
    "inference mode": ("aten._local_scalar_dense", torch.inference_mode()(lambda: bool(X.any()))),
    "non-fused Adam": ("aten._local_scalar_dense", lambda: stepped(torch.optim.Adam, lr=0.1)),
    "rate tensor": ("aten._local_scalar_dense", lambda: stepped(torch.optim.SGD, lr=torch.tensor(0.1), foreach=False)),
    "equal": ("aten.equal", lambda: torch.equal(X, X)),
    "allclose": ("aten.allclose", lambda: torch.allclose(X, X)),
    "nonzero": ("aten.nonzero", lambda: X.nonzero()),
    "where": ("aten.nonzero", lambda: torch.where(X > 2)),
    "where in inference mode": ("aten.nonzero", torch.inference_mode()(lambda: torch.where(X > 2))),
    "masked_select": ("aten.masked_select", lambda: X.masked_select(X > 2)),
    "mask": ("aten.index", lambda: X[X > 2]),
    "mask of rows": ("aten.index", lambda: X[torch.tensor([True, False])]),
    "mask of bytes": ("aten.index", lambda: torch.ops.aten.index(X, [torch.tensor([1, 0], dtype=torch.uint8)])),
    "write by mask": ("aten.index_put_", lambda: X.clone().index_put_((X > 2,), torch.ones(3))),
    "unique": ("aten._unique2", lambda: I.unique()),
    "unique_consecutive": ("aten.unique_consecutive", lambda: I.unique_consecutive()),
    "bincount": ("aten.bincount", lambda: I.bincount()),
    "repeat_interleave": ("aten.repeat_interleave", lambda: X.repeat_interleave(I[:2], 0)),
    "histc": ("aten.histc", lambda: X.histc()),
    "isin": ("aten.isin", lambda: torch.isin(I, I)),
    "inverse": ("aten._linalg_check_errors", lambda: torch.linalg.inv(torch.eye(3))),
    "tolist": ("Tensor.tolist", lambda: X.tolist()),
    "numpy": ("Tensor.numpy", lambda: X.numpy()),
    "asarray": ("Tensor.__array__", lambda: np.asarray(X)),
    "cpu": ("Tensor.cpu", lambda: X.cpu()),
}


def stepped(optimizer: Any, **options: Any) -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer([parameter], **options).step()


@pytest.mark.parametrize("case", HOST_READS)
def test_a_step_that_reads_back_or_makes_shapes_from_data_is_refused(case: str) -> None:
    """The message says which operation, where, and what to do; the count finds the same and runs on."""
    name, function = HOST_READS[case]
    with pytest.raises(RunError) as error:
        record(lambda: function(), CPU)
    message = str(error.value)
    assert message.startswith(f"{name} at {__file__}:")
    assert "may not read numbers back to the host" in message and "0-dim tensor" in message
    assert "on_train_batch_start" in message
    with count_host_reads() as reads:
        function()
    assert reads[name] >= 1


def test_a_read_in_a_backward_pass_is_refused_too() -> None:
    """The backward pass of the CPU runs in the thread that called it, in sight of the recording."""
    w = torch.ones(2, requires_grad=True)

    def step() -> None:
        y = w * 2
        y.register_hook(lambda grad: grad * grad.sum().item())
        y.sum().backward()

    with pytest.raises(RunError, match=r"aten\._local_scalar_dense at .*test_recording"):
        record(step, CPU)


def test_counts_add_up_and_raise_no_error() -> None:
    with count_host_reads() as reads:
        for row in X:
            float(row.sum())
        X[X > 2].tolist()
    assert reads == {"aten._local_scalar_dense": 2, "aten.index": 1, "Tensor.tolist": 1}
    float(X.sum())
    assert reads.total() == 4


G, FOREIGN = torch.Generator(), torch.Generator()

DRAWS: dict[str, Callable[[], object]] = {
    "rand": lambda: torch.rand(3),
    "rand_like": lambda: torch.rand_like(X),
    "randperm": lambda: torch.randperm(3),
    "normal_": lambda: torch.empty(3).normal_(),
    "bernoulli": lambda: torch.bernoulli(X / 6),
    "dropout": lambda: F.dropout(X, 0.5),
    "rrelu": lambda: F.rrelu(X - 3, training=True),
    "attention": lambda: F.scaled_dot_product_attention(*[X[None]] * 3, dropout_p=0.5),
    "gamma": lambda: torch._standard_gamma(X + 1),
    "default generator": lambda: torch.rand(3, generator=torch.default_generator),
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
    "fill by mask": lambda: X.clone().masked_fill_(X > 2, 0.0),
    "assignment by mask": lambda: X.clone().__setitem__(X > 2, 0.0),
    "assignment by mask before torch 2.12": lambda: torch.ops.aten.index_put_(X.clone(), [X > 2], torch.tensor(0.0)),
    "where": lambda: torch.where(X > 2, X, 0.0),
    "0-dim tensors": lambda: X.clone().lerp_(X * 2, X.mean()).clamp(max=X.mean()).fill_(X.sum()),
    "Python loops over rows": lambda: [row.sum() for row in X],
    "shapes": lambda: torch.zeros(X.shape[0], X.numel()) + len(X),
    "dropout in evaluation": lambda: F.dropout(X, 0.5, training=False) + F.dropout(X, 0.0),
    "attention without dropout": lambda: F.scaled_dot_product_attention(*[X[None]] * 3),
    "gamma": lambda: torch._standard_gamma(X + 1, generator=G),
    "cross-entropy": lambda: F.cross_entropy(X, I[:2]).square(),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_looks_alike_is_allowed(case: str) -> None:
    with count_host_reads() as reads:
        ALLOWED[case]()
    assert not reads
    record(lambda: ALLOWED[case](), CPU, [G]).replay()
