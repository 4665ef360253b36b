"""Loaders for a plain Lightning ``Trainer``, which fits and tests a method on all clients' data at once."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from datamodules.common import streams as random_streams
from datamodules.common.errors import ConfigError
from datamodules.partition.sites import SiteData
from datamodules.views.batches import Batch, epoch, streams_of

BATCH, EVAL_BATCH, VIEWS = 64, 256, {"labelled": {"x": "weak"}}
"""Batches of a module that does not say what it takes."""


def train_loader(data: Any) -> DataLoader[Batch]:
    """All clients' and the server's training data at once, in the streams that the trainer's module names.

    They have what ``FedMethod.streams`` gives, and nothing that ``local_work`` prepares for a client's visit. A module
    that is no method gets ``batch["labelled"]["x"]`` and ``["y"]``, or, with an attribute ``views`` as methods have it,
    those streams, in batches of ``self.hparams.batch_size`` (64).

    The order of an epoch follows its number and the run's seed, so a resumed fit meets the images as if it had not
    stopped. Every process of a ``Trainer`` walks over all of them: several devices are not faster than one.

    Raises:
        ConfigError: no ``Trainer`` fits a module on this data; or, in training, a step asks for what only a client's
            visit prepares.
    """
    method, sites = _fitted(data), [*data.clients, data.server]
    fields = ["labelled", "labels", "unlabelled"]
    if data.server.revealed is not None:
        fields.append("revealed")
    everything = SiteData(*(torch.cat([getattr(site, field) for site in sites]) for field in fields))
    if hasattr(method, "streams"):
        streams = method.streams(everything)
    else:  # any other module
        streams = streams_of(everything, getattr(method, "views", VIEWS), method.hparams.get("batch_size", BATCH))

    def generator(purpose: str) -> torch.Generator:
        device = "cpu" if purpose.startswith("order") else data.device
        return random_streams.generator(data.hparams.run_seed, purpose, method.current_epoch, device=device)

    def batches() -> Iterator[Batch]:
        for batch in epoch(streams, data, generator):
            yield _Part({name: _Part(samples) for name, samples in batch.items()})

    return DataLoader(_Batches(batches), batch_size=None)


def test_loader(data: Any) -> DataLoader[Batch]:
    """Test views ``x`` and labels ``y`` in batches of the module's ``eval_batch``.

    Raises:
        ConfigError: no ``Trainer`` tests a module on this data.
    """
    size = getattr(_fitted(data), "eval_batch", EVAL_BATCH)

    def batches() -> Iterator[Batch]:
        for number, block in data.test_blocks(size):
            yield {"test": {"x": block(), "y": data.test_labels[number * size : (number + 1) * size]}}

    return DataLoader(_Batches(batches), batch_size=None)


def _fitted(data: Any) -> Any:
    """The module of the ``Trainer`` that uses the data."""
    module = getattr(data.trainer, "lightning_module", None)
    if module is None:
        raise ConfigError(
            f"the loaders of {type(data).__name__} ask the module which images it takes: hand both to a Trainer, "
            "trainer.fit(module, datamodule=data)"
        )
    return module


class _Part(dict[str, Any]):
    """A batch, or the samples of one of its streams; one error says that only a client's visit has the rest."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"training_step asks for {name!r}, but a batch of a plain Trainer has only {', '.join(self)}: a method "
            "that prepares its batches in local_work, such as pseudo-labels for a whole visit, gets them in a client's "
            "visit only; train it in a federation, with `fit`"
        )


class _Batches(IterableDataset[Batch]):
    """Ready-made batches, made anew at every iteration."""

    def __init__(self, make: Callable[[], Iterator[Batch]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Batch]:
        return self.make()
