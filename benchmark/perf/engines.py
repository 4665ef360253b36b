"""Visits of a round by engine: clients one after the other, or interleaved in slots, eager or replayed."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from benchmark.perf.federations import Noise, arithmetic, federation, launched, synchronize
from benchmark.perf.measure import Section, interleaved, probe, threads
from benchmark.runs.environment import cores
from methods.models.backbone import Backbone

CLIENTS, BATCHES, SLOTS = 4, 6, (1, 4)
CASES = [
    ("small_cnn", 10), ("small_cnn", 64), ("resnet9", 10), ("resnet18", 10), ("wrn28_2", 10), ("wrn28_2", 32),
    ("benchmark.perf.engines.Pixels", 10), ("benchmark.perf.engines.Pixels", 64),
]  # fmt: skip
NOTE = (
    f"Visits of {CLIENTS} clients of {BATCHES} batches each. All engines take the same steps, to the bit (section on "
    "agreement). Replay is for GPUs: on the CPU it is a test, and slow."
)
REFERENCE = "reference"


class Pixels(Backbone):
    """A linear network on pixels, to measure networks without convolutions."""

    def __init__(self, num_classes: int, image_size: int = 32) -> None:
        super().__init__()
        self.feature_dim = 3 * image_size**2
        self.head = nn.Linear(self.feature_dim, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return pixels ``[B, 3 side side]``."""
        return x.flatten(1)


def visits(
    method: str,
    network: str,
    batch: int,
    clients: int = CLIENTS,
    batches: int = BATCHES,
    device: str = "cpu",
    precision: Any = "32-true",
    slots: int | None = None,
    replay: bool = False,
) -> Callable[[], Any]:
    """Visits of all clients with full batches each, until the device has finished."""
    data = Noise(clients * batches * batch, num_clients=clients, labelled_clients=clients, partition="iid")
    fabric = launched(device, precision)
    made = federation(method, data, network, fabric=fabric, slots=slots, replay=replay, batch_size=batch)
    planned = made.visits(0)

    def run() -> None:
        made.engine.run_visits(planned, made.server, {})
        synchronize(device)

    return run


def timed(
    method: str, network: str, batch: int, slots: Sequence[int], replay: bool, **options: Any
) -> dict[str, float]:
    """Seconds of visits by the reference engine and by numbers of slots, interleaved; options: see ``visits``."""
    chosen: dict[str, dict[str, Any]] = {REFERENCE: {}}
    chosen |= {engine_name(n): {"slots": n, "replay": replay} for n in slots}
    return interleaved({name: visits(method, network, batch, **own, **options) for name, own in chosen.items()})


def alone(precision: str, repeats: int, method: str, network: str, batch: int, **options: Any) -> float:
    """Seconds of visits by a single engine in a precision (see ``arithmetic``), after a warm-up."""
    with arithmetic(precision) as known:
        return interleaved({"it": visits(method, network, batch, precision=known, **options)}, repeats)["it"]


def engine_name(slots: int) -> str:
    """Name of a number of slots in tables."""
    return f"K = {slots}"


def section(method: str) -> list[Section]:
    """Measure networks and batch sizes on all CPU cores."""
    with threads(cores()):
        before, rows = probe(), []
        for network, batch in CASES:
            taken = timed(method, network, batch, SLOTS, replay=False)
            fastest = min(taken[engine_name(n)] for n in SLOTS)
            shown = [1000 * value for value in taken.values()]
            rows.append([network.rpartition(".")[2], batch, *shown, taken[REFERENCE] / fastest])
    names = [REFERENCE, *(f"slots, {engine_name(n)}" for n in SLOTS)]
    headers = ["network", "batch", *(f"{name}, ms" for name in names), "reference / best slots"]
    return [Section(f"Engines, visits of `{method}`", headers, rows, NOTE, (before, probe()))]
