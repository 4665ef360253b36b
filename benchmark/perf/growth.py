"""Growth with registered clients, active clients and parameters: time, memory, checkpoints."""

import resource
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmark.federation import checkpoint
from benchmark.perf.federations import config_of, federation_of
from benchmark.perf.measure import Section, alone, seconds
from benchmark.perf.rounds import ROUNDS, round_seconds

PIXELS = 16  # side of an image; small, so that a million clients fit into memory
SHARE = 4  # images of a client, one batch
CASES = [  # network, registered, active
    *(("small_cnn", 10**power, 10) for power in range(2, 7)),
    *(("small_cnn", 10_000, active) for active in (100, 1_000)),
    *((network, 100, 10) for network in ("wrn28_2", "resnet18", "wrn28_8")),
]
HEADERS = ["parameters", "registered", "active", "round, s", "besides steps, s"]
HEADERS += ["process, MB", "kept per client, MB", "checkpoint, MB", "saving, s"]
NOTE = (
    f"One thread; a client has {SHARE} images of {PIXELS} x {PIXELS} pixels, which are one batch, and keeps its "
    f"momenta. The checkpoint is the one after {ROUNDS + 1} rounds."
)


def section(method: str) -> Iterator[Section]:
    """Measure every line in a process of its own."""
    table = Section(f"Growth of `{method}`", HEADERS, NOTE)
    for case in CASES:
        yield table.add(alone(row, method, *case, threads=1))


def row(method: str, network: str, clients: int, active: int) -> list[Any]:
    """Measure rounds of a federation whose clients keep momenta between visits."""
    data = {"images": SHARE * clients, "pixels": PIXELS, "side": PIXELS}
    data |= {"num_clients": clients, "labelled_clients": clients}
    config = config_of(method, {"reset_momentum": False}, data, model=network, roster={"participants": active})
    made = federation_of(config)
    whole, besides = round_seconds(made)
    with TemporaryDirectory() as place:
        saving = seconds(lambda: checkpoint.save(Path(place) / "checkpoint.pt", made.state_dict()))
        saved = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    return [
        sum(weight.numel() for weight in made.method.model.parameters()),
        clients,
        active,
        whole,
        besides,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,  # it counts KiB
        made.engine.kept_bytes() / 1e6,
        saved / 1e6,
        saving,
    ]
