"""What is made once and used by all: several streams of a device may."""

import torch


def finished(device: torch.device) -> None:
    """Wait for what the present stream has made on a device and others will use, which do not wait for this stream."""
    if device.type != "cpu":
        torch.get_device_module(device).current_stream(device).synchronize()
