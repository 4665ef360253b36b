"""Checks of a method on a device other than the CPU. The device is emulated: no GPU is needed."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from lightning import Fabric
from torch import Tensor

from benchmark.contract import emulated
from benchmark.contract.federations import half_trained, tiny_federation
from benchmark.contract.reference import Method, different, different_rows, require_equal, rounds_until
from benchmark.federation import optimizers
from benchmark.federation.fit import Fit
from methods.models import cnn


def run_of(
    method: Method, fabric: Fabric | None = None, **engine: Any
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Rows of two rounds on the fabric's device, and the server's tensors on the CPU; see ``tiny_federation``."""
    with nullcontext() if fabric else as_devices_compute():
        federation = tiny_federation(method, fabric, **engine)
        rows = rounds_until(federation, 2)
    return rows, {name: value.cpu() for name, value in federation.server.items()}


@contextmanager
def as_devices_compute() -> Iterator[None]:
    """Within this context the CPU rounds rates to single precision, and computes convolutions as a device does."""
    with patch.object(cnn, "conv_pool", one_kernel), patch.object(optimizers, "reads_single", lambda parameters: True):
        yield


def one_kernel(conv: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A convolution with pooling, without the CPU's own way of computing it, which rounds differently."""
    return cnn.pool(conv(x))


def check_all_tensors_lie_on_the_device(method: Method) -> None:
    """On another device it computes the same bits: no operation gets a tensor, an index or a generator of the CPU.

    No step waits for that device: it reads nothing back, and copies nothing to it.
    """
    half_trained()
    rows, server = run_of(method)
    with emulated.emulated() as emulation, waits_in_steps(emulation) as waits:
        other_rows, other = run_of(method, fabric=emulated.fabric())
    because = "on a device other than the CPU it gives another result, although that device computes the same bits"
    require_equal(method, because, different_rows(other_rows, rows), different(other, server))
    require_equal(
        method,
        "in a step the host waits for the device: the step is slower, and cannot be replayed. Leave decisions to "
        "tensors (torch.where), and register constants as buffers",
        [f"{name} at {place}" for name, place in waits],
    )


@contextmanager
def waits_in_steps(emulation: emulated.Emulation) -> Iterator[Counter[tuple[str, emulated.CodeLine]]]:
    """Count what makes the host wait for the device in training steps, by operation and place."""
    waits = Counter[tuple[str, emulated.CodeLine]]()
    compute = Fit.compute

    def watched(fit: Fit, batch: Any, number: int) -> Any:
        before = emulation.reads + emulation.uploads
        made = compute(fit, batch, number)
        waits.update(emulation.reads + emulation.uploads - before)
        return made

    with patch.object(Fit, "compute", watched):
        yield waits
