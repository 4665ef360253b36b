"""What a method's hooks hand over is looked at before it is used: its type, the names and shapes of its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from benchmark.federation.fit import describe
from datamodules.common.errors import RunError
from datamodules.views.batches import LocalWork, Pass
from methods.base import Upload, Visit

Shapes = Mapping[str, Tensor]
"""Tensors by name, of which only names, shapes and types count."""


def cohorts(made: Any, num_clients: int) -> list[list[int]]:
    """What ``select_clients`` returned.

    Raises:
        RunError: it is no list of lists of client ids, or a client does not exist.
    """
    if not _is_list(made) or not all(_is_list(cohort) for cohort in made):
        inner = next((part for part in made if not _is_list(part)), None) if _is_list(made) else made
        raise RunError(
            f"it returned {describe(inner)}; return a list of cohorts, each a list of client ids: [[0, 3, 4]]"
        )
    for client in (client for cohort in made for client in cohort):
        if not isinstance(client, int) or isinstance(client, bool):
            raise RunError(f"it returned {describe(client)} for a client id; return whole numbers: [[0, 3, 4]]")
        if not 0 <= client < num_clients:
            raise RunError(f"there is no client {client}; ids run from 0 to {num_clients - 1}")
    return [list(cohort) for cohort in made]


def tensors(made: Any, like: Shapes, hook: str) -> dict[str, Tensor]:
    """Tensors by name that go into registered ones of these names.

    Args:
        made: what the hook returned.
        like: registered tensors.
        hook: its name, for the message.

    Raises:
        RunError: it is no dict of tensors, or a name or a shape is not that of a registered tensor.
    """
    if not isinstance(made, Mapping):
        raise RunError(f"{hook} returned {describe(made)}; return a dict of tensors by name")
    for name, value in made.items():
        if not isinstance(value, Tensor):
            raise RunError(f"{hook} gives {describe(value)} for {name!r}; give a tensor")
        if name not in like:
            raise RunError(f"{hook} gives a tensor {name!r}, which the method has not registered")
        if value.shape != like[name].shape:
            raise RunError(f"{hook} gives {describe(value)} for {name!r}, which has the shape {list(like[name].shape)}")
    return dict(made)


def local_work(made: Any) -> LocalWork:
    """What ``local_work`` returned.

    Raises:
        RunError: it is no list of ``Pass`` and of functions that make one.
    """
    for part in made if _is_list(made) else [made]:
        if not _is_list(made) or not (isinstance(part, Pass) or callable(part)):
            raise RunError(
                f"local_work returned {describe(part)}; return a list with a Pass for every local epoch, or functions "
                "that make one"
            )
    work: LocalWork = made
    return work


def one_pass(made: Any) -> Pass:
    """What a function in ``local_work`` returned.

    Raises:
        RunError: it is no ``Pass``.
    """
    if not isinstance(made, Pass):
        raise RunError(f"a function in local_work returned {describe(made)}; return a Pass")
    return made


def upload(made: Any, visit: Visit, shared: Shapes, live: Shapes) -> Upload | None:
    """What ``make_upload`` returned, in tensors of its own.

    Args:
        made: it.
        visit: the visit that it ends.
        shared: the server's tensors that clients upload.
        live: the module's registered tensors, which the next client writes into.

    Raises:
        RunError: it is no ``Upload``; its tensors are not the shared ones, name by name and shape by shape; its weight
            is no number from 0.
    """
    if made is None:
        return None
    if not isinstance(made, Upload):
        raise RunError(f"make_upload returned {describe(made)}; return an Upload, or None to leave the client out")
    if made.visit != visit:
        raise RunError(f"make_upload returned an Upload of another visit ({made.visit}); give it client.visit")
    tensors(made.tensors, shared, "make_upload")
    if missing := [name for name in shared if name not in made.tensors]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RunError(
            f"make_upload leaves out {missing[0]!r}{more}; upload all shared tensors, and give what is not uploaded "
            "another scope (personal, local or server)"
        )
    for name, value in made.stats.items():
        if not isinstance(value, Tensor):
            raise RunError(f"make_upload gives {describe(value)} for the statistic {name!r}; give a tensor")
    weight = _number(made.weight)
    if weight is None or weight < 0:
        raise RunError(f"make_upload gives the weight {made.weight!r}; give a number from 0")
    made.weight = weight
    places = {_memory(tensor) for tensor in live.values()}
    for name, value in made.tensors.items():
        made.tensors[name] = value.detach().clone() if _memory(value) in places else value.detach()
    for name, value in made.stats.items():
        made.stats[name] = value.detach().clone()  # it may lie in the state of an optimiser, too
    return made


def remembered(made: Any) -> dict[int, dict[str, Tensor]]:
    """What ``remember`` returned, in tensors of its own.

    Raises:
        RunError: it is no dict of dicts of tensors.
    """
    if not isinstance(made, Mapping):
        raise RunError(f"remember returned {describe(made)}; return tensors by name, by client")
    for client, own in made.items():
        values = own.values() if isinstance(own, Mapping) else [own]
        if wrong := [value for value in values if not isinstance(value, Tensor)]:
            raise RunError(f"remember gives {describe(wrong[0])} for client {client}; give tensors by name")
    return {client: {name: value.detach().clone() for name, value in own.items()} for client, own in made.items()}


def probabilities(made: Any, rows: int) -> Tensor:
    """What ``predict`` returned for so many images.

    Raises:
        RunError: it is no tensor ``[rows, classes]``.
    """
    if not isinstance(made, Tensor) or made.ndim != 2 or len(made) != rows:
        raise RunError(f"predict returned {describe(made)} for {rows} images; return probabilities [{rows}, classes]")
    return made


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, int | float) else None


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
