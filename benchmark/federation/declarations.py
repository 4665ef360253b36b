"""Checks of what a method declares, before it runs: a misspelt name would silently train something else."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args

import lightning as L
import torch
from torch import nn

from benchmark.federation.hooks import describe
from datamodules.common.errors import ConfigError
from methods.base import FedMethod, Scope

NEEDED = ("sum", "mean", "each")  # of the uploads' tensors, from least to most
STREAMS = ("labelled", "unlabelled")
ALIKE = 0.88  # how similar a name must be to a hook's to count as a misspelling


def check_declarations(method: FedMethod) -> None:
    """Check a method's registered tensors, ``scopes``, ``views`` and ``uploads_needed``, and its functions' names.

    Raises:
        ConfigError: the base class is not initialised, a registered tensor is complex or sparse, a scope or stream
            does not exist, no registered tensor has a prefix of ``scopes``, a view is not a name, or a function of the
            class is named almost like a hook, or ``on_...`` like no hook. The message suggests the nearest name.
    """
    name = type(method).__name__
    if not hasattr(method, "_engine"):
        raise ConfigError(f"{name}.__init__ must call super().__init__(model, **base)")
    _check_tensors(method, name)
    _check_scopes(method, name)
    _check_views(method.views, name)
    _check_hooks(type(method), name)
    if uploads_needed(type(method)) not in NEEDED:
        raise ConfigError(f"{name}.uploads_needed is {uploads_needed(type(method))!r}; there are {', '.join(NEEDED)}")


def sees(method: FedMethod, labels: Literal["oracle", "validation"]) -> bool:
    """Whether a method, as it stands, declares that it sees labels which a setting hides.

    Args:
        method: asked itself, because ``__init__`` or a property may say otherwise than the class.
        labels: ``oracle``: those of unlabelled images (``uses_oracle``); ``validation``: those that ``data.validation``
            keeps from everybody (``uses_validation``).
    """
    return bool(method.uses_oracle if labels == "oracle" else method.uses_validation)


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


def _check_tensors(method: FedMethod, name: str) -> None:
    for label, value in method.registered().items():
        if value.is_complex() or value.layout != torch.strided:
            kind = f"complex ({value.dtype})" if value.is_complex() else f"sparse ({value.layout})"
            raise ConfigError(
                f"{name}: the registered tensor {label!r} is {kind}, and cannot be averaged or kept: register a dense "
                "tensor of real numbers (torch.view_as_real, to_dense)"
            )


def _check_scopes(method: FedMethod, name: str) -> None:
    known, registered = get_args(Scope), list(method.registered())
    if not isinstance(method.scopes, Mapping):
        raise ConfigError(f"{name}.scopes is {describe(method.scopes)}; map prefixes of tensor names to scopes")
    for prefix, scope in method.scopes.items():
        if scope not in known:
            raise ConfigError(f"{name}.scopes: {prefix!r} has the scope {scope!r}{_nearest(scope, known)}")
        if any(one == prefix or one.startswith(f"{prefix}.") for one in registered) or _is_empty(method, prefix):
            continue
        parts = {".".join(one.split(".")[:depth]) for one in registered for depth in range(1, one.count(".") + 2)}
        raise ConfigError(
            f"{name}.scopes: no registered tensor is called {prefix!r}, or begins with it{_nearest(prefix, parts)}. A "
            "tensor is registered as a parameter, a buffer (register_buffer), or part of a module"
        )


def _is_empty(method: FedMethod, prefix: str) -> bool:
    """Whether the method has an attribute of this name without tensors: ``None``, or a module without any."""
    held: Any = method
    for part in prefix.split("."):
        if not hasattr(held, part):
            return False
        held = getattr(held, part)
    return held is None or (isinstance(held, nn.Module) and not held.state_dict())


def _check_views(views: Any, name: str) -> None:
    if not isinstance(views, Mapping):
        raise ConfigError(f"{name}.views is {describe(views)}; map streams to fields to views")
    for stream, fields in views.items():
        if stream not in STREAMS:
            raise ConfigError(f"{name}.views has a stream {stream!r}{_nearest(stream, STREAMS)}")
        if not isinstance(fields, Mapping) or not all(isinstance(view, str) for view in fields.values()):
            raise ConfigError(f"{name}.views: {stream!r} is {fields!r}; map batch fields to names of views")


def _check_hooks(cls: type, name: str) -> None:
    """Refuse what the class defines under a name that is almost a hook's, or a function ``on_...`` that is no hook: it
    would never be called.
    """
    declared = [hook for hook in vars(FedMethod) if not hook.startswith("_")]
    hooks = [*declared, *(hook for hook in dir(L.LightningModule) if hook.startswith(("on_", "configure_")))]
    training = [hook for hook in hooks if hook.startswith(("on_train_", "on_before_", "on_after_"))]
    own = {one for base in cls.__mro__ if base not in FedMethod.__mro__ for one in vars(base)}
    for one in sorted(own):
        if one.startswith("_") or hasattr(FedMethod, one):
            continue
        if close := get_close_matches(one, hooks, n=1, cutoff=ALIKE):
            raise ConfigError(
                f"{name}.{one} is never called: did you mean {close[0]!r}? If it is no hook, give it a name that is "
                "less like the hook's"
            )
        if one.startswith("on_") and callable(getattr(cls, one)):
            (nearest,) = get_close_matches(one.replace("begin", "start"), training, n=1, cutoff=0.0)  # Keras's word
            raise ConfigError(
                f"{name}.{one} is never called, for there is no such hook; the nearest is {nearest!r}. If it is "
                "meant as something else, give it a name that does not begin with on_"
            )


def _nearest(given: Any, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(str(given), known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{hint} There are {', '.join(sorted(known)[:12])}{', ...' if len(known) > 12 else ''}"
