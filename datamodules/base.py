"""``FSSLDataModule``: a data set on the device, split over clients, with labels only where they belong."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, cast

import lightning as L
import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules.common import options
from datamodules.common.devices import finished
from datamodules.common.errors import BenchError, ConfigError, DataError, message_of
from datamodules.common.options import Deviations, Means, NotNegative, Positive, Probability, Scenario, Seed
from datamodules.common.plugins import place
from datamodules.io.sources import STORED, Arrays, ArraysError, Images, channel_moments, random_split
from datamodules.partition.draw import shares, stream_seed
from datamodules.partition.given import write_clients
from datamodules.partition.lists import Lists, Positions
from datamodules.partition.partition import Repeats, Role, Union, labelled_sets, unlabelled_sets
from datamodules.partition.roster import Roster
from datamodules.partition.sites import HIDDEN, SiteData, Sites, keep_true_labels, true_labels
from datamodules.partition.split import Rule
from datamodules.views import loaders, pipelines
from datamodules.views.augment import FeatureView, Geometry, View
from datamodules.views.batches import Batch
from datamodules.views.checks import check_arrays, check_images

BLOCK = 1024
"""Images of 32 x 32 pixels whose views are cut at once."""


class FSSLDataModule(L.LightningDataModule):
    """Base of all data sets. A subclass gives class attributes and ``read``; the rest is here.

    Where ``measured`` is true, ``num_classes``, ``image_size``, ``mean``, ``std`` and ``views`` are known once the
    data have been read; the record has what was measured on the training images.

    Args:
        data_dir: where data sets are looked for, cached and downloaded to.
        split: training and test set as published (``official``), or 80/20 drawn anew from both (``random80``).
        scenario: who holds labels: some clients (``partial_clients``), the server, or ``all_clients``.
        num_clients: clients N.
        labelled_clients: clients with labels (``partial_clients``); N gives the supervised upper bound.
        partition: ``dirichlet``, ``pairs`` (a Dirichlet draw over two clients each, see ``split.pairs``), or ``iid``.
        partition_variant: what a Dirichlet draw gives: the clients' shares of a class (``per_class``: the papers'
            released codes), or the classes' shares of a client, with equal sizes (``per_client``: FedDB's paper).
        labelled_partition: how the labelled pool is spread (``all_clients``); default: as ``partition``.
        iid_remainder: whether ``iid`` drops what does not divide, or gives the last clients one image more.
        iid_permutations: how often ``iid`` shuffles.
        iid_stratified: whether ``iid`` levels each class's counts over the clients.
        beta: concentration of the Dirichlet distribution: of each component in ``per_class``, their sum in
            ``per_client``.
        partition_seed: seed of NumPy's legacy generator that draws the partition; ``None``: the seed of the run.
        partition_stream: a name that is mixed into that seed, so that settings with other names have other partitions
            at equal seeds; without a name, settings of one data set share theirs.
        split_seed: seed of a generator of its own for each draw that spreads a pool over clients (SAGE, ProxyFL).
        min_size: least number of images of a client in ``dirichlet``, for each pool that is spread; with fewer,
            ``per_class`` draws again, and ``per_client`` fails.
        split_classes: classes that the Dirichlet draw spreads; images of later ones go to nobody. Default: all.
        shuffle: shuffle the classes before the Dirichlet cuts and the clients' images after them (FedDB, (FL)2: no).
        labelled_pick: which client becomes labelled client 0 (see ``split.pick_labelled``); or the names of the
            labelled clients, if clients are given.
        picked: how many clients that rule moves to the front; default: ``labelled_clients``, or 1 if all are labelled.
        labelled_from: keep the labelled client of the partition over this many clients.
        labelled_histogram: class counts that client 0 is forced to.
        label_fraction: labelled share of each client (``all_clients``).
        num_labels: labelled images in total (``server``, ``all_clients``). In ``all_clients`` the labelled and the
            unlabelled pool are spread independently: a client's images may have classes that its labels lack.
        labels_per_class: label the first so many images of every class a client has (``all_clients``).
        labelled_repeats: labelled images that a client has twice; see ``partition.labelled_sets``.
        labelled_pool_order: what ``num_labels`` takes of each class: a random draw, or the first in the data set.
        hidden_labels: ``revealed`` gives clients the labels of their unlabelled images beside these, ``pooled``
            counts the images as labelled: supervised upper bounds.
        unlabelled_only: no label is hidden: unlabelled images are those alone that have no label in the data set. The
            server has all others, or all clients have, or the labelled ones.
        union_mode: what is put in front of a client's unlabelled images: nothing (``none``), its ``labelled`` images
            without their labels, or others (``code_index``); see ``partition.unlabelled_sets``.
        validation: training images, drawn at random, that go to nobody.
        labelled_holdout: share of all labelled images that nobody trains on and that the test set is replaced by, to
            tune hyperparameters without a look at test images. Every site keeps one labelled image at least.
        balanced_holdout: training images, equally many of every class, that go to nobody (not to the server either) and
            that the test set is replaced by. They count among those of ``validation``, where there are some.
        partition_file: JSON file that says who has which training images, and perhaps labels (see
            ``given.read_clients``), instead of a draw.
        pipeline: name of the image pipeline, or dotted path of a function from ``pipelines.Look`` to views.
        side: side of the network's square input; default: the data set's.
        zoom: side that training images are enlarged to before the crop; default: in proportion to ``side``.
        border: black pixels around the stored images in place of enlarging them to ``side``.
        channels: channels the network sees; 1 is for grey images, which otherwise are repeated to 3.
        flip: probability of a horizontal flip.
        mean: per-channel mean instead of the data set's.
        std: per-channel standard deviation instead of the data set's.
        test_mean: mean that test images are normalised with; default: the training images'.
        test_std: their standard deviation.
        run_seed: seed of the run, which the run hands over.

    Raises:
        DataError: the data cannot be found or read, or the partition cannot be made (in ``setup``).
        ConfigError: contradictory options.
    """

    retired: ClassVar[Mapping[str, Any]] = {"labelled_min_per_class": None}  # in older records; see ``FedMethod``
    measured: ClassVar[bool] = False
    num_classes: int
    image_size: int = 32
    zoom_size: ClassVar[int | None] = None  # before windows are cut; default: a quarter more than image_size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    feature_dim: int | None = None  # length of the feature vectors in place of images, once they have been read
    hparams: Any
    """The constructor's arguments, by attribute or by name."""
    provenance: Mapping[str, Any] = MappingProxyType({})  # what a record says of the data beside digests

    # From ``setup`` on:
    knows_all: bool
    """Whether the data set has a label for every training image; else no metric compares with hidden labels."""
    client_names: tuple[str, ...]
    """The clients' names; their numbers, where nobody names them."""
    train_images: Tensor
    """All training images as read, in the form of ``Arrays``; ``take`` gives views of them."""
    train_labels: Tensor
    """The training labels that a site has, int64 ``[num_images]``, and ``HIDDEN`` for the others. Metrics and records
    take all of them from ``datamodules.partition.sites.true_labels``."""
    test_images: Tensor
    """The test images as read, in the form of ``Arrays``."""
    test_labels: Tensor
    """The test labels, int64."""
    clients: Sites
    """What each client holds. ``clients[k] = site`` hands one something else until ``place`` or ``overwrite``."""

    def __init__(
        self,
        data_dir: str = "data",
        split: Literal["official", "random80"] = "official",
        scenario: Scenario = "partial_clients",
        num_clients: Positive = 10,
        labelled_clients: int = 1,
        partition: Literal["dirichlet", "pairs", "iid"] = "dirichlet",
        partition_variant: Literal["per_class", "per_client"] = "per_class",
        labelled_partition: Literal["dirichlet", "pairs", "iid"] | None = None,
        iid_remainder: Literal["drop", "last"] = "drop",
        iid_permutations: Positive = 1,
        iid_stratified: bool = False,
        beta: Annotated[float, Field(gt=0, lt=1e300)] = 0.8,
        partition_seed: Seed | None = 1337,
        partition_stream: str | None = None,
        split_seed: Seed | None = None,
        min_size: NotNegative = 10,
        split_classes: Positive | None = None,
        shuffle: bool = True,
        labelled_pick: Rule | list[str | int] = "all_classes_closest",
        picked: Positive | None = None,
        labelled_from: Positive | None = None,
        labelled_histogram: list[int] | None = None,
        label_fraction: Annotated[float, Field(gt=0, le=1)] | None = None,
        num_labels: int | None = None,
        labels_per_class: Positive | None = None,
        labelled_repeats: Repeats = "none",
        labelled_pool_order: Literal["shuffled", "dataset"] = "shuffled",
        hidden_labels: Literal["hidden", "revealed", "pooled"] = "hidden",
        unlabelled_only: bool = False,
        union_mode: Union = "none",
        validation: NotNegative = 0,
        labelled_holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        balanced_holdout: NotNegative = 0,
        partition_file: str | None = None,
        pipeline: str = "zoom_crop_flip",
        side: Positive | None = None,
        zoom: Positive | None = None,
        border: NotNegative = 0,
        channels: Literal[1, 3] = 3,
        flip: Probability = 0.5,
        mean: Means | None = None,
        std: Deviations | None = None,
        test_mean: Means | None = None,
        test_std: Deviations | None = None,
        run_seed: Seed = 1337,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        options.check_arguments(type(self), self.hparams)
        options.check_together(self.hparams)
        self.partition_seed = run_seed if partition_seed is None else partition_seed
        self.image_size = side or self.image_size
        if not self.measured:
            self.views = self._views()
        self._ready = False
        self.device, self.dtype, self.processes = torch.device("cpu"), torch.float32, 1

    def read(self) -> Arrays:
        """The data set's images and labels."""
        raise NotImplementedError

    def digests(self) -> Mapping[str, str]:
        """SHA-256 of files that the options name and a user may change, as ``Arrays.sha256`` names them.

        A complete run of other files is not taken for this one.

        Raises:
            DataError: one is missing.
            OSError: one cannot be read.
        """
        return {}

    def about(self) -> str:
        """In words: training images by class, without a label and of nobody, test images, and what was not read."""
        self._require_setup()
        labels, partition = true_labels(self).cpu(), self.partition
        counts = torch.bincount(labels[labels != HIDDEN], minlength=self.num_classes).tolist()
        by_class = [f"{name} {count}" for name, count in zip(self.class_names, counts, strict=True)]
        if len(by_class) > 12:
            by_class[12:] = [f"... ({len(by_class)} classes)"]
        lines = []
        if not self.knows_all:
            by_class.append(f"{int((labels == HIDDEN).sum())} without a label")
            lines.append("unknown, since they need every label: accuracy at clients, and which pseudo-labels are right")
        sites = (partition.labelled, partition.unlabelled, [partition.server])
        held = np.unique(np.concatenate([Lists.of(parts).flat for parts in sites]))
        given = int((self.train_labels != HIDDEN).sum())
        if given < sum(counts):
            lines.append(f"labels that sites have: {given}; the other {sum(counts) - given} are hidden from them")
        if len(held) < len(labels):
            lines.append(f"training images that belong to nobody: {len(labels) - len(held)}")
        summary = f"training images by class: {', '.join(by_class)}; {len(self.test_labels)} test images"
        return "\n".join((summary, *lines, *self.notes))

    def prepare_data(self) -> None:
        """Download and cache, once per machine."""
        self._checked_arrays()

    def setup(self, stage: str | None = None) -> None:
        """Read the data and draw the partition, or read it; a second call does nothing."""
        if self._ready:
            return
        arrays = self._checked_arrays()
        check_arrays(self, arrays)
        self._store(**{field: torch.from_numpy(getattr(arrays, field)) for field in STORED})
        self.notes, self.knows_all = arrays.notes, bool((arrays.train_labels != HIDDEN).all())
        seed = stream_seed(self.partition_seed, self.hparams.partition_stream)
        division = shares(self.hparams, arrays.train_labels, seed, arrays.train_clients)
        self.partition, self.client_names = division.partition, division.names
        self.class_names, self.sha256 = arrays.class_names, arrays.sha256 | division.sha256
        if len(division.tested):
            self.test_images, self.test_labels = self.train_images[division.tested], true_labels(self)[division.tested]
        self._place()
        self._ready = True

    def place(self, device: torch.device, dtype: torch.dtype = torch.float32, processes: int = 1) -> None:
        """Move the data to ``device``, where ``processes`` lay them out and cut batches; ``dtype``: that of views."""
        self.device, self.dtype, self.processes = device, dtype, processes
        if self._ready:
            self._place()

    def overwrite(self, **tensors: Tensor) -> None:
        """Store other ``train_images``, ``train_labels`` (all), ``test_images`` or ``test_labels``, for checks.

        They have the shape and dtype of those stored. The partition stays; the labels that sites see are the new ones.
        """
        self._require_setup()
        self._store(**{"train_labels": true_labels(self), **tensors})
        self._place()

    def client(self, k: int) -> SiteData:
        """What client ``k`` holds, counted from 0; a ``ConfigError`` if there is none."""
        if not 0 <= k < self.num_clients:
            raise ConfigError(f"there is no client {k}: choose 0 to {self.num_clients - 1}; the server is data.server")
        return self.clients[k]

    @property
    def server(self) -> SiteData:
        """What the server holds (labels only in scenario ``server``)."""
        self._require_setup()
        return self._server

    @property
    def num_clients(self) -> int:
        """Registered clients."""
        self._require_setup()
        return self.partition.num_clients

    @property
    def num_images(self) -> int:
        """Training images that positions count, whoever holds them."""
        return len(self.train_images)

    def class_counts(self, role: Role) -> Positions:
        """Each client's images per class, int64 ``[clients, classes]``; for people and records, not for training."""
        return self.partition.histogram(true_labels(self).cpu(), self.num_classes, role)

    def export(self, path: str) -> None:
        """Write who has which images and labels, for ``partition_file``; see ``given.write_clients``.

        Raises:
            ConfigError: images are held out, which the file cannot say; or see ``write_clients``.
        """
        if held_out := [name for name in options.HOLDOUTS if self.hparams[name]]:
            raise ConfigError(f"a partition file cannot say which images are held out: leave out data.{held_out[0]}")
        write_clients(path, self.client_names, self.partition)

    def roster(self, seed: int, participants: int | None = None, rule: str = "uniform") -> Roster:
        """The schedule of participants over this partition (see ``Roster``)."""
        return Roster(self.num_clients, self.clients.labelled(), seed, participants, rule)

    @property
    def block(self) -> int:
        """Images whose views are cut at once: ``BLOCK``, or fewer that have as many pixels together."""
        return max(1, min(BLOCK, BLOCK * 32**2 // self.image_size**2))

    def take(self, view: str, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Views ``[B, C, H, W]`` (or feature vectors ``[B, d]``) of the training images at ``index``, cut freshly."""
        self._require_setup()
        if view not in self.views:
            raise ConfigError(
                f"the pipeline {self.hparams.pipeline!r} has no view {view!r}, only {', '.join(self.views)}; "
                "choose another data.pipeline"
            )
        geometry = self.views[view].geometry
        if geometry not in self._prepared:
            self._prepared[geometry] = geometry.prepare(self.train_images)
            finished(self.device)
        return self._as_input(self.views[view](self._prepared[geometry], index, generator))

    def test_blocks(self, size: int) -> Iterator[tuple[int, Callable[[], Tensor]]]:
        """Test images in order, in numbered blocks of up to ``size``; ``block()`` gives the views ``[B, C, H, W]``."""
        view, prepared = self._test_view(), self._test_prepared

        def block(index: Tensor) -> Tensor:
            return self._as_input(view(prepared, index, None))

        for number, index in enumerate(torch.split(torch.arange(len(prepared), device=self.device), size)):
            yield number, partial(block, index)

    def see(self, images: Tensor) -> Tensor:
        """Views ``[B, C, H, W]`` of anybody's images, uint8 ``[B, h, w, 1 or 3]``, as test images are seen.

        Feature vectors ``[B, d]`` of a data set that has such stay as they are.
        """
        view, images = self._test_view(), images.to(self.device)
        check_images(self, "given", images)
        prepared = view.geometry.prepare(images[:, None] if self.feature_dim and images.ndim == 2 else images)
        return self._as_input(view(prepared, torch.arange(len(prepared), device=self.device), None))

    def pool(self) -> Tensor:
        """Positions of the whole unlabelled pool in stored order, leftovers included, int64."""
        return torch.tensor(self.partition.pool, device=self.device)

    def train_dataloader(self) -> DataLoader[Batch]:
        """All clients' and the server's data at once, for a plain ``Trainer``; see ``loaders.train_loader``."""
        return loaders.train_loader(self)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Test views and labels in batches, for a plain ``Trainer``; see ``loaders.test_loader``."""
        return loaders.test_loader(self)

    def _checked_arrays(self) -> Arrays:
        """What ``read`` gives, checked, and split anew if so asked."""
        reader = f"{type(self).__name__}.read"
        try:
            arrays = self.read()
        except Exception as error:
            if isinstance(error, BenchError) and not isinstance(error, ArraysError):
                raise
            raise DataError(f"{reader}: {message_of(error)} ({place(error)})") from error
        if not isinstance(arrays, Arrays):
            raise DataError(f"{reader} returned a {type(arrays).__name__}; return datamodules.io.sources.Arrays")
        if self.hparams.split == "random80":
            arrays = random_split(arrays, self.partition_seed)
        if self.measured:
            self._measure(arrays)
        if arrays.train_images.ndim == 3:
            self.feature_dim = arrays.train_images.shape[2]
        if len(arrays.class_names) != self.num_classes:
            raise DataError(f"{reader} gives other classes than num_classes={self.num_classes}: {arrays.class_names}")
        return arrays

    def _measure(self, arrays: Arrays) -> None:
        """Take what the class does not say from the training images, and note it for the record."""
        shape = arrays.train_images.shape[1:]
        self.num_classes = len(arrays.class_names)
        self.mean, self.std = (), ()
        if len(shape) == 3:  # images, not feature vectors
            self.image_size = self.hparams.side or max(shape[:2]) + 2 * self.hparams.border
            self.mean, self.std = channel_moments(cast(Images, arrays.train_images))
        self.views = self._views()
        self.provenance = {
            "measured": {
                "class_names": list(arrays.class_names),
                "train_images": len(arrays.train_images),
                "image_shape": list(shape),
                "mean": list(self.mean),
                "std": list(self.std),
            }
        }

    def _views(self) -> pipelines.Views:
        """The pipeline's views with the data set's size and constants, or those given in their place."""
        h = self.hparams
        mean, std = tuple(h.mean or self.mean), tuple(h.std or self.std)
        look = pipelines.Look(self.image_size, self._zoom(), h.flip, mean, std, border=h.border)
        return pipelines.views(h.pipeline, look)

    def _zoom(self) -> int:
        """Side to enlarge to: ``zoom``, or as far above the network's input as the data set's is above its own."""
        cls = type(self)
        zoom = cls.zoom_size or cls.image_size * 5 / 4
        return self.hparams.zoom or round(zoom * self.image_size / cls.image_size)

    def _store(self, train_labels: Tensor, **others: Tensor) -> None:
        keep_true_labels(self, train_labels)
        for name, tensor in others.items():
            setattr(self, name, tensor)

    def _require_setup(self) -> None:
        if not self._ready:
            raise ConfigError(f"{type(self).__name__} knows its clients after setup(): call that first")

    def _test_view(self) -> View | FeatureView:
        """How test images are seen: as training images in the view of that name, but for constants of their own."""
        view, h = self.views["test"], self.hparams
        if isinstance(view, FeatureView) or not (h.test_mean or h.test_std):
            return view
        return replace(view, mean=tuple(h.test_mean or view.mean), std=tuple(h.test_std or view.std))

    def _as_input(self, views: Tensor) -> Tensor:
        """Views with the channels and the dtype that the network takes."""
        shown = views[:, : self.hparams.channels] if views.ndim == 4 else views
        return shown.to(self.dtype)

    def _place(self) -> None:
        """Move the data to the device, and give every site its positions and the labels that it may see."""
        device, partition = self.device, self.partition
        labels = true_labels(self).to(device)
        keep_true_labels(self, labels)
        self.train_images = self.train_images.to(device)
        self._test_prepared = self.views["test"].geometry.prepare(self.test_images.to(device))
        self._prepared: dict[Geometry | FeatureView, Tensor] = {}
        unlabelled = unlabelled_sets(partition, self.hparams.union_mode)
        labelled = labelled_sets(partition, labels.cpu(), self.hparams.labelled_repeats)
        if self.hparams.hidden_labels == "pooled":
            labelled = Lists.of([np.concatenate(pair) for pair in zip(labelled, unlabelled, strict=True)])
            unlabelled = unlabelled.kept(np.zeros(len(unlabelled.flat), dtype=bool))
        reveals = self.hparams.hidden_labels == "revealed"
        revealed = unlabelled.flat if reveals else unlabelled.flat[:0]
        index = torch.tensor(np.concatenate([labelled.flat, partition.server, revealed]), device=device)
        self.train_labels = torch.full_like(labels, HIDDEN).index_copy_(0, index, labels[index])
        self.clients = Sites(labelled, unlabelled, self.train_labels, reveals)
        server = torch.tensor(partition.server, device=device)
        self._server = SiteData(server, self.train_labels[server], server[:0], server[:0] if reveals else None)


__all__ = ["FSSLDataModule", "Scenario", "SiteData"]
