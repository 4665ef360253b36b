"""What a method keeps beside its registered tensors: attributes, class attributes, globals of its modules."""

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from datamodules.common.plugins import BELOW
from methods.base import FedMethod

MISSING = "(not there)"
PLAIN = (type(None), bool, int, float, complex, str, bytes)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
CACHED = type(cache(lambda: None))


@dataclass(frozen=True)
class Attribute:
    """An attribute, which keeps a value.

    Args:
        owner: a module of the method, a class, or a Python module.
        name: of the attribute.
        label: both, for people.
        path: of the owner within the method; ``None`` for classes and Python modules.
    """

    owner: Any
    name: str
    label: str
    path: str | None = None

    @property
    def value(self) -> Any:
        """The current value."""
        if isinstance(self.owner, nn.Module) and self.name in self.owner._buffers:
            return self.owner._buffers[self.name]
        return vars(self.owner).get(self.name, MISSING)

    def within(self, method: FedMethod) -> "Attribute":
        """The same attribute of another instance."""
        return self if self.path is None else replace(self, owner=method.get_submodule(self.path))

    def set(self, value: Any) -> None:
        """Store a copy of a value; ``MISSING`` deletes the attribute."""
        if isinstance(self.owner, nn.Module) and self.name in self.owner._buffers:
            self.owner._buffers[self.name] = copied(value)
        elif value is not MISSING:
            setattr(self.owner, self.name, copied(value))
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)


Values = dict[str, tuple[Attribute, Any]]
"""Copies of values, by label."""


def places_of(method: FedMethod) -> list[Attribute]:
    """Attributes that hold unregistered data: of the method and its submodules, of its classes and their modules.

    Buffers with ``persistent=False`` count, because no state dict has them.
    """
    places = []
    registered = set(method.state_dict())
    for path, module in method.named_modules():
        prefix = f"{path}." if path else ""
        known = _framework() if module is method else set(vars(nn.Module()))
        places += [Attribute(module, name, f"self.{prefix}{name}", path) for name in vars(module) if name not in known]
        loose = [name for name in module._buffers if f"{prefix}{name}" not in registered]
        places += [Attribute(module, name, f"self.{prefix}{name} (persistent=False)", path) for name in loose]
    for cls in own_classes(type(method)):
        names = [name for name in vars(cls) if not name.startswith("__")]
        places += [Attribute(cls, name, f"{cls.__name__}.{name}") for name in names]
    for source in own_modules(type(method)):
        names = [name for name in vars(source) if not name.startswith("__")]
        places += [Attribute(source, name, f"{source.__name__}.{name}") for name in names]
    unique = {(id(place.owner), place.name): place for place in places}
    return [place for place in unique.values() if is_data(place.value)]


def own_classes(cls: type) -> list[type]:
    """The class and its bases, mixins among them, without ``FedMethod`` and its own bases."""
    return [base for base in cls.__mro__ if base not in FedMethod.__mro__]


def own_modules(cls: type) -> list[ModuleType]:
    """The modules of a method's classes, and the user's modules that they import."""
    waiting = [base.__module__ for base in own_classes(cls)]
    found: dict[str, ModuleType] = {}
    while waiting:
        name = waiting.pop()
        if name not in sys.modules or name in found:
            continue
        found[name] = sys.modules[name]
        for value in vars(found[name]).values():
            of = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(of, str) and of.partition(".")[0] not in BELOW and not _is_installed(of):
                waiting.append(of)
    return list(found.values())


def _is_installed(module: str) -> bool:
    """Whether a module lies with the installed packages, or in no folder at all."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or bool({"site-packages", "dist-packages"} & set(Path(file).parts))


def caches_of(cls: type) -> dict[str, Any]:
    """What ``functools.cache`` and ``lru_cache`` have made of functions of a method's classes and modules, by label."""
    sources, found = own_modules(cls), {}
    owners: list[Any] = [*own_classes(cls), *sources]
    for owner in owners:
        for name, value in vars(owner).items():
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            if isinstance(value, CACHED) and value.__module__ in {source.__name__ for source in sources}:
                found[f"{owner.__name__}.{name}"] = value
    return found


@cache
def _framework() -> set[str]:
    """Attributes that every method has."""
    return set(vars(FedMethod(nn.Identity()))) | {"generator", "memory"}


def values_of(places: list[Attribute]) -> Values:
    """Copies of the current values of these places."""
    return {place.label: (place, copied(place.value)) for place in places}


def common_values(method: FedMethod) -> Values:
    """Values of class attributes, and of globals of the method's modules."""
    return values_of([place for place in places_of(method) if place.path is None])


@contextmanager
def as_first_met(untouched: Values, method: FedMethod) -> Iterator[None]:
    """Within this context class attributes and globals have these values, as in a new process."""
    before = common_values(method)
    restore(untouched, method)
    try:
        yield
    finally:
        restore(before, method)


def restore(values: Values, method: FedMethod) -> None:
    """Give class attributes and globals these values, and delete those that have none."""
    now = common_values(method)
    for label in changed(now, values):
        place, value = values[label] if label in values else (now[label][0], MISSING)
        place.set(value)


def changed(now: Values, before: Values) -> list[str]:
    """Labels of values that have changed, appeared or disappeared."""
    names = [label for label, (_, value) in now.items() if not alike(value, before.get(label, (None, MISSING))[1])]
    return names + [label for label in before if label not in now]


def is_data(value: Any) -> bool:
    """Whether a value is numbers, text, tensors, arrays, generators, or containers of those."""
    if isinstance(value, Mapping):
        return all(is_data(key) and is_data(one) for key, one in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_data(one) for one in value)
    return isinstance(value, (*PLAIN, Tensor, np.ndarray, np.generic, *GENERATORS)) and not isinstance(
        value, nn.Parameter
    )


def copied(value: Any) -> Any:
    """A copy of data that shares no memory with it; anything else as it is."""
    if isinstance(value, torch.Generator):
        twin = torch.Generator(device=value.device)
        twin.set_state(value.get_state())
        return twin
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update((key, copied(one)) for key, one in value.items())
        return made
    if type(value) in (list, tuple):
        return type(value)(copied(one) for one in value)
    return copy.deepcopy(value) if isinstance(value, (set, np.ndarray, *GENERATORS)) else value


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same data."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return same(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, GENERATORS):
        return alike(_state(one), _state(other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def _state(generator: Any) -> Any:
    """What a generator draws next depends on this alone."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit; a NaN equals a NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
