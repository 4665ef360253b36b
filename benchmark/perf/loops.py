"""Baselines for the engine: a bare loop with the same work, and one written like released codes."""

import copy
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


def bare_epoch(model: nn.Module, teacher: nn.Module, zoomed: Tensor, mean: Tensor, std: Tensor, lead: float) -> None:
    """Run one mean-teacher epoch without a framework: tensors only, fused SGD, no host sync."""
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY, fused=True)
    kept: list[Tensor] = list(teacher.parameters())
    moving: list[Tensor] = list(model.parameters())
    order = torch.randperm(len(zoomed))
    for start in range(0, len(order), BATCH * 16):
        index = order[start : start + BATCH * 16]
        first, second = (bare_views(zoomed, index, mean, std) for _ in range(2))
        for a in range(0, len(index), BATCH):
            with torch.no_grad():
                p = teacher(first[a : a + BATCH]).softmax(1).pow(1 / SHARPENING)
                target = p / p.sum(1, keepdim=True)
            optimizer.zero_grad()
            loss = WEIGHT * (model(second[a : a + BATCH]).softmax(1) - target).square().sum() / BATCH
            loss.backward()
            nn.utils.clip_grad_norm_(moving, CLIP)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(kept, moving, lead)


def bare_supervised(model: nn.Module, zoomed: Tensor, labels: Tensor, mean: Tensor, std: Tensor) -> None:
    """Run one supervised epoch without a framework."""
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY, fused=True)
    order = torch.randperm(len(zoomed))
    for start in range(0, len(order), BATCH * 16):
        index = order[start : start + BATCH * 16]
        views, targets = bare_views(zoomed, index, mean, std), labels[index]
        for a in range(0, len(index), BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(views[a : a + BATCH]), targets[a : a + BATCH])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()


class PillowPairs(Dataset[tuple[Tensor, Tensor]]):
    """Two views per image with Pillow and torchvision, one image at a time."""

    def __init__(self, images: np.ndarray[Any, Any], mean: Tensor, std: Tensor) -> None:
        self.images = images
        self.view = transforms.Compose(
            [
                transforms.Resize((40, 40)),
                transforms.RandomCrop(32),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean.tolist(), std.tolist()),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[i])
        return self.view(image), self.view(image)


def released_epoch(
    model: nn.Module, teacher: nn.Module, images: np.ndarray[Any, Any], mean: Tensor, std: Tensor, workers: int = 0
) -> None:
    """Run the same epoch in the style of released codes: Pillow, NCHW, loops over parameters, ``.item()``."""
    student = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.SGD(student.parameters(), LR, MOMENTUM, weight_decay=DECAY, foreach=False)
    losses = []
    for first, second in DataLoader(PillowPairs(images, mean, std), BATCH, shuffle=True, num_workers=workers):
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
