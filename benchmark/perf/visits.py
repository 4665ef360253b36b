"""Overhead of a visit: a client without a batch, and one with a single batch against a bare loop."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from benchmark.perf.federations import Noise, arithmetic, federation, launched, synchronize
from benchmark.perf.measure import REPEATS, Section, Unit, interleaved, probe, threads

BATCH, CLIENTS = 10, 2
CASES = {"small_cnn": 20, "wrn28_2": 5}  # visits per timing
HEADERS = ["network", "loop", "no batch, ms", "one batch, ms", "beside a bare loop, ms"]
NOTE = (
    f"Milliseconds per visit of a client with {BATCH} images; on a CPU with one thread. The bare loop copies the "
    "weights in, makes an optimiser, cuts the views of the batch, takes the step, and copies the weights and the "
    "momentum out; the last column is what the engine takes more than it for one batch. Slots: one slot."
)


def bare(made: Federation, steps: int) -> Unit:
    """The bare loop: copy weights in, create an optimiser, take supervised steps, copy weights and momentum out."""
    model, data, h = made.method.model, made.data, made.method.hparams
    site, generator = data.client(0), torch.Generator(device=data.device).manual_seed(0)
    own: dict[str, Tensor] = model.state_dict()
    start = {name: tensor.clone() for name, tensor in own.items()}

    def unit() -> None:
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(start[name])
        optimizer = torch.optim.SGD(model.parameters(), h.lr, h.momentum, weight_decay=h.weight_decay, fused=True)
        for _ in range(steps):
            images = data.take("weak", site.labelled[:BATCH], generator)
            optimizer.zero_grad()
            with made.method.autocast():
                loss = F.cross_entropy(model(images), site.labels[:BATCH])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), h.clip_norm)
            optimizer.step()
        left = [tensor.clone() for tensor in own.values()]
        left += [state["momentum_buffer"].clone() for state in optimizer.state.values()]

    return unit


def row_of(name: str, network: str, taken: dict[str, float], loop: str) -> list[Any]:
    """Build a line of the table from seconds by loop and number of steps."""
    none, one = (1000 * taken[f"{loop}|{steps}"] for steps in (0, 1))
    return [network, name, none, one, one - 1000 * taken["bare|1"]]


def rows(
    method: str,
    network: str,
    times: int,
    device: str = "cpu",
    precision: str = "32-true",
    engines: Sequence[str] = ("reference",),
    repeats: int = REPEATS,
) -> list[list[Any]]:
    """Measure the lines of a network.

    Args:
        method: a method whose step is plain supervised training.
        network: name of the network.
        times: visits per timing.
        device: ``cpu`` or ``cuda``.
        precision: see ``arithmetic``.
        engines: ``reference``, ``slots``, ``slots, replay``.
        repeats: number of timings.
    """
    with arithmetic(precision) as known:
        units: dict[str, Unit] = {}
        for engine in engines:
            options: dict[str, Any] = {} if engine == "reference" else {"slots": 1, "replay": "replay" in engine}
            for steps in (0, 1):
                data = Noise(CLIENTS * BATCH, num_clients=CLIENTS, labelled_clients=CLIENTS, partition="iid")
                fabric = launched(device, known)
                made = federation(method, data, network, fabric=fabric, batch_size=BATCH, **options)
                made.method.hparams["local_epochs"] = steps
                units[f"{engine}|{steps}"] = repeated(made, made.visits(0)[:1], times, device)
        data = Noise(CLIENTS * BATCH, num_clients=CLIENTS, labelled_clients=CLIENTS, partition="iid")
        made = federation(method, data, network, fabric=launched(device, known), batch_size=BATCH)
        for steps in (0, 1):
            units[f"bare|{steps}"] = often(bare(made, steps), times, device)
        taken = {name: value / times for name, value in interleaved(units, repeats).items()}
        return [row_of(name, network, taken, name) for name in (*engines, "bare")]


def repeated(made: Federation, planned: Sequence[Any], times: int, device: str) -> Unit:
    """Return a function that repeats a visit."""
    return often(lambda: made.engine.run_visits(planned, made.server, {}), times, device)


def often(work: Unit, times: int, device: str) -> Unit:
    """Return a function that repeats work and waits for the device."""

    def unit() -> None:
        for _ in range(times):
            work()
        synchronize(device)

    return unit


def section(method: str) -> list[Section]:
    """Measure networks on one CPU thread."""
    with threads(1):
        before = probe()
        found = [row for network, times in CASES.items() for row in rows(method, network, times)]
        return [Section(f"Visits of `{method}` beside their steps", HEADERS, found, NOTE, (before, probe()))]
