"""What a method keeps beside its registered tensors: attributes, class attributes, globals of its modules."""

import copy
import random
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from datamodules.common.plugins import BELOW
from methods.base import FedMethod

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
DATA = (type(None), bool, int, float, complex, str, bytes, set, frozenset, Tensor, np.ndarray, np.generic, *GENERATORS)
CACHED = type(cache(lambda: None))

Name = TypeVar("Name")
Values = dict[tuple[str, str], Any]
"""Copies of data, by the name of the owner (see ``owners``) and of its attribute."""


def own_modules(cls: type) -> dict[str, ModuleType]:
    """The Python modules of a method's classes, and the user's modules that they import, by name."""
    waiting = [base.__module__ for base in own_classes(cls).values()]
    modules: dict[str, ModuleType] = {}
    while waiting:
        name = waiting.pop()
        if name not in sys.modules or name in modules:
            continue
        modules[name] = sys.modules[name]
        for value in vars(modules[name]).values():
            source = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(source, str) and source.partition(".")[0] not in BELOW and not is_installed(source):
                waiting.append(source)
    return modules


def is_installed(module: str) -> bool:
    """Whether a module lies with the installed packages, or in no folder at all."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def own_classes(cls: type) -> dict[str, type]:
    """The class and its bases, mixins among them, without ``FedMethod`` and its own bases, by dotted path."""
    return {f"{base.__module__}.{base.__qualname__}": base for base in cls.__mro__ if base not in FedMethod.__mro__}


def common_owners(cls: type) -> dict[str, Any]:
    """What all instances share: a method's classes and their Python modules, by dotted path."""
    return {**own_classes(cls), **own_modules(cls)}


def owners(method: FedMethod) -> dict[str, Any]:
    """Whatever may keep data for a method, by name: itself, its submodules, and its ``common_owners``."""
    modules = {f"self.{path}".rstrip("."): module for path, module in method.named_modules()}
    return modules | common_owners(type(method))


def values_of(kept_by: Mapping[str, Any]) -> Values:
    """Copies of the data that these owners keep outside state dicts: buffers with ``persistent=False`` count.

    Of a function of theirs with ``functools.cache`` or ``lru_cache`` it is the number of calls that it remembers.
    """
    found = {}
    for place, owner in kept_by.items():
        values = dict(vars(owner))
        if isinstance(owner, nn.Module):
            values |= {name: owner._buffers[name] for name in owner._non_persistent_buffers_set}
        for name, value in values.items():
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if isinstance(function, CACHED) and function.__module__ in kept_by:
                found[place, name] = function.cache_info().currsize
            elif name not in of_every_method() and not name.startswith("__") and is_data(value):
                found[place, name] = copied(value)
    return found


@cache
def of_every_method() -> set[str]:
    """Names of the attributes that the framework itself gives to a method."""
    return {*vars(FedMethod(nn.Identity())), "generator", "memory"}


def restore(values: Values, kept_by: Mapping[str, Any]) -> None:
    """Give the attributes of these owners these values, and delete those that have none; empty caches that grew."""
    for place, name in different(values_of(kept_by), values):
        kept = getattr(kept_by[place], name, None)
        if isinstance(function := getattr(kept, "__func__", kept), CACHED):
            function.cache_clear()
        elif (place, name) in values:
            setattr(kept_by[place], name, copied(values[place, name]))
        else:
            delattr(kept_by[place], name)


def different(now: Mapping[Name, Any], before: Mapping[Name, Any]) -> list[Name]:
    """Names of values that are not the ``same``, or are in one of the two only."""
    alike = {name for name, value in now.items() if name in before and same(value, before[name])}
    return [name for name in {**now, **before} if name not in alike]


def is_data(value: Any) -> bool:
    """Whether a value is numbers, text, tensors, arrays, generators of NumPy or Python, or containers of those."""
    return all(isinstance(leaf, DATA) and not isinstance(leaf, nn.Parameter) for leaf in tree_leaves(value))


def copied(value: Any) -> Any:
    """A copy of data that shares no memory with it."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf), value)


def same(one: Any, other: Any) -> bool:
    """Whether two values are exactly equal data; a NaN in a tensor equals a NaN, generators never are equal."""
    (leaves, form), (others, other_form) = tree_flatten(one), tree_flatten(other)
    return form == other_form and all(map(_same, leaves, others))


def _same(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other) and bool(np.array_equal(one, other))
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
