"""What a recording refuses: reading numbers back to the host, shapes from data, draws from others' generators."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.federation.recording import record
from datamodules.common.errors import RunError
from host_reads import count_host_reads

CPU = torch.device("cpu")

X = torch.arange(6.0).reshape(2, 3)
I = torch.tensor([2, 0, 1])  # noqa: E741

HOST_READS: dict[str, tuple[str, Callable[[], object]]] = {
    "item": ("aten._local_scalar_dense", lambda: X.sum().item()),
    "slice": ("aten._local_scalar_dense", lambda: X[: I[0]]),
    "one_hot": ("one_hot", lambda: F.one_hot(I, 3)),
    "inference mode": ("aten._local_scalar_dense", torch.inference_mode()(lambda: bool(X.any()))),
    "non-fused Adam": ("aten._local_scalar_dense", lambda: stepped(torch.optim.Adam, lr=0.1)),
    "equal": ("aten.equal", lambda: torch.equal(X, X)),
    "nonzero": ("aten.nonzero", lambda: X.nonzero()),
    "where in inference mode": ("aten.nonzero", torch.inference_mode()(lambda: torch.where(X > 2))),
    "masked_select": ("aten.masked_select", lambda: X.masked_select(X > 2)),
    "mask": ("aten.index", lambda: X[X > 2]),
    "mask of bytes": ("aten.index", lambda: torch.ops.aten.index(X, [torch.tensor([1, 0], dtype=torch.uint8)])),
    "write by mask": ("aten.index_put_", lambda: X.clone().index_put_((X > 2,), torch.ones(3))),
    "unique": ("aten._unique2", lambda: I.unique()),
    "histc": ("aten.histc", lambda: X.histc()),
    "inverse": ("aten._linalg_check_errors", lambda: torch.linalg.inv(torch.eye(3))),
    "tolist": ("Tensor.tolist", lambda: X.tolist()),
    "numpy": ("Tensor.numpy", lambda: X.numpy()),
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
    assert ("that of methods.parts.tensors" in message) == (name == "one_hot")
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
    with count_host_reads() as reads:
        ALLOWED[case]()
    assert not reads
    record(lambda: ALLOWED[case](), CPU, [G])()
