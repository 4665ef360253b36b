"""All methods in slots on an emulated device with streams and graphs: bits, races, what the host waits for.

Nothing here has run on a GPU: the device computes what the CPU does, and its graphs and streams keep to CUDA's rules.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from benchmark import ROOT
from benchmark.contract.devices import run_of
from benchmark.contract.emulated import Emulation, device, emulated, fabric
from benchmark.contract.federations import ScaledSingle, class_of, half_trained
from benchmark.contract.irrelevant import OVERFLOW
from benchmark.contract.reference import different, different_rows
from benchmark.federation import optimizers
from benchmark.federation.recording import CudaGraph, record
from benchmark.registry import KINDS, known_names
from datamodules.common.errors import RunError
from datamodules.views import augment, pixelops
from emulated_streams import Stream, Times, streams
from methods.fedavg import FedAvg
from methods.local_ssl import LocalSSL

SLOTS = 3
WAITS = {
    "benchmark/contract/devices.py run_of": "this test reads the result",
    "benchmark/contract/devices.py run_of.<locals>.<dictcomp>": "the same before Python 3.12",
    "benchmark/federation/finite.py find_nonfinite": "once per round and server's step",
    "benchmark/federation/holdings.py Holdings.require": "positions of a stream, once per epoch",
    "benchmark/federation/holdings.py Holdings.require_own": "once per visit",
    "benchmark/federation/logged.py read_means": "once per evaluated round",
    "benchmark/federation/store.py _on_host": "once per client and round",
    "benchmark/runs/metrics.py _auc": "once per class and evaluated round",
    "benchmark/runs/metrics.py scores": "once per evaluated round",
    "benchmark/runs/metrics.py scores.<locals>.<dictcomp>": "the same before Python 3.12",
    "datamodules/base.py FSSLDataModule._place": "before the first round",
    "datamodules/base.py FSSLDataModule.class_counts": "once, before the first evaluation",
    "datamodules/views/augment.py resize": "before the first round",
    "datamodules/views/randaugment.py RandAugment.__call__": "once per block of images",
    "methods/cbafed.py CBAFed.aggregate": "once per round",
    "methods/cbafed.py CBAFed.make_upload": "once per visit",
    "methods/cbafed.py storage_order": "once per visit",
    "methods/feddb.py FedDB.weights": "once per round",
    "methods/parts/helpers.py Helpers.received": "once per visit",
    "methods/parts/helpers.py nearest": "once per round",
    "methods/parts/sparse.py sparse_bytes": "once per upload",
    "methods/fl2.py FL2.pseudo_labelled": "once per visit",
    "methods/fl2.py FL2.weights": "once per round",
    "methods/fixmatch.py FixMatch.pseudo_labelled": "once per visit",
    "methods/proxyfl.py ProxyFL.aggregate": "once per round",
    "methods/rscfed.py consensus_weights": "once per subset",
    "methods/semifl.py SemiFL.mix_set": "once per visit",
}
"""Where the host waits for the device, and how often: nowhere in a step."""


def named(method: str) -> Any:
    """The class; where hardly one of the few images would be above the usual threshold, half is enough."""
    cls: Any = class_of(method)
    if method not in ("fixmatch", "semifl"):
        return cls
    return type(cls.__name__, (cls,), {"contract_args": {**cls.contract_args, "threshold": 0.5}})


@cache
def on_the_cpu(method: Any) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    half_trained()
    return run_of(method)


def on_the_device(
    method: Any, replay: bool, **precision: Any
) -> tuple[list[dict[str, Any]], dict[str, Tensor], Emulation, Times]:
    """Rows and server of a run in slots, and what was seen of it."""
    half_trained()
    with emulated() as emulation, streams(emulation) as times:
        rows, server = run_of(method, fabric=fabric(**precision), slots=SLOTS, replay=replay)
    return rows, server, emulation, times


@pytest.mark.parametrize("replay", [True, False], ids=["replay", "eager"])
@pytest.mark.parametrize("method", known_names(KINDS["method"]))
def test_slots_on_a_device(method: str, replay: bool) -> None:
    """The bits of the reference engine on the CPU; no race, and no wait of the host but the known ones."""
    cls = named(method)
    expected_rows, expected = on_the_cpu(cls)
    with patch.object(CudaGraph, "replay", autospec=True, side_effect=CudaGraph.replay) as replays:
        rows, server, emulation, times = on_the_device(cls, replay)
    assert different(server, expected) == [] and rows == expected_rows
    assert times.races == {}
    waits = {f"{Path(place.file).relative_to(ROOT)} {place.function}" for _, place in emulation.reads}
    assert waits <= WAITS.keys()
    if replay and method != "server_only":  # whose steps are the server's
        assert replays.call_count


@pytest.mark.parametrize("method", ["fedavg", "fl2", "fedmatch", "local_ssl"])
def test_scaled_losses_on_a_device(method: str) -> None:
    """Loss scaling in recorded steps: the bits of a loss that is not scaled, no race, no wait of the host in a step."""
    expected_rows, expected = on_the_cpu(method)
    rows, server, emulation, times = on_the_device(method, replay=True, plugins=ScaledSingle())
    assert different(server, expected) == [] and different_rows(rows, expected_rows, but=OVERFLOW) == []
    assert all(row[name] == 0.0 for row in rows for name in OVERFLOW if name in row)
    assert times.races == {}
    assert {f"{Path(place.file).relative_to(ROOT)} {place.function}" for _, place in emulation.reads} <= WAITS.keys()


@pytest.mark.parametrize("replay", [True, False], ids=["replay", "eager"])
@pytest.mark.parametrize("method", ["fedavg", "feddb"])
def test_a_second_run_in_the_same_process(method: str, replay: bool) -> None:
    """It uses constants that the first run has made on other streams: the same bits, and no race."""
    half_trained()
    with emulated() as emulation, streams(emulation) as times:
        runs = [run_of(method, fabric=fabric(), slots=SLOTS, replay=replay) for _ in range(2)]
    for _, server in runs:
        assert different(server, on_the_cpu(method)[1]) == []
    assert times.races == {}


@pytest.mark.parametrize(
    "fault",
    [lambda: patch("datamodules.base.finished", lambda device: None), lambda: patch.object(Stream, "wait_stream")],
    ids=["unfinished layouts", "streams that do not wait"],
)
def test_a_race_is_found(fault: Callable[[], Any]) -> None:
    """Whoever leaves out that a stream, or the host, waits."""
    with fault():
        assert on_the_device("local_ssl", replay=False)[3].races


def scaled(images: Tensor) -> Tensor:
    return augment.normalise(images, (0.3,), (0.2,))


def numbered(images: Tensor) -> Tensor:
    return pixelops.constant((0.1, 0.7), images.device) * 2


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("made", [scaled, numbered])
def test_constants_are_finished(made: Callable[[Tensor], Tensor], finishes: bool) -> None:
    """The stream that comes first makes them, and others use them without waiting for it."""
    augment._scale_shift.cache_clear()
    pixelops.constant.cache_clear()
    with emulated() as emulation, streams(emulation) as times, ExitStack() as stack:
        images = torch.zeros(2, 4, 4, 3, dtype=torch.uint8, device=device())
        if not finishes:
            for module in (augment, pixelops):
                stack.enter_context(patch.object(module, "finished", lambda device: None))
        for _ in range(2):
            other = Stream()
            other.wait_stream(times.main)
            with torch.get_device_module(device()).stream(other):
                made(images)
    assert bool(times.races) == (not finishes and made is scaled)  # a copy from the host is finished anyway


class ReadsLoss(FedAvg):
    """A step looks at its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * min(1.0, float(loss.detach()))


class UploadsNumber(FedAvg):
    """A step makes a tensor of Python's numbers."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * torch.tensor([1.0], device=self.device)[0]


class DrawsElsewhere(FedAvg):
    """A step draws from a generator that nobody seeds for a replay."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        drawn = torch.rand(1, device=self.device, generator=torch.Generator(device=self.device))
        return super().training_step(batch, batch_idx) + 0 * drawn[0]


@pytest.mark.parametrize("method", [ReadsLoss, UploadsNumber, DrawsElsewhere])
def test_what_cannot_be_captured_is_refused(method: type) -> None:
    """With what CUDA says, and with who names the line."""
    with pytest.raises(RunError, match=rf"{method.__name__}.*cannot be captured.*captur.*--fssl-method"):
        on_the_device(method, replay=True)


def test_capturing_runs_nothing() -> None:
    """Until the first replay all is as before, and results are no numbers."""
    with emulated() as emulation, streams(emulation):
        total, made = torch.zeros(3, device=device()), []
        generator = torch.Generator(device=device()).manual_seed(0)

        def step() -> None:
            total.add_(torch.rand(3, generator=generator, device=device()))
            made.append(total * 2)

        step()
        before, state = total.tolist(), generator.get_state()
        with patch.object(CudaGraph, "__init__", captured_only):
            graph = record(step, device(), [generator]).graph
        assert total.tolist() == before and torch.equal(generator.get_state(), state)
        assert made[-1].isnan().all()
        graph.replay()
        assert total.tolist() != before and made[-1].tolist() == (total * 2).tolist()


def captured_only(self: Any, *args: Any, init: Callable[..., None] = CudaGraph.__init__) -> None:
    """A recording that forgets that capturing runs nothing."""
    with patch("emulated_streams.Graph.replay", lambda graph: None):
        init(self, *args)


def test_a_step_that_is_captured_and_not_replayed_is_noticed() -> None:
    """The fake graph leaves what a GPU would: a step that was not taken."""
    expected = on_the_cpu("fedavg")[1]
    with patch.object(CudaGraph, "__init__", captured_only):
        _, server, _, _ = on_the_device("fedavg", replay=True)
    assert different(server, expected)


class Fast(LocalSSL):
    """Adam, which divides its rate in double precision; the rate is far from any number of single precision."""

    contract_args = {"lr": 0.008}


@pytest.mark.parametrize("rounded", [True, False])
def test_rates_are_rounded_alike(rounded: bool) -> None:
    """A recorded step reads its rate in single precision; where other steps do not, another model comes out."""
    reads_single = optimizers.reads_single if rounded else lambda parameters: False
    with patch.object(optimizers, "reads_single", reads_single):
        _, eager, _, _ = on_the_device(Fast, replay=False)
        _, server, _, _ = on_the_device(Fast, replay=True)
    assert bool(different(server, eager)) != rounded


def test_freed_memory_goes_to_its_own_stream() -> None:
    """Another stream that still reads it must have been waited for."""
    for waits in (False, True):
        with emulated() as emulation, streams(emulation) as times:
            other = Stream()
            x = torch.ones(4, device=device())
            other.wait_stream(times.main)
            with torch.get_device_module(device()).stream(other):
                x.sum()
            if waits:
                times.main.wait_stream(other)
            del x
            torch.ones(4, device=device())
        assert bool(times.races) != waits
