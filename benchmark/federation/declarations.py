"""Checks of what a method declares, before it runs: a misspelt name would silently train something else."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

import lightning as L
from torch import nn

from datamodules.common.errors import ConfigError
from methods.base import FedMethod, Scope

NEEDED = ("sum", "mean", "each")  # of the uploads' tensors, from least to most
STREAMS = ("labelled", "unlabelled")
ALIKE = 0.88  # how similar a name must be to a hook's to count as a misspelling


def check_declarations(method: FedMethod) -> None:
    """Check a method's ``scopes``, ``views`` and ``uploads_needed``, and its functions' names.

    Raises:
        ConfigError: the base class is not initialised, a scope or stream does not exist, no registered tensor has a
            prefix of ``scopes``, or a function of the class is named almost like a hook, or ``on_...`` like no hook.
            The message suggests the nearest name.
    """
    name = type(method).__name__
    if not hasattr(method, "_engine"):
        raise ConfigError(f"{name}.__init__ must call super().__init__(model, **base)")
    for prefix, scope in method.scopes.items():
        _require_known(f"{name}.scopes: {prefix!r} has the scope", scope, get_args(Scope))
    registered = list(method.registered())
    parts = {".".join(one.split(".")[:depth]) for one in registered for depth in range(1, one.count(".") + 2)}
    for prefix in method.scopes:
        if not _is_empty(method, prefix):
            _require_known(f"{name}.scopes: no registered tensor (parameter or buffer) begins with", prefix, parts)
    for stream in method.views:
        _require_known(f"{name}.views has a stream", stream, STREAMS)
    _check_hooks(type(method), name)
    _require_known(f"{name}.uploads_needed is", uploads_needed(type(method)), NEEDED)


def uploads_needed(cls: type) -> str:
    """What a method's server needs of the uploads' tensors (``FedMethod.uploads_needed``): the most that the class or
    a base declares or, without a declaration, needs because of what it overrides.
    """

    def own(one: type) -> str:
        defined = vars(one)
        usual = "each" if {"aggregate", "remember"} & defined.keys() else "mean" if "weights" in defined else "sum"
        return str(defined.get("uploads_needed", usual))

    found = [own(one) for one in cls.__mro__]
    return max(found, key=lambda need: NEEDED.index(need) if need in NEEDED else len(NEEDED))


def _is_empty(method: FedMethod, prefix: str) -> bool:
    """Whether the method has an attribute of this name without tensors: ``None``, or a module without any."""
    held: Any = method
    for part in prefix.split("."):
        if not hasattr(held, part):
            return False
        held = getattr(held, part)
    return held is None or (isinstance(held, nn.Module) and not held.state_dict())


def _check_hooks(cls: type, name: str) -> None:
    """Refuse what is named almost like a hook, or ``on_...`` like none: it would never be called."""
    hooks = [hook for hook in vars(FedMethod) if not hook.startswith("_")]
    hooks += [hook for hook in dir(L.LightningModule) if hook.startswith(("on_", "configure_"))]
    own = {one for base in cls.__mro__ if base not in FedMethod.__mro__ for one in vars(base)}
    for one in sorted(own):
        close = get_close_matches(one, hooks, n=1, cutoff=0.0 if one.startswith("on_") else ALIKE)
        if close and not one.startswith("_") and not hasattr(FedMethod, one):
            raise ConfigError(
                f"{name}.{one} is never called: did you mean {close[0]!r}? If it is no hook, give it another name"
            )


def _require_known(what: str, given: Any, known: Iterable[str]) -> None:
    if given not in known:
        close = get_close_matches(str(given), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? There" if close else "there"
        raise ConfigError(f"{what} {given!r}; {hint} are {', '.join(sorted(known)[:12])}")
