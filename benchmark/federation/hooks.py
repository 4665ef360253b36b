"""Checks of what a method's hooks return: its type, and the names and shapes of its tensors."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from datamodules.common.errors import RunError
from datamodules.views.batches import LocalWork, Pass
from methods.base import FedMethod, Upload, Visit

Shapes = Mapping[str, Tensor]
"""Tensors by name; only their names, shapes and types matter."""


def cohorts(made: Any, num_clients: int) -> list[list[int]]:
    """The cohorts that ``select_clients`` returned.

    Raises:
        RunError: it is not a list of lists of client ids, or a client does not exist.
    """
    wanted = "return a list of cohorts, each a list of client ids: [[0, 3, 4]]"
    if not _is_list(made):
        raise RunError(f"it returned {describe(made)}; {wanted}")
    for cohort in made:
        if not _is_list(cohort):
            raise RunError(f"it returned {describe(cohort)} for a cohort; {wanted}")
    for client in (client for cohort in made for client in cohort):
        if not _is_whole(client):
            raise RunError(f"it returned {describe(client)} for a client id; return whole numbers: [[0, 3, 4]]")
        if not 0 <= client < num_clients:
            raise RunError(f"there is no client {client}; ids run from 0 to {num_clients - 1}")
    return [list(cohort) for cohort in made]


def tensors(made: Any, like: Shapes, hook: str) -> dict[str, Tensor]:
    """Tensors by name, to be copied into the registered tensors of those names.

    Args:
        made: what the hook returned.
        like: registered tensors.
        hook: its name, for the message.

    Raises:
        RunError: it is not a dict of tensors with data, or a name or shape is not that of a registered tensor.
    """
    if not isinstance(made, Mapping):
        raise RunError(f"{hook} returned {describe(made)}; return a dict of tensors by name")
    for name, value in made.items():
        _require_data(value, f"{hook} gives {{}} for {name!r}")
        if name not in like:
            raise RunError(f"{hook} gives a tensor {name!r}, which the method has not registered")
        if value.shape != like[name].shape:
            raise RunError(f"{hook} gives {describe(value)} for {name!r}, which has the shape {list(like[name].shape)}")
    return dict(made)


def local_work(made: Any) -> LocalWork:
    """What ``local_work`` returned.

    Raises:
        RunError: it is not a list of ``Pass`` and of functions that make one.
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
        RunError: it is not a ``Pass``.
    """
    if not isinstance(made, Pass):
        raise RunError(f"a function in local_work returned {describe(made)}; return a Pass")
    return made


def step_outputs(made: Any) -> dict[str, Any]:
    """What ``training_step`` returned, as a dict with a scalar ``loss``; empty for ``None``, which takes no step.

    Raises:
        RunError: it is something else.
    """
    if made is None:
        return {}
    outputs = dict(made) if isinstance(made, Mapping) else {"loss": made}
    loss = outputs.get("loss")
    if not isinstance(loss, Tensor) or loss.ndim:
        raise RunError(
            f"training_step returned {describe(made)}; with automatic optimisation it returns a scalar loss, a "
            "dict with a scalar 'loss', or None"
        )
    if not loss.requires_grad:  # backward would say so, too, but not whose loss it is
        raise RunError(
            "training_step returned a loss that does not require grad: is it detached, or computed under "
            "torch.no_grad()? Return None for a batch without a loss"
        )
    return outputs


def manual_step_outputs(made: Any) -> dict[str, Any]:
    """What ``training_step`` returned with manual optimisation, as a dict: a tensor is the ``loss``.

    Raises:
        RunError: it is not a tensor, a dict or ``None``.
    """
    if not (made is None or isinstance(made, Tensor | Mapping)):
        raise RunError(
            f"training_step returned {describe(made)}; with manual optimisation it returns a tensor, a dict, or None"
        )
    return {} if made is None else dict(made) if isinstance(made, Mapping) else {"loss": made}


def upload(made: Any, visit: Visit, shared: Shapes, live: Shapes) -> Upload | None:
    """What ``make_upload`` returned, in tensors of its own.

    Args:
        made: what it returned.
        visit: the visit that it ends.
        shared: the server's tensors that clients upload.
        live: the module's registered tensors, which the next client writes into.

    Raises:
        RunError: it is not an ``Upload``; its tensors are not exactly the shared ones, in name and shape; its weight is
            not a number from 0, or its bytes are not a whole number from 0.
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
        _require_data(value, f"make_upload gives {{}} for the statistic {name!r}")
    weight = _number(made.weight)
    if weight is None or weight < 0:
        raise RunError(f"make_upload gives the weight {made.weight!r}; give a number from 0")
    made.weight = weight
    if made.bytes is not None:
        made.bytes = byte_count(made.bytes, "make_upload")
    places = {_memory(tensor) for tensor in live.values()}
    for name, value in made.tensors.items():
        made.tensors[name] = value.detach().clone() if _memory(value) in places else value.detach()
    for name, value in made.stats.items():
        made.stats[name] = value.detach().clone()  # it may lie in the state of an optimiser, too
    return made


def byte_count(made: Any, hook: str) -> int:
    """A number of bytes that a hook returned.

    Raises:
        RunError: it is not a whole number from 0.
    """
    try:
        count = index(made)
    except TypeError:
        count = -1
    if count < 0 or isinstance(made, bool):
        shown = repr(made) if isinstance(made, int | float | str) else describe(made)
        raise RunError(f"{hook} gives {shown} for the number of bytes; give a whole number from 0")
    return count


def remembered(made: Any, num_clients: int) -> dict[int, dict[str, Tensor]]:
    """What ``remember`` returned, in tensors of its own.

    Raises:
        RunError: it is not a dict of dicts of tensors with data, or a key is not a client id.
    """
    if not isinstance(made, Mapping):
        raise RunError(f"remember returned {describe(made)}; return tensors by name, by client")
    for client, own in made.items():
        if not _is_whole(client) or not 0 <= client < num_clients:
            raise RunError(
                f"remember gives something for {client!r}, which is not a client id; ids run from 0 to "
                f"{num_clients - 1}"
            )
        for value in own.values() if isinstance(own, Mapping) else [own]:
            _require_data(value, f"remember gives {{}} for client {client}", "tensors by name")
    return {client: {name: value.detach().clone() for name, value in own.items()} for client, own in made.items()}


def probabilities(made: Any, rows: int) -> Tensor:
    """What ``predict`` returned for so many images.

    Raises:
        RunError: it is not a tensor ``[rows, classes]`` with data.
    """
    _require_data(made, f"predict returned {{}} for {rows} images", f"probabilities [{rows}, classes]")
    if made.ndim != 2 or len(made) != rows:
        raise RunError(f"predict returned {describe(made)} for {rows} images; return probabilities [{rows}, classes]")
    probabilities: Tensor = made
    return probabilities


def in_place(method: FedMethod) -> None:
    """Check that the registered tensors are still the original ones.

    Raises:
        RunError: one of them was replaced, or registered late.
    """
    known = method._engine.tensors
    if known is not None and (names := known.replaced_in(method)):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"the registered tensor {names[0]!r}{more} is no longer the one registered in __init__ (self.x = ..., "
            "p.data = ..., or registered late): its values would be lost. Register all tensors in __init__, and change "
            "them in place (self.x += 1, copy_, load_tensors)"
        )


def describe(value: object) -> str:
    """A value as an error message names it: its type or, of a tensor, its shape."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _require_data(value: Any, says: str, wanted: str = "a tensor") -> None:
    """Refuse what is not an ordinary tensor.

    Args:
        value: what a hook returned.
        says: the message's first half, with ``{}`` for the value.
        wanted: what to return instead.
    """
    if not isinstance(value, Tensor):
        raise RunError(f"{says.format(describe(value))}; give {wanted}")
    if value.is_meta:
        raise RunError(f"{says.format('a tensor on the device meta')}, which has no data; give {wanted} with data")
    if value.layout is not torch.strided:
        kind = f"a {str(value.layout).removeprefix('torch.')} tensor"
        raise RunError(f"{says.format(kind)}; give a dense one (to_dense)")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, int | float) else None


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
