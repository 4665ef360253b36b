"""What a record says about the data of its run."""

from collections.abc import Mapping
from typing import Any

import torch

from datamodules.base import FSSLDataModule

MOST_LISTED = 10_000


def data_provenance(data: FSSLDataModule, most_listed: int = MOST_LISTED) -> Mapping[str, Any]:
    """What a record says about the data.

    These are hashes of the files and of the partition, class counts, the number of test images, how many draws of the
    partition were rejected (with ``labelled_min_per_class``), and what the data set adds itself (``provenance``). With
    more than ``most_listed`` clients there are no class counts: a record is written every few seconds, and the
    partition can be drawn again.
    """
    known: dict[str, Any] = {"partition_hash": data.partition.hash, "data_sha256": data.sha256}
    if data.num_clients <= most_listed:
        known["labelled_histogram"] = [row for row in data.class_counts("labelled").tolist() if any(row)]
        known["class_counts"] = class_counts(data)
    known["test_images"] = len(data.test_labels)
    if data.hparams.labelled_min_per_class:
        known["partition_redraws"] = data.partition.redraws
    return {**known, **data.provenance}


def class_counts(data: FSSLDataModule) -> dict[str, list[str]]:
    """Images per class: ``labelled`` and ``unlabelled`` with an entry for each client, ``server`` with one or none.

    An entry is one string: in an indented file, a list would take a line for each class.
    """
    server = torch.bincount(data.server.labels.cpu(), minlength=data.num_classes).tolist()
    counts = {
        "labelled": data.class_counts("labelled").tolist(),
        "unlabelled": data.class_counts("unlabelled").tolist(),
        "server": [server] if any(server) else [],
    }
    return {role: [" ".join(map(str, row)) for row in rows] for role, rows in counts.items()}
