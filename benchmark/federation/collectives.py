"""Messages between processes: tensors travel as flat bytes, only their names and shapes are pickled."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning import Fabric
from torch import Tensor

from datamodules.common.errors import RunError, message_of

Found = TypeVar("Found")


class TensorSpec:
    """Stands for a tensor in a message.

    Args:
        number: position among the message's tensors.
        shape: of the tensor.
        dtype: of the tensor.
        stride: its layout in memory, without gaps. It is kept, since the order in which kernels sum may depend on it.
    """

    def __init__(self, number: int, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...]) -> None:
        self.number, self.shape, self.dtype, self.stride = number, shape, dtype, stride


def all_gather(fabric: Fabric, mine: Any) -> list[Any]:
    """The values of all processes, in rank order, with their tensors on this process's device.

    Args:
        fabric: launched.
        mine: this process's value: dicts, lists, tuples and dataclasses of tensors and plain values.
    """
    if fabric.world_size == 1:
        return [mine]
    skeleton, tensors = split_tensors(mine)
    skeletons: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(skeletons, skeleton)
    everyone = []
    for rank, theirs in enumerate(skeletons):
        own = rank == fabric.global_rank
        parts = _broadcast(fabric, tensor_specs(theirs), tensors if own else None, rank)
        everyone.append(mine if own else join_tensors(theirs, parts))
    return everyone


def gather_results(fabric: Fabric, work: Callable[[], Found]) -> list[Found]:
    """What ``work`` returns in every process, in rank order, as ``all_gather``; no process waits for one that fails.

    Raises:
        Exception: ``work`` fails in this process.
        RunError: ``work`` fails in another process; has that error's message, and its traceback as a note.
    """
    if fabric.world_size == 1:
        return [work()]
    found, failed, own = None, None, None
    try:
        found = work()
    except Exception as error:
        failed, own = (message_of(error), "".join(traceback.format_exception(error))), error
    everyone = all_gather(fabric, (failed, found))
    if own is not None:
        raise own
    for theirs, _ in everyone:
        if theirs is not None:
            elsewhere = RunError(theirs[0])
            elsewhere.add_note(theirs[1])
            raise elsewhere
    return [theirs for _, theirs in everyone]


def on_first(fabric: Fabric, work: Callable[[], Found]) -> Found | None:
    """Run ``work`` in the first process alone and return its result there; the others return ``None``.

    Raises:
        RunError: ``work`` has raised it; all processes raise the same error, so that none waits for the first.
    """
    found, error = None, None
    if fabric.is_global_zero:
        try:
            found = work()
        except RunError as refusal:
            error = refusal
    if (refused := fabric.broadcast(error)) is not None:
        raise refused
    return found


def wait_for_all(fabric: Fabric) -> None:
    """Wait for all processes, over gloo where there is such a group: a barrier would use NCCL on GPUs."""
    if fabric.world_size > 1:
        dist.all_gather_object([None] * dist.get_world_size(), None)


def from_first(fabric: Fabric, mine: Found) -> Found:
    """The first process's value, in every process, with its tensors on this process's device."""
    if fabric.world_size == 1:
        return mine
    first = fabric.global_rank == 0
    skeleton, tensors = split_tensors(mine) if first else (None, None)
    held = [skeleton]
    dist.broadcast_object_list(held, src=0)
    parts = _broadcast(fabric, tensor_specs(held[0]), tensors, 0)
    theirs: Found = mine if first else join_tensors(held[0], parts)
    return theirs


def _broadcast(fabric: Fabric, wanted: list[TensorSpec], tensors: list[Tensor] | None, source: int) -> list[Tensor]:
    """Send the tensors of process ``source`` in one flat message; the others pass ``None`` and receive them."""
    sizes = [_num_bytes(spec) for spec in wanted]
    if not sum(sizes):
        return [_laid_out(torch.empty(0, dtype=spec.dtype, device=fabric.device), spec) for spec in wanted]
    if tensors is not None:
        flat = torch.cat([_as_bytes(tensor).to(fabric.device) for tensor in tensors])
    else:
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=fabric.device)
    dist.broadcast(flat, src=source)
    if tensors is not None:
        return tensors
    parts = torch.split(flat, sizes)
    return [_laid_out(part.clone().view(spec.dtype), spec) for part, spec in zip(parts, wanted, strict=True)]


def _laid_out(flat: Tensor, spec: TensorSpec) -> Tensor:
    return flat.as_strided(spec.shape, spec.stride)


def _without_gaps(tensor: Tensor) -> Tensor:
    """The tensor itself if its memory has no gaps, otherwise a contiguous copy."""
    kept = tensor.detach()
    dense = torch.empty_like(kept, memory_format=torch.preserve_format, device="meta").stride() == kept.stride()
    return kept if dense else kept.contiguous()


def _as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in memory order."""
    kept = _without_gaps(tensor)
    return kept.as_strided((kept.numel(),), (1,)).view(torch.uint8)


def _num_bytes(spec: TensorSpec) -> int:
    return torch.Size(spec.shape).numel() * torch.empty((), dtype=spec.dtype).element_size()


def split_tensors(tree: Any) -> tuple[Any, list[Tensor]]:
    """A message with a ``TensorSpec`` in place of each tensor, and the tensors, in order."""
    tensors: list[Tensor] = []
    return _apart(tensors, tree), tensors


def _apart(tensors: list[Tensor], value: Any) -> Any:
    """The value with specs for its tensors, which are appended. (A closure that calls itself would keep them alive.)"""
    if isinstance(value, Tensor):
        tensors.append(value)
        return TensorSpec(len(tensors) - 1, tuple(value.shape), value.dtype, _without_gaps(value).stride())
    return _rebuilt(value, partial(_apart, tensors))


def join_tensors(skeleton: Any, tensors: list[Tensor]) -> Any:
    """The message that ``split_tensors`` split."""
    if isinstance(skeleton, TensorSpec):
        return tensors[skeleton.number]
    return _rebuilt(skeleton, partial(join_tensors, tensors=tensors))


def tensor_specs(skeleton: Any) -> list[TensorSpec]:
    """The specs in a message without its tensors, in order."""
    return list(_all_of(TensorSpec, skeleton))


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in a message, in order."""
    return list(_all_of(Tensor, tree))


def _all_of(kind: type[Found], value: Any) -> Iterator[Found]:
    if isinstance(value, kind):
        yield value
    else:
        for item in _items(value):
            yield from _all_of(kind, item)


def _items(value: Any) -> Iterable[Any]:
    """What is in a container; nothing in any other value."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return ()


def to_device(tree: Any, device: torch.device) -> Any:
    """A message with its tensors moved to ``device``."""

    def walk(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else _rebuilt(value, walk)

    return walk(tree)


def _rebuilt(value: Any, walk: Any) -> Any:
    """A container with ``walk`` applied to its items; any other value as it is."""
    if isinstance(value, dict):
        return {key: walk(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(walk(item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(walk(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: walk(getattr(value, f.name)) for f in fields(value)})
    return value
