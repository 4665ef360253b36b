"""The visits of a round by the engines: clients one after the other, and side by side in stacks."""

from collections.abc import Callable
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor, nn

from benchmark.launch.environment import cores
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Section, interleaved, probe, threads
from methods.models.backbone import Backbone

CLIENTS, BATCHES = 8, 6
CASES = [
    ("small_cnn", 10), ("small_cnn", 64), ("resnet9", 10), ("resnet18", 10), ("wrn28_2", 10), ("wrn28_2", 32),
    ("benchmark.perf.engines.Pixels", 10), ("benchmark.perf.engines.Pixels", 64),
]  # fmt: skip
NOTE = (
    f"Visits of {CLIENTS} clients of {BATCHES} batches each. Both engines take the same steps (tests compare them in "
    "double precision); stacked: all clients at once, by torch.vmap."
)


class Pixels(Backbone):
    """A linear network on the pixels, for what has no convolutions, such as classifiers of feature vectors."""

    def __init__(self, num_classes: int, image_size: int = 32) -> None:
        super().__init__()
        self.feature_dim = 3 * image_size**2
        self.head = nn.Linear(self.feature_dim, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Pixels ``[B, 3 side side]``."""
        return x.flatten(1)


def visits(method: str, network: str, batch: int, stack: int | None) -> Callable[[], Any]:
    """The visits of all clients, on a GPU where there is one."""
    fabric = Fabric(accelerator="cuda" if torch.cuda.is_available() else "cpu", devices=1)
    fabric.launch()
    data = Noise(CLIENTS * BATCHES * batch, num_clients=CLIENTS, labelled_clients=CLIENTS, partition="iid")
    made = federation(method, data, network, fabric=fabric, stack=stack, batch_size=batch)
    planned = made.visits(0)

    def run() -> None:
        made.engine.visits(planned, made.server, {})
        if fabric.device.type == "cuda":
            torch.cuda.synchronize()

    return run


def section(method: str) -> list[Section]:
    """Networks and batch sizes; on the CPU with all cores."""
    with threads(cores()):
        before, rows = probe(), []
        for network, batch in CASES:
            engines = {"reference": None, "stacked": CLIENTS}
            taken = interleaved({name: visits(method, network, batch, n) for name, n in engines.items()})
            one, side = (taken[name] for name in engines)
            rows.append([network.rpartition(".")[2], batch, 1000 * one, 1000 * side, one / side])
    headers = ["network", "batch", "reference, ms", "stacked, ms", "reference / stacked"]
    where = f" on {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return [Section(f"Engines, visits of `{method}`{where}", headers, rows, NOTE, (before, probe()))]
