"""Visits of a round by engine: clients one after the other, or interleaved in slots, eager or replayed."""

from collections.abc import Callable
from typing import Any

from benchmark.perf.federations import Noise, arithmetic, federation, launched, synchronize
from benchmark.perf.measure import interleaved


def visits(
    method: str, network: str, batch: int, clients: int, batches: int, device: str, precision: Any, **engine: Any
) -> Callable[[], Any]:
    """Visits of all clients with full batches each, until the device has finished; ``engine``: as of ``Federation``."""
    data = Noise(clients * batches * batch, num_clients=clients, labelled_clients=clients, partition="iid")
    made = federation(method, data, network, launched(device, precision), engine=engine, batch_size=batch)
    planned = made.visits(0)

    def run() -> None:
        made.engine.run_visits(planned, made.server, {})
        synchronize(device)

    return run


def alone(precision: str, method: str, network: str, batch: int, **options: Any) -> float:
    """Seconds of visits by a single engine in a precision (see ``arithmetic``), after a warm-up."""
    with arithmetic(precision) as known:
        return interleaved({"it": visits(method, network, batch, precision=known, **options)}, repeats=1)["it"]
