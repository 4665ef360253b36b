"""What a method keeps beside its registered tensors: attributes, class attributes, globals of its modules."""

import copy
import random
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from datamodules.common.plugins import BELOW
from methods.base import FedMethod

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
DATA = (type(None), bool, int, float, complex, str, bytes, set, frozenset, Tensor, np.ndarray, np.generic, *GENERATORS)
CACHED = type(cache(lambda: None))

Values = dict[tuple[str, str], Any]
"""Copies of data, by the name of the owner (see ``owners``) and of its attribute."""


def own_modules(cls: type) -> list[ModuleType]:
    """The Python modules of a method's classes, and the user's modules that they import."""
    waiting = [base.__module__ for base in _own_classes(cls)]
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


def _own_classes(cls: type) -> list[type]:
    """The class and its bases, mixins among them, without ``FedMethod`` and its own bases."""
    return [base for base in cls.__mro__ if base not in FedMethod.__mro__]


def common_owners(cls: type) -> dict[str, Any]:
    """What all instances share: a method's classes and their Python modules, by dotted path."""
    classes = {f"{one.__module__}.{one.__qualname__}": one for one in _own_classes(cls)}
    return classes | {one.__name__: one for one in own_modules(cls)}


def owners(method: FedMethod) -> dict[str, Any]:
    """Whatever may keep data for a method, by name: itself, its submodules, and its ``common_owners``."""
    modules = {f"self.{path}".rstrip("."): module for path, module in method.named_modules()}
    return modules | common_owners(type(method))


def caches_of(cls: type) -> dict[str, Any]:
    """What ``functools.cache`` and ``lru_cache`` have made of functions of a method's classes and modules, by label."""
    sources = {source.__name__ for source in own_modules(cls)}
    found = {}
    for place, owner in common_owners(cls).items():
        for name, value in vars(owner).items():
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            if isinstance(value, CACHED) and value.__module__ in sources:
                found[f"{place}.{name}"] = value
    return found


def values_of(kept_by: Mapping[str, Any]) -> Values:
    """Copies of the data that these owners keep outside state dicts: buffers with ``persistent=False`` count."""
    found = {}
    for place, owner in kept_by.items():
        values = dict(vars(owner))
        if isinstance(owner, nn.Module):
            values |= {name: owner._buffers[name] for name in owner._non_persistent_buffers_set}
        for name, value in values.items():
            if name not in _of_every_method() and not name.startswith("__") and is_data(value):
                found[place, name] = copied(value)
    return found


@cache
def _of_every_method() -> set[str]:
    return set(vars(FedMethod(nn.Identity()))) | {"generator", "memory"}


def restore(values: Values, kept_by: Mapping[str, Any]) -> None:
    """Give the attributes of these owners these values, and delete those that have none."""
    now = values_of(kept_by)
    for place, name in changed(now, values):
        if (place, name) in values:
            setattr(kept_by[place], name, copied(values[place, name]))
        else:
            delattr(kept_by[place], name)


def changed(now: Values, before: Values) -> list[tuple[str, str]]:
    """Places of values that have changed, appeared or disappeared."""
    both = now.keys() & before.keys()
    same_places = {place for place in both if alike(now[place], before[place])}
    return [place for place in {**now, **before} if place not in same_places]


def is_data(value: Any) -> bool:
    """Whether a value is numbers, text, tensors, arrays, generators of NumPy or Python, or containers of those."""
    return all(isinstance(one, DATA) and not isinstance(one, nn.Parameter) for one in tree_leaves(value))


def copied(value: Any) -> Any:
    """A copy of data that shares no memory with it."""
    return tree_map(lambda one: one.detach().clone() if isinstance(one, Tensor) else copy.deepcopy(one), value)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same data; generators never are."""
    (leaves, form), (others, other_form) = tree_flatten(one), tree_flatten(other)
    return form == other_form and all(map(_alike, leaves, others))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same(one, other)
    return type(one) is type(other) and bool(np.array_equal(one, other))


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit; a NaN equals a NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
