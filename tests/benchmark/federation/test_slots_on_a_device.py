"""All methods in slots on an emulated device with streams and graphs: bits, races, what the host waits for.

Nothing here has run on a GPU: the device computes what the CPU does, and its graphs and streams keep to CUDA's rules.
"""

from collections.abc import Callable
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
from benchmark.contract.federations import half_trained
from benchmark.contract.reference import different
from benchmark.federation import fit, slots
from benchmark.federation.recording import CudaGraph, record
from benchmark.registry import KINDS, known_names
from datamodules.common.errors import RunError
from datamodules.views import augment, pixelops
from emulated_streams import Stream, Times, streams
from methods.fedavg import FedAvg

SLOTS = 3
WAITS: dict[str, str] = {}


@cache
def on_the_cpu(method: str) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    half_trained()
    return run_of(method)


def on_the_device(method: Any, replay: bool) -> tuple[list[dict[str, Any]], dict[str, Tensor], Emulation, Times]:
    """Rows and server of a run in slots, and what was seen of it."""
    half_trained()
    with emulated() as emulation, streams(emulation) as times:
        rows, server = run_of(method, fabric=fabric(), slots=SLOTS, replay=replay)
    return rows, server, emulation, times


@pytest.mark.parametrize("replay", [False, True], ids=["eager", "replay"])
@pytest.mark.parametrize("method", known_names(KINDS["method"]))
def test_slots_on_a_device(method: str, replay: bool) -> None:
    """The bits of the reference engine on the CPU; no race, and no wait of the host but the known ones."""
    expected_rows, expected = on_the_cpu(method)
    with patch.object(CudaGraph, "replay", autospec=True, side_effect=CudaGraph.replay) as replays:
        rows, server, emulation, times = on_the_device(method, replay)
    assert different(server, expected) == [] and rows == expected_rows
    assert times.races == {}
    waits = {f"{Path(place.file).relative_to(ROOT)} {place.function}" for _, place in emulation.reads}
    assert waits <= WAITS.keys()
    if replay and method != "server_only":  # whose steps are the server's
        assert replays.call_count
