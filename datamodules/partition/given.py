"""Clients that the data set or a user's file names: who has which training images, and perhaps which of them labels."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
class Given:
    """Clients with names.

    Args:
        names: the clients' names.
        owners: client of every training image, int64 [N]; ``NOBODY``'s images have none.
        labelled: by client, the positions that have labels or how many have; ``None``: the scenario chooses.
        digest: SHA-256 of the partition file that says this; images of nobody stay so. ``None``: the data set says it.
    """

    names: tuple[str, ...]
    owners: Positions
    labelled: Sequence[int | Positions] | None = None
    digest: str | None = None

    @classmethod
    def of(cls, clients: NDArray[Any]) -> "Given":
        """Those of ``Arrays.train_clients``, in the order of their names."""
        own = clients != "" if clients.dtype.kind == "U" else clients >= 0
        owners = np.full(len(clients), NOBODY, dtype=np.int64)
        names, owners[own] = np.unique(clients[own], return_inverse=True)
        return cls(tuple(map(str, names.tolist())), owners)

    def partition(self, labels: Positions, seed: int) -> Partition:
        """The partition that ``labelled`` says; numbers of labelled images are drawn from each client's.

        Raises:
            DataError: a client does not have them, or nobody knows the label of one.
        """
        rng, with_label, without = RandomState(seed), [], []
        for client, (name, own) in enumerate(zip(self.names, self.labelled or (), strict=True)):
            part = np.flatnonzero(self.owners == client)
            known = part[labels[part] != HIDDEN]
            most = len(known)
            chosen = rng.permutation(known)[:own] if isinstance(own, int) else own
            if len(wrong := np.setdiff1d(chosen, known)) or (isinstance(own, int) and own > most):
                what = f"position {wrong[0]}" if len(wrong) else f"{own} images"
                raise DataError(f"client {name!r} is to have labels of {what}; it has {most} images with a label")
            with_label.append(chosen)
            without.append(np.setdiff1d(part, chosen))
        return Partition(with_label, without, NOTHING, np.sort(np.concatenate(without)))


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
    held = zip(names, partition.labelled, partition.unlabelled, strict=True)
    clients = {name: {"images": [*own.tolist(), *rest.tolist()], "labelled": own.tolist()} for name, own, rest in held}
    write_atomic(Path(path), json.dumps(clients) + "\n")


def read_clients(file: str, num_samples: int) -> Given:
    """Read a partition file: ``{client: [positions]}``, or what ``write_clients`` writes.

    Raises:
        DataError: it cannot be read or is no such file; a position is no training image or has two clients.
    """
    try:
        text = Path(file).read_bytes()
        content = json.loads(text, object_pairs_hook=_once)
        return replace(_given(content, num_samples), digest=hashlib.sha256(text).hexdigest())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot use the partition file {file}: {error}; {_FORM}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which each name stands once."""
    if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise DataError(f"{twice[0]!r} occurs twice")
    return dict(pairs)


def _given(content: Any, num_samples: int) -> Given:
    if not isinstance(content, Mapping) or not content:
        raise DataError("it has no clients")
    owners = np.full(num_samples, NOBODY, dtype=np.int64)
    labelled: list[int | Positions | None] = []
    for client, (name, one) in enumerate(content.items()):
        one = one if isinstance(one, Mapping) else {"images": one}
        if unknown := sorted(one.keys() - {"images", "labelled"}):
            raise DataError(f"client {name!r} has {unknown[0]!r}")
        part, own = _places(one.get("images"), f"images of client {name!r}", num_samples), one.get("labelled")
        if len(taken := part[owners[part] != NOBODY]):
            raise DataError(f"clients {list(content)[owners[taken[0]]]!r} and {name!r} both have position {taken[0]}")
        owners[part] = client
        a_number = own is None or (type(own) is int and own >= 0)
        labelled.append(own if a_number else _places(own, f"labelled images of client {name!r}", num_samples))
    said = any(own is not None for own in labelled)
    chosen = [NOTHING if own is None else own for own in labelled]
    if said and not any(own if isinstance(own, int) else len(own) for own in chosen):
        raise DataError("it gives nobody a label")
    return Given(tuple(content), owners, chosen if said else None)


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
