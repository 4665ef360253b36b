"""What a record says about the data that a run had."""

from collections.abc import Mapping
from typing import Any

import torch

from datamodules.base import FSSLDataModule

MOST_LISTED = 10_000


def facts(data: FSSLDataModule) -> Mapping[str, Any]:
    """What a record says about the data: hashes of what was read and of the partition, class counts, the number of
    images that are tested on, how many partitions were not taken (with ``labelled_min_per_class``), and what the data
    set adds (``provenance``). Of more than ``MOST_LISTED`` clients there are no class counts: a record is written every
    few seconds, and the partition can be drawn again.
    """
    known: dict[str, Any] = {"partition_hash": data.partition.hash, "data_sha256": data.sha256}
    if data.num_clients <= MOST_LISTED:
        known["labelled_histogram"] = [row for row in data.class_counts("labelled").tolist() if any(row)]
        known["class_counts"] = class_counts(data)
    known["test_images"] = len(data.test_labels)
    if data.hparams.labelled_min_per_class:
        known["partition_redraws"] = data.partition.redraws
    return {**known, **data.provenance}


def class_counts(data: FSSLDataModule) -> dict[str, list[str]]:
    """Images per class, a line for each client: ``labelled`` and ``unlabelled``; ``server``: a line, or none.

    A line is one text, since a list would take as many lines of the record as there are classes.
    """
    server = torch.bincount(data.server.labels.cpu(), minlength=data.num_classes).tolist()
    counts = {
        "labelled": data.class_counts("labelled").tolist(),
        "unlabelled": data.class_counts("unlabelled").tolist(),
        "server": [server] if any(server) else [],
    }
    return {role: [" ".join(map(str, row)) for row in rows] for role, rows in counts.items()}
