"""Check that a method reads neither hidden labels nor test images: with others in their place, it trains the same."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmark.contract.attributes import common_owners, restore
from benchmark.contract.federations import (
    Method,
    Row,
    class_of,
    contract_data,
    contract_federation,
    different,
    different_rows,
    loss_of_tests,
    reference,
    require,
    require_equal,
    rounds_until,
)
from datamodules.base import FSSLDataModule, SiteData
from datamodules.partition.sites import true_labels


def check_hidden_labels_and_test_images_are_not_read(method: Method) -> None:
    """With wrong hidden labels, noise for test images and wrong test labels, training is the same; scores differ."""
    assert bool(unlabelled(contract_data(method)).any())
    rows, notes = with_other(method, with_other_hidden_labels, with_other_test_images)
    if notes:
        require_equal(
            method,
            "with other hidden labels it trains another model; the labels of unlabelled images are for metrics only",
            with_other(method, with_other_hidden_labels)[1],
        )
    require_equal(
        method,
        "with other test images it trains another model. Take statistics from training images (data.take), and let "
        "predict change nothing",
        notes,
    )
    known = reference(method).rows[:2]
    require(
        method,
        all(row["acc"] != other["acc"] for row, other in zip(rows, known, strict=True)),
        "with noise for test images and wrong test labels its accuracy is the same: predict does not look at the "
        "images that it is given",
    )


def with_other(method: Method, *replaced: Callable[[FSSLDataModule], FSSLDataModule]) -> tuple[list[Row], list[str]]:
    """Rows of two rounds on other data, and how they and the server differ from the reference run, in words.

    Class attributes and globals are as in a new process. Columns that hidden labels and test images may change are not
    compared.
    """
    data, run = contract_data(method), reference(method)
    restore(run.untouched, common_owners(class_of(method)))
    with others_are_wrong(data):
        for replace_in in replaced:
            replace_in(data)
        federation = contract_federation(method, data=data)
        federation.become_server()
        loss_of_tests(federation)  # as in the reference run: it predicts, too
        rows = rounds_until(federation, 2)
    but = ["pseudo/", "acc_clients", "acc_worst_clients"]
    if with_other_test_images in replaced:
        but += [name for name in run.averaged if name != "rounds"]
    return rows, different_rows(rows, run.rows[:2], but) + different(federation.server, run.servers[2])


def with_other_unlabelled_images(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with noise for all training images without a label."""
    images, hidden = data.train_images, unlabelled(data)
    data.overwrite(train_images=torch.where(hidden.view(-1, *[1] * (images.ndim - 1)), noise(images), images))
    return data


def with_other_hidden_labels(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with a wrong label for every training image without one."""
    labels, hidden, classes = true_labels(data), unlabelled(data), data.num_classes
    by = torch.arange(len(labels)) % (classes - 1) + 1
    data.overwrite(train_labels=torch.where(hidden, (labels + by) % classes, labels))
    return data


def with_other_test_images(data: FSSLDataModule) -> FSSLDataModule:
    """The same data module, now with noise for test images and wrong test labels."""
    data.overwrite(test_images=noise(data.test_images), test_labels=(data.test_labels + 1) % data.num_classes)
    return data


def noise(images: Tensor) -> Tensor:
    """Noise in the form of these images or feature vectors."""
    generator = torch.Generator().manual_seed(0)
    if images.is_floating_point():
        return torch.randn(images.shape, generator=generator, dtype=images.dtype)
    return torch.randint(256, images.shape, generator=generator, dtype=images.dtype)


def unlabelled(data: FSSLDataModule) -> Tensor:
    """Which training images no site holds with a label, bool ``[n]``."""
    hidden = torch.ones(data.num_images, dtype=torch.bool)
    for site in [*data.clients, data.server]:
        hidden[site.labelled] = False
    return hidden


@contextmanager
def others_are_wrong(data: FSSLDataModule) -> Iterator[None]:
    """Within this context, labels of other data modules, of sites, and copies of this one's labels are wrong.

    A method that looks hidden labels up anywhere in the process finds none but this data module's own.
    """
    gc.collect()
    true = true_labels(data)
    own = {id(labels) for labels in labels_in(data)} | {id(labels) for labels in labels_in(data.server)}
    known = [one for one in gc.get_objects() if issubclass(type(one), (FSSLDataModule, SiteData, Tensor))]
    held = [labels for one in known if not isinstance(one, Tensor) for labels in labels_in(one)]
    held += [one for one in known if isinstance(one, Tensor) and is_copy(one, true)]
    found = {id(labels): labels for labels in held if id(labels) not in own}
    del true, known, held
    classes = {key: max(data.num_classes, int(max(labels.tolist(), default=0)) + 1) for key, labels in found.items()}

    def turn(by: int) -> None:  # and back: a copy of the right ones could be found, too
        for key, labels in found.items():
            known = labels >= 0
            labels[known] = (labels[known] + by) % classes[key]

    turn(1)
    try:
        yield
    finally:
        turn(-1)


def is_copy(one: Tensor, labels: Tensor) -> bool:
    """Whether a tensor, of whatever use, has these labels."""
    return one.dtype == labels.dtype and one.shape == labels.shape and one.device == labels.device and one.equal(labels)


def labels_in(one: FSSLDataModule | SiteData) -> list[Tensor]:
    """The labels that a data module or a site has."""
    if isinstance(one, SiteData):
        labels = [one.labels, one.revealed, one.validation_labels]
    else:
        labels = [true_labels(one), one.train_labels, one.test_labels] if hasattr(one, "clients") else []
    return [found for found in labels if found is not None]
