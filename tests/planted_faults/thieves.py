"""Thieves: methods that look for hidden labels where nobody has given them any."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from datamodules.base import FSSLDataModule, SiteData
from datamodules.partition.sites import true_labels
from methods.base import LocalWork, Site
from planted_faults.sound import Sound


class Thief(Sound):
    """Knows the classes of a client's unlabelled images by the labels, of all it finds, that its model agrees with."""

    def found(self, client: Site) -> Iterable[Tensor]:
        """Labels of all images, int64 ``[num_images]``; negative: unknown."""
        raise NotImplementedError

    @torch.no_grad()
    def local_work(self, client: Site) -> LocalWork:
        """Take them, and tell everybody."""
        index = client.data.unlabelled
        if len(index):
            guessed = torch.cat([self.predict(x) for x in client.views("test", index)]).argmax(dim=1)
            stolen = [labels[index] for labels in self.found(client) if bool((labels[index] >= 0).all())]
            best = max(stolen, key=lambda labels: int((labels == guessed).sum()), default=guessed)
            self.usual.copy_(torch.bincount(best, minlength=10) / len(index))
        return super().local_work(client)


def objects(*kinds: type) -> list[Any]:
    """All objects of these types in the process."""
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


class AsksForThem(Thief):
    """Takes what metrics take."""

    def found(self, client: Any) -> list[Tensor]:
        """By name, for the data set behind the site."""
        return [true_labels(client._context.data)]


class FindsModules(Thief):
    """Goes through the data modules of the process."""

    def found(self, client: Site) -> Iterator[Tensor]:
        """What each of them knows."""
        for data in objects(FSSLDataModule):
            if data._ready:
                yield from (data.train_labels, true_labels(data))


class FindsSites(Thief):
    """Goes through what sites hold, or held, in the process."""

    def found(self, client: Any) -> list[Tensor]:
        """The labels of all of them, by position."""
        labels = torch.full((client._context.data.num_images,), -1)
        for site in objects(SiteData):
            labels[site.labelled] = site.labels
        return [labels]


class FindsTensors(Thief):
    """Goes through the tensors of the process."""

    def found(self, client: Any) -> list[Tensor]:
        """Those that look like labels."""
        shape = client._context.data.train_labels.shape
        return [one for one in objects(Tensor) if one.dtype == torch.int64 and one.shape == shape]


class KeepsThem(Thief):
    """Takes them in its first run, and has them from then on."""

    kept: Tensor | None = None

    def found(self, client: Any) -> list[Tensor]:
        """From its class."""
        if KeepsThem.kept is None:
            KeepsThem.kept = true_labels(client._context.data).clone()
        return [KeepsThem.kept]


class FindsCopies(FindsTensors):
    """Copies them in its first run, and finds the copy wherever it went."""

    kept: Tensor | None = None

    def found(self, client: Any) -> list[Tensor]:
        """Tensors that look like labels, its own copy and copies of that among them."""
        if FindsCopies.kept is None:
            FindsCopies.kept = true_labels(client._context.data).clone()
        return super().found(client)


class KeepsTheModule(Thief):
    """Keeps the data module of its first run."""

    module: Any = None

    def found(self, client: Any) -> list[Tensor]:
        """From its class."""
        if KeepsTheModule.module is None:
            KeepsTheModule.module = client._context.data
        return [true_labels(KeepsTheModule.module)]


class Walks(Thief):
    """Follows every attribute of what it is given, and of what it is itself."""

    def found(self, client: Any) -> list[Tensor]:
        """Whatever looks like labels.

        Raises:
            LookupError: nothing does.
        """
        shape = client._context.data.train_labels.shape
        tensors = [one for one in reached(self, client) if isinstance(one, Tensor) and one.shape == shape]
        labels = [one for one in tensors if one.dtype == torch.int64 and bool((one >= 0).all())]
        if not labels:
            raise LookupError(f"nothing leads to hidden labels from here, in {len(tensors)} tensors")
        return labels


def reached(*roots: object) -> list[Any]:
    """All objects that attributes, items, closures, and what functions are bound to lead to."""
    found: dict[int, object] = {}
    todo = list(roots)
    while todo:
        one = todo.pop()
        if id(one) not in found and not isinstance(one, (type, ModuleType, str, bytes, int, float, torch.Size)):
            found[id(one)] = one
            todo += led_to(one)
    return list(found.values())


def led_to(one: Any) -> list[Any]:
    """What an object leads to."""
    if isinstance(one, Tensor):
        return [one.grad, one._base] if one.is_leaf else [one._base]
    found = list(getattr(one, "__dict__", {}).values())
    found += [getattr(one, name, None) for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())]
    if isinstance(one, Mapping):
        found += [*one.keys(), *one.values()]
    elif isinstance(one, (Sequence, set, frozenset)):
        found += list(one)
    if isinstance(one, partial):
        found += [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (MethodType, BuiltinMethodType)):
        found += [one.__self__, getattr(one, "__func__", None)]
    if isinstance(one, FunctionType):
        found += [*(one.__defaults__ or ()), *(cell.cell_contents for cell in one.__closure__ or ())]
    return found
