"""Synchronisation of tensors used by several streams of a device."""

import torch


def finished(device: torch.device) -> None:
    """Wait for the current stream, so that other streams of the device can use its results."""
    if device.type != "cpu":
        torch.get_device_module(device).current_stream(device).synchronize()
