"""Clients that the data set or a user's file names: who has which training images, and perhaps which of them labels."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from datamodules.common.errors import ConfigError, DataError
from datamodules.common.files import write_atomic
from datamodules.partition.lists import NOTHING, Positions
from datamodules.partition.partition import Partition
from datamodules.partition.sites import HIDDEN

NOBODY = -1
_FORM = (
    'give JSON, {"client": [positions of training images], ...}, where a client may also be {"images": [...], '
    '"labelled": [positions] or a number of them}; docs/data.md shows how to write it from other files'
)


@dataclass(frozen=True)
class NamedClients:
    """Clients with names, and their training images.

    Args:
        names: the clients' names.
        owners: client of every training image, int64 [N]; ``NOBODY``'s images have none.
        labelled: by client, the positions that have labels or how many have; ``None``: the scenario chooses.
        sha256: that of the partition file that says this, by its name; images of nobody stay so. Empty: the data set
            says it.
    """

    names: tuple[str, ...]
    owners: Positions
    labelled: Sequence[int | Positions] | None = None
    sha256: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, clients: NDArray[Any]) -> "NamedClients":
        """Those of ``Arrays.train_clients``, in the order of their names."""
        has_owner = clients != "" if clients.dtype.kind == "U" else clients >= 0
        owners = np.full(len(clients), NOBODY, dtype=np.int64)
        names, owners[has_owner] = np.unique(clients[has_owner], return_inverse=True)
        return cls(tuple(map(str, names.tolist())), owners)

    def partition(self, labels: Positions, seed: int) -> Partition:
        """The partition that ``labelled`` says; numbers of labelled images are drawn from each client's.

        Raises:
            DataError: a client does not have them, or nobody knows the label of one.
        """
        rng, labelled, unlabelled = RandomState(seed), [], []
        for client, (name, wanted) in enumerate(zip(self.names, self.labelled or (), strict=True)):
            images = np.flatnonzero(self.owners == client)
            known = images[labels[images] != HIDDEN]
            chosen = rng.permutation(known)[:wanted] if isinstance(wanted, int) else wanted
            wrong = np.setdiff1d(chosen, known)
            if len(wrong) or (isinstance(wanted, int) and wanted > len(known)):
                what = f"labels of position {wrong[0]}" if len(wrong) else f"labels of {wanted} images"
                raise DataError(f"client {name!r} is to have {what}; it has {len(known)} images with a label")
            labelled.append(chosen)
            unlabelled.append(np.setdiff1d(images, chosen))
        return Partition(labelled, unlabelled, NOTHING, np.sort(np.concatenate(unlabelled)))


def write_clients(path: str, names: Sequence[str], partition: Partition) -> None:
    """Write a partition file: the images of every client, and those of them that have labels.

    Raises:
        ConfigError: the server holds labelled images, which no client has.
        OSError: it cannot be written.
    """
    if len(partition.server):
        raise ConfigError(
            "a partition file says what clients hold, and here the server holds labelled images: give the options of "
            "the partition and its seed again instead"
        )
    clients = {}
    for name, labelled, unlabelled in zip(names, partition.labelled, partition.unlabelled, strict=True):
        clients[name] = {"images": [*labelled.tolist(), *unlabelled.tolist()], "labelled": labelled.tolist()}
    write_atomic(Path(path), json.dumps(clients) + "\n")


def read_clients(file: str, num_samples: int) -> NamedClients:
    """Read a partition file: ``{client: [positions]}``, or what ``write_clients`` writes.

    Raises:
        DataError: it cannot be read or is no such file; a position is no training image or has two clients.
    """
    try:
        text = Path(file).read_bytes()
        content = json.loads(text, object_pairs_hook=_with_unique_names)
        return replace(_parsed(content, num_samples), sha256={Path(file).name: hashlib.sha256(text).hexdigest()})
    except (OSError, ValueError) as error:
        raise DataError(f"cannot use the partition file {file}: {error}; {_FORM}") from error


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which each name stands once."""
    if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise DataError(f"{twice[0]!r} occurs twice")
    return dict(pairs)


def _parsed(content: Any, num_samples: int) -> NamedClients:
    if not isinstance(content, Mapping) or not content:
        raise DataError("it has no clients")
    owners = np.full(num_samples, NOBODY, dtype=np.int64)
    labelled: list[int | Positions | None] = []
    for client, (name, entry) in enumerate(content.items()):
        fields = entry if isinstance(entry, Mapping) else {"images": entry}
        if unknown := sorted(fields.keys() - {"images", "labelled"}):
            raise DataError(f"client {name!r} has {unknown[0]!r}")
        images = _places(fields.get("images"), f"images of client {name!r}", num_samples)
        if len(taken := images[owners[images] != NOBODY]):
            raise DataError(f"clients {list(content)[owners[taken[0]]]!r} and {name!r} both have position {taken[0]}")
        owners[images] = client
        wanted = fields.get("labelled")
        no_list = wanted is None or (type(wanted) is int and wanted >= 0)
        labelled.append(wanted if no_list else _places(wanted, f"labelled images of client {name!r}", num_samples))
    if all(wanted is None for wanted in labelled):
        return NamedClients(tuple(content), owners)
    chosen = [NOTHING if wanted is None else wanted for wanted in labelled]
    if not any(wanted if isinstance(wanted, int) else len(wanted) for wanted in chosen):
        raise DataError("it gives nobody a label")
    return NamedClients(tuple(content), owners, chosen)


def _places(listed: Any, what: str, num_samples: int) -> Positions:
    """Positions of training images, each once."""
    if not isinstance(listed, list) or not all(type(place) is int for place in listed):
        raise DataError(f"the {what} must be a list of whole numbers")
    if outside := [place for place in listed if not 0 <= place < num_samples]:
        raise DataError(
            f"the {what} have position {outside[0]}; there are {num_samples} training images, "
            "after test images have been held out if the data have none"
        )
    if len(set(listed)) < len(listed):
        raise DataError(f"the {what} have position {Counter(listed).most_common(1)[0][0]} twice")
    return np.array(listed, dtype=np.int64)
