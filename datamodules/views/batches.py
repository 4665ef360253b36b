"""Batches without worker processes: shuffled positions, and views cut in blocks on the device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from datamodules.common.errors import ConfigError
from datamodules.partition.sites import SiteData

Batch = dict[str, dict[str, Tensor]]


@dataclass
class Stream:
    """A stream of batches of a client or the server, one per step.

    Args:
        index: positions in the training set, int64 ``[n]``.
        views: batch field -> name of the view, cut anew in every pass.
        fields: batch field -> tensor aligned with ``index`` (labels, masks, stored views), first axis ``n``.
        batch_size: samples per step; the last, shorter batch of a pass is kept.
        shuffle: use a new order in every pass, otherwise the order of ``index``.
        cycle: restart when exhausted, as often as the client's other streams need.
        min_batch: shorter batches are left out (2 where a one-image batch breaks batch norm).
        draws: name of the random streams for order and augmentation; default: the stream's name.
        resample: draw this many positions with replacement in every pass, instead of each position once.

    Raises:
        ConfigError: no images per step, or a field whose length differs.
    """

    index: Tensor
    batch_size: int
    views: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    shuffle: bool = True
    cycle: bool = False
    min_batch: int = 1
    draws: str | None = None
    resample: int | None = None

    def __post_init__(self) -> None:
        wrong = [name for name, values in self.fields.items() if len(values) != len(self.index)]
        if self.batch_size < 1 or wrong:
            why = f"{wrong[0]} does not have one entry per image" if wrong else f"batch_size={self.batch_size}"
            raise ConfigError(f"a stream of {len(self.index)} images: {why}; align the fields, take 1 or more per step")

    def __len__(self) -> int:
        return len(self.index) if self.resample is None or not len(self.index) else self.resample

    def positions(self, order: torch.Generator) -> Tensor:
        """Draw a pass's order: places in ``index``, int64 ``[len(self)]``."""
        if self.resample is not None:
            return torch.randint(max(len(self.index), 1), (len(self),), generator=order)
        return torch.randperm(len(self), generator=order) if self.shuffle else torch.arange(len(self))

    @property
    def usable(self) -> bool:
        """Whether a pass has any batch: not for a stream without images, or with fewer than ``min_batch``."""
        return min(len(self), self.batch_size) >= max(self.min_batch, 1)


def streams_of(
    data: SiteData, views: Mapping[str, Mapping[str, str]], batch_size: int, min_batch: int = 1
) -> dict[str, Stream]:
    """The streams named in ``views`` that a site can feed; labels cycle beside unlabelled data."""
    streams = {}
    if "unlabelled" in views and len(data.unlabelled) >= min_batch:
        streams["unlabelled"] = Stream(data.unlabelled, batch_size, views["unlabelled"], min_batch=min_batch)
    if "labelled" in views and len(data.labelled):
        y, cycle = {"y": data.labels}, "unlabelled" in streams
        streams["labelled"] = Stream(data.labelled, batch_size, views["labelled"], y, cycle=cycle, min_batch=min_batch)
    return streams


@dataclass
class Pass:
    """One local epoch.

    Args:
        streams: streams by name; a step gets one batch of each.
        steps: most steps, 1 or more; ``None``: no limit. The shortest stream that does not cycle ends the pass, too.

    Raises:
        ConfigError: fewer steps than 1.
    """

    streams: Mapping[str, Stream]
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"a pass of {self.steps} steps trains nothing: give a whole number from 1, or None")


LocalWork = Sequence[Pass | Callable[[], Pass]]
"""The local epochs of a visit in order; a function creates its epoch when it starts, with the model of that time."""


def _walk(stream: Stream, data: Any, order: torch.Generator, augment: torch.Generator) -> Iterator[dict[str, Tensor]]:
    size, device = stream.batch_size, stream.index.device
    block = max(1, data.block // size) * size
    while True:
        for positions in torch.split(stream.positions(order).to(device), block):
            index = stream.index[positions]
            samples = {name: values[positions] for name, values in stream.fields.items()}
            samples |= {name: data.take(view, index, augment) for name, view in stream.views.items()}
            for start in range(0, len(positions), size):
                if min(size, len(positions) - start) >= stream.min_batch:
                    yield {name: values[start : start + size] for name, values in samples.items()}
        if not stream.cycle:
            return


def epoch(
    streams: Mapping[str, Stream], data: Any, generator: Callable[[str], torch.Generator], steps: int | None = None
) -> Iterator[Batch]:
    """Iterate over one pass: one batch per stream and step, until ``steps`` or the shortest stream without ``cycle``.

    Args:
        streams: stream name -> stream; those that are not ``usable`` are left out.
        data: cuts the views: the data module.
        generator: returns the random stream of a purpose (``"order/<name>"`` on the CPU, ``"augment/<name>"`` on the
            data's device).
        steps: number of steps; needed if every stream cycles.

    Raises:
        ConfigError: every stream cycles and the number of steps is not given.
    """
    usable = {name: stream for name, stream in streams.items() if stream.usable}
    if usable and steps is None and all(stream.cycle for stream in usable.values()):
        raise ConfigError("every stream of the client cycles: the pass needs a number of steps")
    walks = {}
    for name, stream in usable.items():
        draws = stream.draws or name
        walks[name] = _walk(stream, data, generator(f"order/{draws}"), generator(f"augment/{draws}"))
    for samples in islice(zip(*walks.values(), strict=False), steps):
        yield dict(zip(walks, samples, strict=True))
