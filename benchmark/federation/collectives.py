"""Messages between processes: tensors travel as flat bytes, only their names and shapes are pickled."""

import io
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from lightning import Fabric
from torch import Tensor

from datamodules.common.errors import RunError, message_of

Found = TypeVar("Found")


class Layout(NamedTuple):
    """How a tensor lies in memory, without gaps: the order in which kernels sum may depend on its strides."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]


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
    dist.all_gather_object(skeletons, (skeleton, list(map(_layout, tensors))))
    everyone = []
    for rank, (theirs, layouts) in enumerate(skeletons):
        own = rank == fabric.global_rank
        parts = _broadcast(fabric, layouts, tensors if own else None, rank)
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
    skeleton, tensors = split_tensors(mine) if first else (b"", [])
    held: list[Any] = [skeleton, list(map(_layout, tensors))]
    dist.broadcast_object_list(held, src=0)
    parts = _broadcast(fabric, held[1], tensors if first else None, 0)
    theirs: Found = mine if first else join_tensors(held[0], parts)
    return theirs


def _broadcast(fabric: Fabric, wanted: list[Layout], tensors: list[Tensor] | None, source: int) -> list[Tensor]:
    """Send the tensors of process ``source`` in one flat message; the others pass ``None`` and receive them."""
    sizes = [torch.Size(one.shape).numel() * one.dtype.itemsize for one in wanted]
    if tensors is not None:
        flat = torch.cat([_as_bytes(tensor).to(fabric.device) for tensor in tensors]) if tensors else torch.empty(0)
    else:
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=fabric.device)
    if sum(sizes):
        dist.broadcast(flat, src=source)
    if tensors is not None:
        return tensors
    parts = zip(torch.split(flat, sizes), wanted, strict=True) if sizes else ()
    return [part.clone().view(one.dtype).as_strided(one.shape, one.stride) for part, one in parts]


def _without_gaps(tensor: Tensor) -> Tensor:
    """The tensor itself if its memory has no gaps, otherwise a contiguous copy."""
    kept = tensor.detach()
    dense = torch.empty_like(kept, memory_format=torch.preserve_format, device="meta").stride() == kept.stride()
    return kept if dense else kept.contiguous()


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tensor.dtype, _without_gaps(tensor).stride())


def _as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in memory order."""
    kept = _without_gaps(tensor)
    return kept.as_strided((kept.numel(),), (1,)).view(torch.uint8)


class _Splitter(pickle.Pickler):
    """Pickles a message with numbers in place of its tensors, and keeps the tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        """The number of a tensor."""
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Joiner(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        """The tensor of a number."""
        return self.tensors[number]


def split_tensors(tree: Any) -> tuple[bytes, list[Tensor]]:
    """A message without its tensors, and the tensors, in order."""
    splitter = _Splitter(file := io.BytesIO())
    splitter.dump(tree)
    return file.getvalue(), splitter.tensors


def join_tensors(skeleton: bytes, tensors: Sequence[Tensor]) -> Any:
    """The message that ``split_tensors`` split."""
    return _Joiner(io.BytesIO(skeleton), tensors).load()


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in a message, in order."""
    return split_tensors(tree)[1]


def to_device(tree: Any, device: torch.device) -> Any:
    """A message with its tensors moved to ``device``."""
    skeleton, tensors = split_tensors(tree)
    return join_tensors(skeleton, [tensor.to(device) for tensor in tensors])
