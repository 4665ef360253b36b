"""Which process visits whom, and what processes tell each other: results, states, and sums of uploads.

Tensors travel as flat bytes; all else is pickled.
"""

import io
import pickle
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning import Fabric
from torch import Tensor

from datamodules.common.errors import RunError, message_of
from methods.base import Upload, Visit
from methods.parts.aggregation import Summand, checked_weights

Found = TypeVar("Found")


def all_gather(fabric: Fabric, mine: Any) -> list[Any]:
    """The values of all processes, in rank order: this one's as it is, others' with tensors on its device.

    Args:
        fabric: launched.
        mine: this process's value: dicts, lists, tuples and dataclasses of tensors and plain values.
    """
    if fabric.world_size == 1:
        return [mine]
    skeleton, tensors = split_tensors(mine)
    tensors = [_without_gaps(tensor) for tensor in tensors]
    # The order in which kernels sum may depend on strides, so they travel, too.
    layouts = [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in tensors]
    messages: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(messages, (skeleton, layouts))
    values = []
    for rank, (their_skeleton, their_layouts) in enumerate(messages):
        sizes = [shape.numel() * dtype.itemsize for shape, dtype, _ in their_layouts]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=fabric.device)
        if rank == fabric.global_rank and tensors:
            torch.cat([_as_bytes(tensor).to(fabric.device) for tensor in tensors], out=flat)
        if len(flat):
            dist.broadcast(flat, src=rank)
        if rank == fabric.global_rank:
            values.append(mine)
            continue
        parts = zip(torch.split(flat, sizes), their_layouts, strict=True) if sizes else ()
        received = [part.clone().view(dtype).as_strided(shape, stride) for part, (shape, dtype, stride) in parts]
        values.append(join_tensors(their_skeleton, received))
    return values


def gather_results(fabric: Fabric, work: Callable[[], Found]) -> list[Found]:
    """What ``work`` returns in every process, in rank order, as ``all_gather``; no process waits for one that fails.

    Raises:
        Exception: ``work`` fails in this process.
        RunError: ``work`` fails in another process: its ``RunError``, or one with its message; has a note with the
            traceback.
    """
    if fabric.world_size == 1:
        return [work()]
    try:
        result = work()
    except Exception as error:
        run_error = error if isinstance(error, RunError) else RunError(message_of(error))
        all_gather(fabric, (run_error, traceback.format_exc(), None))
        raise
    messages = all_gather(fabric, (None, "", result))
    for failure, trace, _ in messages:
        if failure is not None:
            failure.add_note(trace)
            raise failure
    return [theirs for *_, theirs in messages]


def on_first(fabric: Fabric, work: Callable[[], Found]) -> Found | None:
    """Run ``work`` in the first process alone and return its result there; the others return ``None``.

    Raises:
        Exception, RunError: see ``gather_results``.
    """
    found: list[Found] = []
    gather_results(fabric, lambda: found.append(work()) if fabric.is_global_zero else None)
    return found[0] if found else None


def wait_for_all(fabric: Fabric) -> None:
    """Wait for all processes, over gloo where there is such a group: a barrier would use NCCL on GPUs."""
    all_gather(fabric, None)


def from_first(fabric: Fabric, mine: Found) -> Found:
    """The first process's value, in every process; see ``all_gather``."""
    return all_gather(fabric, mine if fabric.is_global_zero else None)[0]


def spread(fabric: Fabric, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Results of all items, in order: every rank works on its share and gets the results of the others."""
    ranks, rank = fabric.world_size, fabric.global_rank

    def mine() -> dict[int, Any]:
        return {i: work(item) for i, item in enumerate(items) if i % ranks == rank}

    results = {i: result for part in gather_results(fabric, mine) for i, result in part.items()}
    return [results[i] for i in sorted(results)]


def assign(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """Split visits over ranks so that loads are balanced; all visits of a client stay on one rank, in order.

    Clients are assigned from the largest (images times visits) down, each to the rank with the smallest load.
    """
    load: dict[int, int] = {}
    for visit in visits:
        load[visit.client] = load.get(visit.client, 0) + max(visit.size, 1)
    totals, owner = [0] * ranks, {}
    for client in sorted(load, key=lambda c: (-load[c], c)):
        owner[client] = min(range(ranks), key=lambda r: (totals[r], r))
        totals[owner[client]] += load[client]
    return [[v for v in visits if owner[v.client] == rank] for rank in range(ranks)]


class JointMean:
    """The mean of a round's uploads whose tensors stay in the processes where they were made (``--sums by_rank``).

    Each process adds up its own uploads in float64, in the order of the clients; the sums are joined in the order of
    the ranks. So a number of processes always gives the same bits, and another one differs by the rounding of float64.

    Args:
        fabric: launched.
        like: the server's shared tensors, for names and types.
    """

    def __init__(self, fabric: Fabric, like: Mapping[str, Tensor]) -> None:
        self.fabric, self.like = fabric, like
        self.uploads: dict[tuple[int, int], Mapping[str, Tensor]] = {}  # of this process, by client and repeat

    def take(self, upload: Upload | None) -> Upload | None:
        """Keep the tensors of an upload of this process; what is left of it goes to all processes."""
        if upload is None:
            return None
        self.uploads[upload.visit.client, upload.visit.repeat] = upload.tensors
        return replace(upload, tensors={}, bytes=upload.num_bytes)

    def for_server(self, upload: Upload) -> Upload:
        """The upload as the server meets it: of its tensors there is only the mean with others'."""
        return replace(upload, tensors=cast(dict[str, Tensor], Summand(self, upload.visit)))

    def mean(self, parts: Sequence[Summand], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
        """Weighted mean, in the types that ``weighted_mean`` gives. All processes ask for it together.

        Raises:
            RunError: weights that cannot be normalised, or several for one upload.
        """
        checked = checked_weights(parts, weights).tolist()
        weight_of = {(part.visit.client, part.visit.repeat): w for part, w in zip(parts, checked, strict=True)}
        if len(weight_of) < len(parts):
            raise RunError("aggregation: an upload is averaged twice (--sums by_rank); give each upload one weight")
        own: dict[str, Tensor] = {}
        for key in sorted(self.uploads):
            if weight := weight_of.get(key):
                for name, value in self.uploads[key].items():
                    wide = value.to(torch.float64)
                    own[name] = own[name].add_(wide, alpha=weight) if name in own else wide * weight
        total: dict[str, Tensor] = {}
        for sums in all_gather(self.fabric, own):
            total |= {name: total[name] + value if name in total else value for name, value in sums.items()}
        total_weight = fsum(weight_of.values())
        return {
            name: (total[name] / total_weight).to(like.dtype if like.is_floating_point() else torch.float32)
            for name, like in self.like.items()
        }


def _without_gaps(tensor: Tensor) -> Tensor:
    """The tensor itself if its memory has no gaps, otherwise a copy."""
    dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return tensor.detach() if dense else tensor.detach().contiguous()


def _as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor without gaps, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def split_tensors(tree: Any) -> tuple[bytes, list[Tensor]]:
    """A message with numbers in place of its tensors, pickled, and the tensors, in order."""
    tensors: list[Tensor] = []

    def number(value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        tensors.append(value)
        return len(tensors) - 1

    pickler = pickle.Pickler(file := io.BytesIO())
    pickler.persistent_id = number  # type: ignore[method-assign]
    pickler.dump(tree)
    return file.getvalue(), tensors


def join_tensors(skeleton: bytes, tensors: Sequence[Tensor]) -> Any:
    """The message that ``split_tensors`` split."""
    unpickler = pickle.Unpickler(io.BytesIO(skeleton))
    unpickler.persistent_load = tensors.__getitem__  # type: ignore[method-assign]
    return unpickler.load()


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in a message, in order."""
    return split_tensors(tree)[1]


def to_device(tree: Any, device: torch.device) -> Any:
    """A message with its tensors moved to ``device``."""
    skeleton, tensors = split_tensors(tree)
    return join_tensors(skeleton, [tensor.to(device) for tensor in tensors])
