"""Sharpness-aware consistency on WRN-28-2: the engine against released-style code, for each piece of a round.

Released-style code takes five forward passes per step (target, perturbation, pseudo-label loss, consistency, and an
unused weak view), works in NCHW and float32, loops over parameters, and cuts views with Pillow.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmark.perf.federations import Noise, federation, launched
from benchmark.perf.loops import PillowViews
from benchmark.perf.measure import Section, Unit, interleaved
from benchmark.perf.worker import process
from benchmark.runs.capacity import cores
from methods import models

BATCH, STEPS, SERVER_BATCH, SERVER_STEPS, NORM_BATCH, RHO, ETA = 32, 16, 10, 20, 2048, 0.1, 0.01
IMAGES = BATCH * STEPS
FIRST, FURTHER = "client, first epoch", "client, further epoch"
PER_ROUND = {
    FIRST: 10.0,
    FURTHER: 40.0,
    "server": 1.0,
    "norm statistics": 50_000 / NORM_BATCH,
    "test": 10_000 / NORM_BATCH,
}
NOTE = (
    f"A client with {IMAGES} images, all selected: labels and {STEPS} steps of {BATCH} (first epoch), {STEPS} steps "
    f"(further ones); {SERVER_STEPS} server steps of {SERVER_BATCH}; statistics and test over {NORM_BATCH} images. "
    "The round is the sum for 10 clients with 5 epochs, 50 000 images of statistics and 10 000 test images. The "
    "released way: five forward passes per step, one of them unused, NCHW, float32, Pillow views without workers, "
    "loops over parameters, memory returned to the system; released code that starts workers in every epoch is slower."
)


CUT = [transforms.RandomHorizontalFlip(), transforms.RandomCrop(32, 4, padding_mode="reflect")]
TAIL = [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))]
WEAK = transforms.Compose([*CUT, *TAIL])
STRONG = transforms.Compose([*CUT, transforms.RandAugment(3), *TAIL])
"""Views with Pillow; torchvision's RandAugment replaces the released one."""


class Released:
    """A client and a server in the style of released codes.

    Args:
        images: uint8 ``[N, 32, 32, 3]``.
        labels: their classes ``[N]``.
        batch: images per step of the client.
    """

    def __init__(self, images: np.ndarray[Any, Any], labels: Tensor, batch: int = BATCH) -> None:
        self.batch = batch
        self.model = models.build("wrn28_2", 10).to(memory_format=torch.contiguous_format)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.03, 0.9, weight_decay=5e-4, nesterov=True, foreach=False
        )
        self.images, self.labels = images, labels

    def batches(self, size: int, count: int, *views: Any) -> Iterator[Sequence[Tensor]]:
        """Yield the first ``count`` batches of these views."""
        return islice(DataLoader(PillowViews(self.images, *views), size), count)

    def pseudo_labels(self) -> None:
        """Predict all images in one batch."""
        with torch.no_grad():
            for weak, _ in self.batches(IMAGES, 1, WEAK, STRONG):
                self.model.eval()
                self.model(weak).softmax(1).max(1)
        self.model.train()

    def gradient(self, loss: Tensor) -> None:
        """Zero the gradients and compute those of the loss."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Clip and step."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=False)
        self.optimizer.step()

    def client_steps(self, count: int) -> None:
        """Take sharpness-aware steps."""
        labels = self.labels[: self.batch]
        for weak, strong in self.batches(self.batch, count, WEAK, STRONG):
            with torch.no_grad():
                target = self.model(strong).softmax(1)
                self.model(weak)
            self.gradient(F.cross_entropy(self.model(strong), labels))
            moves = self.ascend()
            consistency = F.kl_div(self.model(strong).log_softmax(1), target, reduction="batchmean")
            self.gradient(consistency)
            for parameter, move in moves:
                parameter.data.sub_(move)
            loss = F.cross_entropy(self.model(strong), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.finish()
            float(loss.detach())

    def ascend(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Move to the worst nearby weights, and return the displacement."""
        scales = [((p.abs() + ETA).detach() if "weight" in n else 1.0, p) for n, p in self.model.named_parameters()]
        norm = torch.stack([(scale * p.grad).norm() for scale, p in scales if p.grad is not None]).norm()
        moves = [(p, scale * scale * p.grad * RHO / norm) for scale, p in scales if p.grad is not None]
        for parameter, move in moves:
            parameter.data.add_(move)
        return moves

    def server_steps(self, count: int) -> None:
        """Take supervised steps on batches of 10."""
        for (weak,) in self.batches(SERVER_BATCH, count, WEAK):
            self.gradient(F.cross_entropy(self.model(weak), self.labels[:SERVER_BATCH]))
            self.finish()

    def forward(self, measure: bool) -> None:
        """Run one batch of 2048 images, for norm statistics or predictions."""
        self.model.train(measure)
        with torch.no_grad():
            for (weak,) in self.batches(NORM_BATCH, 1, WEAK):
                self.model(weak)
        self.model.train()


@cache
def released_pieces() -> dict[str, Unit]:
    """The pieces of a round by name, in released-style code; made once per process."""
    rng = np.random.RandomState(0)
    made = Released(rng.randint(0, 256, (NORM_BATCH, 32, 32, 3), np.uint8), torch.arange(NORM_BATCH) % 10)

    def visit() -> None:
        made.pseudo_labels()
        made.client_steps(STEPS)

    return {
        FIRST: visit,
        FURTHER: partial(made.client_steps, STEPS),
        "server": partial(made.server_steps, SERVER_STEPS),
        "norm statistics": partial(made.forward, measure=True),
        "test": partial(made.forward, measure=False),
    }


@cache
def engine_pieces(method: str, precision: str) -> dict[str, Unit]:
    """The same for the engine, with thresholds that all images pass."""
    options: dict[str, Any] = {"scenario": "server", "num_labels": 40, "pipeline": "randaugment_uniform"}
    data = Noise(4 * IMAGES + 40, num_clients=4, partition="iid", **options)
    made = federation(method, data, "wrn28_2", launched(precision=precision), selection="fixed", threshold=0.0)
    visit = made.visits(0)[0]

    def epochs(count: int) -> None:
        made.method.hparams["local_epochs"] = count
        made.engine.run_visit(visit, made.engine.send(visit, made.server), None)

    return {
        FIRST: partial(epochs, 1),
        FURTHER: partial(epochs, 2),
        "server": partial(made.engine.run_server, 0, None, first=False),
        "norm statistics": partial(made.method.refresh_norm, data),
        "test": made.evaluate,
    }


def run_piece(pieces: Callable[..., dict[str, Unit]], *args: Any, name: str) -> None:
    """Run one of the pieces that ``pieces(*args)`` gives."""
    pieces(*args)[name]()


def section(method: str) -> list[Section]:
    """Measure the pieces of a round, and the resulting round at the paper's size."""
    loops: dict[str, tuple[Any, ...]] = {"released way": (process(cores(), keep=False), released_pieces)}
    for precision in ("32-true", "bf16-mixed"):
        loops[f"engine, {precision}"] = process(cores()), engine_pieces, method, precision

    def run(loop: str, name: str) -> None:
        pool, *pieces = loops[loop]
        pool.submit(run_piece, *pieces, name=name).result()

    headers = ["piece", "loop", "seconds", "released way / this"]
    table = Section(f"Round of `{method}` on WRN-28-2, {cores()} threads", headers, NOTE)
    taken = interleaved({f"{loop}|{name}": partial(run, loop, name) for name in PER_ROUND for loop in loops})
    reference: dict[str, float] = {}
    for loop, (pool, *_) in loops.items():
        pool.shutdown()
        own = {name: taken[f"{loop}|{name}"] for name in PER_ROUND}
        if reference:  # the engine's further epoch included a first one
            own[FURTHER] -= own[FIRST]
        own["round (sum)"] = sum(count * own[name] for name, count in PER_ROUND.items())
        reference = reference or own
        table.add([[name, loop, value, reference[name] / value] for name, value in own.items()])
    return [table]
