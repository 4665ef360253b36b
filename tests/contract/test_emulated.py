"""The emulated device: it computes what the CPU does, and refuses or counts what a GPU would make dear."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.contract.emulated import DeviceError, Emulation, device, emulated

DEVICE = device()


@pytest.fixture
def emulation() -> Iterator[Emulation]:
    with emulated() as found:
        yield found


def trained(where: torch.device) -> list[Tensor]:
    """Weights after three steps of a small network with batch norm and Adam, and what was drawn on the way."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)).to(where)
    slow = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, fused=True)
    generator = torch.Generator(device=where).manual_seed(1)
    for _ in range(3):
        x = torch.randn(6, 3, 8, 8, generator=generator, device=where)
        loss = F.cross_entropy(net(x), torch.arange(6, device=where) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.inference_mode():
            for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.1)
    return [value.cpu() for value in (*net.state_dict().values(), *slow.state_dict().values())]


def test_it_computes_the_bits_of_the_cpu(emulation: Emulation) -> None:
    """Forward, backward, an optimiser, copies of modules, draws, inference mode."""
    assert all(
        torch.equal(one, other) for one, other in zip(trained(DEVICE), trained(torch.device("cpu")), strict=True)
    )


REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "a constant": (lambda x: x + torch.ones(4), r"add at .*a tensor \[4\] lies on the CPU"),
    "a number in a list": (lambda x: torch.stack([x[0], torch.tensor(1.0)]), "lies on the CPU"),
    "positions": (lambda x: x[torch.tensor([2, 0])], r"positions \[2\] lie on the CPU"),
    "a foreign generator": (
        lambda x: torch.rand(4, generator=torch.Generator(), device=x.device),
        "a generator of the CPU draws a tensor of the device",
    ),
    "its generator elsewhere": (
        lambda x: torch.rand(4, generator=torch.Generator(device=x.device)),
        "a generator of the device draws a tensor of the CPU",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_gpu_would_refuse_is_refused(emulation: Emulation, case: str) -> None:
    """With the operation and the line; positions, which a GPU would copy in every step, too."""
    function, told = REFUSED[case]
    with pytest.raises(DeviceError, match=told) as error:
        function(torch.zeros(4, device=DEVICE))
    assert f"{__file__}:" in str(error.value)


def test_numbers_of_the_cpu_may_enter(emulation: Emulation) -> None:
    """As on a GPU: a tensor without axes is a number."""
    assert (torch.ones(3, device=DEVICE) * torch.tensor(2.0)).tolist() == [2.0] * 3


READS: dict[str, Callable[[Tensor], object]] = {
    "_local_scalar_dense": lambda x: float(x.sum()),
    "tolist": lambda x: x.tolist(),
    "_to_copy": lambda x: x.cpu(),
    "copy_": lambda x: torch.zeros(4).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x),
}


def line_of(function: Callable[..., object]) -> int:
    return function.__code__.co_firstlineno


@pytest.mark.parametrize("name", READS)
def test_the_host_is_seen_to_wait(emulation: Emulation, name: str) -> None:
    """Every read and copy counts once, by operation, file, line and function; uploads count apart."""
    x = torch.arange(4.0).to(DEVICE)
    assert [(kind, place.function) for kind, place in emulation.uploads] == [
        ("_to_copy", "test_the_host_is_seen_to_wait")
    ]
    READS[name](x)
    ((kind, place),) = emulation.reads
    assert (kind, place.file, place.line, emulation.reads.total()) == (name, __file__, line_of(READS[name]), 1)


def test_it_is_gone_afterwards() -> None:
    with emulated():
        x = torch.ones(3, device=DEVICE)
    with pytest.raises(DeviceError, match="outlived"):
        x + 1
