"""Baselines for the engine: a bare loop with the same work, and one written like released codes."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

BATCH, CLIP, LR, MOMENTUM, DECAY, WEIGHT, SHARPENING = 64, 5.0, 0.021, 0.9, 5e-4, 0.02, 0.5


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


def bare_epoch(model: nn.Module, teacher: nn.Module, zoomed: Tensor, mean: Tensor, std: Tensor, lead: float) -> None:
    """Run one mean-teacher epoch without a framework: tensors only, fused SGD, no host sync."""
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY, fused=True)
    kept: list[Tensor] = list(teacher.parameters())
    moving: list[Tensor] = list(model.parameters())
    for _, first, second in bare_batches(zoomed, mean, std, views=2):
        with torch.no_grad():
            p = teacher(first).softmax(1).pow(1 / SHARPENING)
            target = p / p.sum(1, keepdim=True)
        optimizer.zero_grad()
        loss = WEIGHT * (model(second).softmax(1) - target).square().sum() / BATCH
        loss.backward()
        nn.utils.clip_grad_norm_(moving, CLIP)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(kept, moving, lead)


def bare_supervised(model: nn.Module, zoomed: Tensor, labels: Tensor, mean: Tensor, std: Tensor) -> None:
    """Run one supervised epoch without a framework."""
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY, fused=True)
    for index, view in bare_batches(zoomed, mean, std, views=1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(view), labels[index])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


class PillowViews(Dataset[tuple[Tensor, ...]]):
    """Views of images with Pillow and torchvision, one image at a time.

    Args:
        images: uint8 ``[n, H, W, 3]``.
        views: transforms of a Pillow image; an item has one view by each.
    """

    def __init__(self, images: np.ndarray[Any, Any], *views: Any) -> None:
        self.images, self.views = images, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        image = Image.fromarray(self.images[i])
        return tuple(view(image) for view in self.views)


def released_epoch(
    model: nn.Module, teacher: nn.Module, images: np.ndarray[Any, Any], mean: Tensor, std: Tensor, workers: int = 0
) -> None:
    """Run the same epoch in the style of released codes: Pillow, NCHW, loops over parameters, ``.item()``."""
    student = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.SGD(student.parameters(), LR, MOMENTUM, weight_decay=DECAY, foreach=False)
    view = transforms.Compose(
        [
            transforms.Resize((40, 40)),
            transforms.RandomCrop(32),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean.tolist(), std.tolist()),
        ]
    )
    losses = []
    for first, second in DataLoader(PillowViews(images, view, view), BATCH, shuffle=True, num_workers=workers):
        with torch.no_grad():
            p = teacher(first).softmax(1) ** (1 / SHARPENING)
            target = p / p.sum(1, keepdim=True)
        optimizer.zero_grad()
        loss = WEIGHT * ((student(second).softmax(1) - target) ** 2).sum() / BATCH
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), CLIP, foreach=False)
        optimizer.step()
        for kept, moving in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.data.mul_(0.999).add_(moving.data, alpha=0.001)
        losses.append(loss.item())
