"""One local epoch of a mean-teacher method on the small CNN: the engine, a bare loop, released-style code."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

from benchmark.perf import loops
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Section, Unit, interleaved
from benchmark.perf.worker import process, together
from benchmark.runs.capacity import cores
from datamodules.common.devices import threads
from methods import models

IMAGES, CLASSES = 5_000, 100
NOTE = (
    f"A client with {IMAGES:,} images, batches of 64, two views and a teacher (unlabelled) or one view. The bare loop "
    "does the same work without a framework. The released way works like released code: Pillow views, one image at a "
    "time, from a DataLoader, and loops over parameters. With several processes: seconds per client while all of them "
    "run."
)


@cache
def visit(method: str, labelled: bool) -> Callable[[], Any]:
    """One visit of the engine to a client with or without labels, made once per process."""
    data = Noise(2 * IMAGES, CLASSES, num_clients=2, partition="iid")
    made = federation(method, data, warmup_rounds=0)
    chosen = next(v for v in made.visits(0) if v.labelled == labelled)
    return lambda: made.engine.run_visit(chosen, made.engine.send(chosen, made.server), None)[0].bytes_down


def visited(method: str, labelled: bool) -> None:
    """Make the visit."""
    visit(method, labelled)()


def bare(labelled: bool) -> tuple[Unit, Callable[..., Any]]:
    """The bare loop on the same images, and released-style code with a choice of workers (unlabelled only)."""
    data = Noise(2 * IMAGES, CLASSES, num_clients=2, partition="iid")
    data.setup()
    model, teacher = (models.build("small_cnn", CLASSES) for _ in range(2))
    teacher.requires_grad_(False)
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    site = next(s for s in map(data.client, (0, 1)) if bool(len(s.labelled)) == labelled)
    index = site.labelled if labelled else site.unlabelled
    images = data.train_images[index]
    zoomed = data.views["weak"].geometry.prepare(images)
    if labelled:
        loop: Unit = partial(loops.bare_supervised, model, zoomed, site.labels, mean, std)
    else:
        loop = partial(loops.bare_epoch, model, teacher, zoomed, mean, std, 0.001)
    return loop, partial(loops.released_epoch, model, teacher, images.numpy(), mean, std)


def section(method: str) -> Iterator[Section]:
    """Measure unlabelled and labelled epochs with one thread and with all cores."""
    for count in sorted({1, cores()}):
        with threads(count):
            title = f"Local epoch of `{method}` on the small CNN, {count} thread{'s' * (count > 1)}"
            headers = ["client", "loop", "seconds", "images/s", "x bare loop", "released way / this"]
            table = Section(title, headers, NOTE)
            for labelled in (False, True):
                loop, released = bare(labelled)
                units: dict[str, Unit] = {"engine": partial(visited, method, labelled), "bare loop": loop}
                if not labelled:
                    units["released way"] = released
                    if count > 1:
                        units["released way, 8 workers"] = partial(released, workers=8)
                several = [process() for _ in range(cores())] if count > 1 else []
                if several:
                    units[f"engine, {cores()} processes"] = partial(together, several, visited, method, labelled)
                taken = interleaved(units)
                for one in several:
                    one.shutdown()
                if several:
                    taken[f"engine, {cores()} processes"] /= cores()
                kind = "labelled" if labelled else "unlabelled"
                slowest = taken.get("released way")
                for name, value in taken.items():
                    ratio = slowest / value if slowest else "-"
                    table.add([[kind, name, value, IMAGES / value, value / taken["bare loop"], ratio]])
        yield table
