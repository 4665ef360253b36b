"""Streams of a device and threads of the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


def finished(device: torch.device) -> None:
    """Wait for the current stream, so that other streams of the device can use its results."""
    if device.type != "cpu":
        torch.get_device_module(device).current_stream(device).synchronize()


@contextmanager
def threads(count: int | Literal["auto"]) -> Iterator[None]:
    """Set the number of torch's threads while the context is open; ``auto`` leaves it unchanged."""
    before = torch.get_num_threads()
    if count != "auto":
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
