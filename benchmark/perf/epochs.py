"""One local epoch of a mean-teacher method on the small CNN: the engine against a bare loop."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.perf.measure import Section, alone, config_of, federation_of, interleaved
from benchmark.runs.environment import cores
from datamodules.base import FSSLDataModule
from methods import models

IMAGES, CLASSES = 5_000, 100
BATCH, CLIP, LR, MOMENTUM, DECAY, WEIGHT, SHARPENING, LEAD = 64, 5.0, 0.021, 0.9, 5e-4, 0.02, 0.5, 0.001
NOTE = (
    f"A client with {IMAGES:,} images, batches of {BATCH}, two views and a teacher (unlabelled) or one view. The bare "
    "loop does the same work without a framework."
)


def section(method: str) -> Iterator[Section]:
    """Measure unlabelled and labelled epochs, with one thread and with all cores."""
    headers = ["threads", "client", "engine, s", "bare loop, s", "engine / bare loop", "engine, images/s"]
    table = Section(f"Local epoch of `{method}` on the small CNN", headers, NOTE)
    for count in sorted({1, cores()}):
        for labelled in (False, True):
            yield table.add([count, *alone(row, method, labelled, threads=count)])


def row(method: str, labelled: bool) -> list[Any]:
    """Measure a client's epoch both ways, in turns."""
    data = {"images": 2 * IMAGES, "classes": CLASSES, "num_clients": 2}
    made = federation_of(config_of(method, {"warmup_rounds": 0}, data))
    visit = next(v for v in made.visits(0) if v.labelled == labelled)
    taken = interleaved(
        {
            "engine": lambda: made.engine.run_visit(visit, made.engine.send(visit, made.server), None)[0].bytes_down,
            "bare": bare(made.data, visit.client, labelled),
        }
    )
    kind = "labelled" if labelled else "unlabelled"
    return [kind, taken["engine"], taken["bare"], taken["engine"] / taken["bare"], IMAGES / taken["engine"]]


def bare(data: FSSLDataModule, client: int, labelled: bool) -> Any:
    """Return the bare loop over a client's images."""
    site = data.client(client)
    images = data.train_images[site.labelled if labelled else site.unlabelled]
    zoomed = data.views["weak"].geometry.prepare(images)
    model, teacher = (models.build("small_cnn", CLASSES) for _ in range(2))
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    return partial(bare_epoch, model, zoomed, site.labels if labelled else teacher.requires_grad_(False), mean, std)


def bare_views(zoomed: Tensor, index: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Cut random 32 x 32 windows of enlarged images ``[N, 40, 40, 3]``, flipped with probability 1/2, normalised."""
    n, side = len(index), zoomed.shape[1]
    column = torch.arange(32).expand(n, 32)
    column = torch.where(torch.rand(n, 1) < 0.5, 31 - column, column) + torch.randint(side - 31, (n, 1))
    row = (index * side + torch.randint(side - 31, (n,)))[:, None] + torch.arange(32)
    pixel = (row * side)[:, :, None] + column[:, None, :]
    windows = zoomed.view(-1, 3).index_select(0, pixel.view(-1)).view(n * 32, 96).float()
    scale, shift = (1 / (255 * std)).repeat(32), (-mean / std).repeat(32)
    return windows.mul_(scale).add_(shift).view(n, 32, 32, 3).permute(0, 3, 1, 2)


def bare_batches(zoomed: Tensor, mean: Tensor, std: Tensor, views: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batches of an epoch: positions of images, and that many views of them, cut for 16 batches at a time."""
    for block in torch.split(torch.randperm(len(zoomed)), 16 * BATCH):
        cut = [bare_views(zoomed, block, mean, std) for _ in range(views)]
        yield from zip(*(torch.split(part, BATCH) for part in (block, *cut)), strict=True)


def bare_epoch(model: nn.Module, zoomed: Tensor, target: Tensor | nn.Module, mean: Tensor, std: Tensor) -> None:
    """Run one epoch without a framework, supervised by labels or by a mean teacher: fused SGD, no host sync."""
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY, fused=True)
    moving: list[Tensor] = list(model.parameters())
    teacher = target if isinstance(target, nn.Module) else None
    for index, *views in bare_batches(zoomed, mean, std, views=1 if teacher is None else 2):
        optimizer.zero_grad()
        if isinstance(target, Tensor):
            loss: Tensor = F.cross_entropy(model(views[0]), target[index])
        else:
            with torch.no_grad():
                p = target(views[0]).softmax(1).pow(1 / SHARPENING)
            loss = WEIGHT * (model(views[1]).softmax(1) - p / p.sum(1, keepdim=True)).square().sum() / BATCH
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(moving, CLIP)
        optimizer.step()
        if teacher is not None:
            with torch.no_grad():
                torch._foreach_lerp_(list(teacher.parameters()), moving, LEAD)
