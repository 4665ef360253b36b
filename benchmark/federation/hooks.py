"""Checks of what a method's hooks return: its type, and the names and shapes of its tensors; and errors inside them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import index
from typing import Any

from torch import Tensor

from datamodules.common.errors import RunError, Stopped, safe_str
from datamodules.common.plugins import users_place
from datamodules.common.streams import SERVER
from methods.base import FedMethod, Upload, Visit

Shapes = Mapping[str, Tensor]
"""Tensors by name; only their names, shapes and types matter."""


def cohorts(made: Any, num_clients: int) -> list[list[int]]:
    """The cohorts that ``select_clients`` returned.

    Raises:
        RunError: a client does not exist.
    """
    found = [list(cohort) for cohort in made]
    for client in (client for cohort in found for client in cohort):
        _require_client(client, num_clients)
    return found


def tensors(made: Any, like: Shapes, hook: str) -> dict[str, Tensor]:
    """Tensors by name, to be copied into the registered tensors of those names.

    Args:
        made: what the hook returned.
        like: registered tensors.
        hook: its name, for the message.

    Raises:
        RunError: a name or shape is not that of a registered tensor.
    """
    for name, value in made.items():
        if name not in like:
            raise RunError(f"{hook} gives a tensor {name!r}, which the method has not registered")
        if value.shape != like[name].shape:
            was = list(like[name].shape)
            raise RunError(f"{hook} gives the shape {list(value.shape)} for {name!r}, which has the shape {was}")
    return dict(made)


def step_outputs(made: Any, automatic: bool) -> dict[str, Any]:
    """What ``training_step`` returned, as a dict; a tensor is its ``loss``, and ``None`` is empty.

    Args:
        made: what it returned.
        automatic: whether the framework takes the step, for which it needs a scalar loss (or ``None``: no step).

    Raises:
        RunError: it is something else.
    """
    outputs = {} if made is None else dict(made) if isinstance(made, Mapping) else {"loss": made}
    loss = outputs.get("loss")
    if not automatic or made is None:
        return outputs
    if not isinstance(loss, Tensor) or loss.ndim:
        raise RunError(
            f"training_step returned {made!r:.80}; with automatic optimisation it returns a scalar loss, a "
            "dict with a scalar 'loss', or None"
        )
    return outputs


def upload(made: Upload | None, visit: Visit, shared: Shapes, live: Shapes) -> Upload | None:
    """What ``make_upload`` returned, in tensors of its own.

    Args:
        made: what it returned.
        visit: the visit that it ends.
        shared: the server's tensors that clients upload.
        live: the module's registered tensors, which the next client writes into.

    Raises:
        RunError: it is the ``Upload`` of another visit, its tensors are not exactly the shared ones, in name and shape,
            or its weight is negative.
    """
    if made is None:
        return None
    if made.visit != visit:
        raise RunError(f"make_upload returned an Upload of another visit ({made.visit}); give it client.visit")
    tensors(made.tensors, shared, "make_upload")
    if missing := [name for name in shared if name not in made.tensors]:
        raise RunError(
            f"make_upload leaves out {missing[0]!r}; upload all shared tensors, and give what is not uploaded another "
            "scope (personal, local, server or frozen)"
        )
    made.weight = float(made.weight)
    if made.weight < 0:
        raise RunError(f"make_upload gives the weight {made.weight}; give a number from 0")
    if made.bytes is not None:
        made.bytes = index(made.bytes)
    places = {_memory(tensor) for tensor in live.values()}
    for name, value in made.tensors.items():
        made.tensors[name] = value.detach().clone() if _memory(value) in places else value.detach()
    for name, value in made.stats.items():
        made.stats[name] = value.detach().clone()  # it may lie in the state of an optimiser, too
    return made


def remembered(made: Any, num_clients: int) -> dict[int, dict[str, Tensor]]:
    """What ``remember`` returned, in tensors of its own.

    Raises:
        RunError: a key is not a client id.
    """
    for client in made:
        _require_client(client, num_clients)
    return {client: {name: value.detach().clone() for name, value in own.items()} for client, own in made.items()}


def in_place(method: FedMethod) -> None:
    """Check that the registered tensors are still the original ones.

    Raises:
        RunError: one of them was replaced, or registered late.
    """
    known = method._engine.tensors
    if known is not None and (names := known.replaced_in(method)):
        raise RunError(
            f"the registered tensor {names[0]!r} is no longer the one registered in __init__ (self.x = ..., p.data = "
            "..., or registered late): its values would be lost. Register all tensors in __init__, and change them in "
            "place (self.x += 1, copy_, load_tensors)"
        )


@contextmanager
def errors_at(where: str, method: FedMethod) -> Iterator[None]:
    """Errors inside a hook end as a ``RunError`` that begins with the name of the method, ``where``, and the cause."""
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:
        raise RunError(f"{type(method).__name__}{where}: {_cause(error, method)}") from error


def location(visit: Visit) -> str:
    """Client and round, as an error message names them after the method."""
    who = "the server" if visit.client == SERVER else f"client {visit.client} ({visit.size} images)"
    return f", {who}, round {visit.round}"


def _cause(error: BaseException, method: FedMethod) -> str:
    """The message of an error inside a hook; unless it is a ``RunError``, with its type and the line of the user's."""
    if isinstance(error, SystemExit):
        return f"the method ended the program (exit code {error.code!r}); a hook returns, or raises an error"
    if isinstance(error, RunError):
        return safe_str(error)
    classes = [cls for cls in type(method).__mro__ if issubclass(cls, FedMethod) and cls is not FedMethod]
    line = users_place(error, {cls.__module__ for cls in classes})
    return f"{type(error).__name__}: {safe_str(error)}" + (f" ({line})" if line else "")


def _require_client(client: Any, num_clients: int) -> None:
    if not isinstance(client, int) or not 0 <= client < num_clients:
        raise RunError(f"there is no client {client!r}; ids run from 0 to {num_clients - 1}")


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
