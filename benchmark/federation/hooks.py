"""Checks of what a method declares before it runs, and of what its hooks return; and errors inside them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import accumulate
from operator import attrgetter, index
from typing import Any, get_args

import lightning as L
from torch import Tensor, nn

from datamodules.common.errors import ConfigError, RunError, Stopped
from datamodules.common.plugins import users_place
from methods.base import FedMethod, Scope, Upload, Visit

ALIKE = 0.88  # how similar a name must be to a hook's to count as a misspelling


def check_declarations(method: FedMethod) -> None:
    """Check a method's ``scopes``, ``views`` and ``uploads_needed``, and the names in its class and of its parts.

    Raises:
        ConfigError: the base class is not initialised; a scope, a stream or ``uploads_needed`` is unknown; no
            registered tensor has a prefix of ``scopes``; a part has a name of ``FedMethod``; or a name in the class is
            almost that of a hook, or ``on_...`` and that of none. The message suggests a similar name, if there is one.
    """
    name = type(method).__name__
    if not hasattr(method, "_engine"):
        raise ConfigError(f"{name}.__init__ must call super().__init__(model, **base)")
    prefixes = {prefix for path in method.registered() for prefix in accumulate(path.split("."), "{}.{}".format)}
    for prefix, scope in method.scopes.items():
        _require_known(f"{name}.scopes: {prefix!r} has the scope", scope, get_args(Scope))
        if not _is_empty(method, prefix):
            _require_known(f"{name}.scopes: no registered tensor (parameter or buffer) begins with", prefix, prefixes)
    for stream in method.views:
        _require_known(f"{name}.views has a stream", stream, ("labelled", "unlabelled"))
    for part in method._modules:
        if hasattr(FedMethod, part):
            raise ConfigError(f"{name}.{part} is the framework's own; give the part another name")
    _check_hooks(type(method), name)
    _require_known(f"{name}.uploads_needed is", method.uploads_needed, ("mean", "each"))


def needs_each_upload(cls: type) -> bool:
    """Whether a method's server needs each upload's tensors, not only their mean (``FedMethod.uploads_needed``): the
    class or a base says so or, without saying anything, overrides ``aggregate`` or ``remember``.
    """

    def needs_each(base: type) -> bool:
        default = "each" if {"aggregate", "remember"} & vars(base).keys() else "mean"
        return vars(base).get("uploads_needed", default) == "each"

    return any(map(needs_each, cls.__mro__))


def cohorts(returned: Any, num_clients: int) -> list[list[int]]:
    """The cohorts that ``select_clients`` returned.

    Raises:
        RunError: it is no list of cohorts, or a client does not exist.
    """
    selected = list(returned) if isinstance(returned, Iterable) else [returned]
    if not all(isinstance(cohort, Iterable) for cohort in selected):
        raise RunError(f"it returned {returned!r:.80}; give a list of cohorts, each a list of client ids: [[0, 1]]")
    ids = [[index(client) if hasattr(client, "__index__") else client for client in cohort] for cohort in selected]
    _require_clients([client for cohort in ids for client in cohort], num_clients)
    return ids


def step_outputs(returned: Any, automatic: bool) -> dict[str, Any]:
    """What ``training_step`` returned, as a dict; a tensor is its ``loss``, and ``None`` is empty.

    Args:
        returned: what it returned.
        automatic: whether the framework takes the step, for which it needs a scalar loss (or ``None``: no step).

    Raises:
        RunError: with ``automatic``, it is something else, or a loss that depends on no trained parameter.
    """
    if returned is None:
        return {}
    outputs = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
    loss = outputs.get("loss")
    if automatic and not (isinstance(loss, Tensor) and loss.ndim == 0):
        kind = f"a tensor of shape {list(returned.shape)}" if isinstance(returned, Tensor) else f"{returned!r:.80}"
        raise RunError(
            f"training_step returned {kind}; with automatic optimisation it returns a scalar loss, a "
            "dict with a scalar 'loss', or None"
        )
    if automatic and loss is not None and not loss.requires_grad:
        raise RunError("training_step returned a loss that depends on no trained parameter; return None for no step")
    return outputs


def require_shape(probabilities: Tensor, shape: list[int]) -> None:
    """Check what ``predict`` returned for all test images.

    Raises:
        RunError: another shape.
    """
    if list(probabilities.shape) != shape:
        raise RunError(
            f"it gives the shape {list(probabilities.shape)} for all test images instead of {shape}: forward returns "
            "logits, and predict probabilities, both [B, classes]"
        )


def upload(returned: Upload | None, shared: Mapping[str, Tensor]) -> Upload | None:
    """What ``make_upload`` returned, in tensors of its own.

    Args:
        returned: what it returned.
        shared: tensors with the names and shapes of those that clients upload.

    Raises:
        RunError: it is no ``Upload``, its tensors are not exactly the shared ones, in name and shape, a statistic
            is no tensor, or its weight is negative.
    """
    if returned is None:
        return None
    if not isinstance(returned, Upload):
        raise RunError(f"make_upload returned a {type(returned).__name__}; it returns an Upload, or None")
    for key in {**shared, **returned.tensors}:
        if key not in returned.tensors:
            raise RunError(
                f"make_upload leaves out {key!r}; upload all shared tensors, and give what is not uploaded another "
                "scope (personal, local, server or frozen)"
            )
        if key not in shared or returned.tensors[key].shape != shared[key].shape:
            raise RunError(f"make_upload gives {key!r}, which is not shared, or another shape than it has; use `stats`")
    returned.weight = float(returned.weight)
    if returned.weight < 0:
        raise RunError(f"make_upload gives the weight {returned.weight}; give a number from 0")
    returned.bytes = None if returned.bytes is None else index(returned.bytes)
    # They may lie in tensors of the module or of an optimiser, which the next client writes into.
    return replace(returned, tensors=_copies(returned.tensors), stats=_copies(returned.stats))


def remembered(memory: Any, num_clients: int) -> dict[int, dict[str, Tensor]]:
    """What ``remember`` returned, in tensors of its own.

    Raises:
        RunError: it is no mapping, a key is no client id, or what is kept of a client is no tensor.
    """
    if not isinstance(memory, Mapping):
        raise RunError(
            f"it returned a {type(memory).__name__}; it returns tensors by name, by client: {{client: {{...}}}}"
        )
    _require_clients(memory, num_clients)
    return {client: _copies(tensors) for client, tensors in memory.items()}


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
    who = "the server" if visit.at_server else f"client {visit.client} ({visit.size} images)"
    return f", {who}, round {visit.round}"


def _cause(error: BaseException, method: FedMethod) -> str:
    """The message of an error inside a hook; unless it is a ``RunError``, with its type and the line of the user's."""
    if isinstance(error, RunError):
        return str(error)
    classes = [cls for cls in type(method).__mro__ if issubclass(cls, FedMethod) and cls is not FedMethod]
    line = users_place(error, {cls.__module__ for cls in classes})
    return f"{type(error).__name__}: {error}" + (f" ({line})" if line else "")


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise RunError(f"{name!r} is {value!r:.40}; give a tensor")
    return {name: value.detach().clone() for name, value in tensors.items()}


def _require_clients(clients: Iterable[Any], num_clients: int) -> None:
    for client in clients:
        if not isinstance(client, int) or not 0 <= client < num_clients:
            raise RunError(f"there is no client {client!r}; ids run from 0 to {num_clients - 1}")


def _is_empty(method: FedMethod, prefix: str) -> bool:
    """Whether the method has an attribute of this name without tensors: ``None``, or a module without any."""
    with suppress(AttributeError):
        held = attrgetter(prefix)(method)
        return held is None or (isinstance(held, nn.Module) and not held.state_dict())
    return False


def _check_hooks(cls: type, name: str) -> None:
    """Refuse what is named almost like a hook, or ``on_...`` like none: it would never be called."""
    hooks = [hook for hook in vars(FedMethod) if not hook.startswith("_")]
    hooks += [hook for hook in dir(L.LightningModule) if hook.startswith(("on_", "configure_"))]
    members = {member for base in cls.__mro__ if base not in FedMethod.__mro__ for member in vars(base)}
    for member in sorted(members):
        close = get_close_matches(member, hooks, n=1, cutoff=0.0 if member.startswith("on_") else ALIKE)
        if close and not member.startswith("_") and not hasattr(FedMethod, member):
            raise ConfigError(
                f"{name}.{member} is never called: did you mean {close[0]!r}? If it is no hook, give it another name"
            )


def _require_known(what: str, given: Any, known: Iterable[str]) -> None:
    if given not in known:
        close = get_close_matches(str(given), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? There" if close else "there"
        raise ConfigError(f"{what} {given!r}; {hint} are {', '.join(sorted(known)[:12])}")
