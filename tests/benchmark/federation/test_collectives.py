"""What processes tell each other: messages taken apart and put together, alone and between two real processes."""

from typing import Any

import pytest
import torch
from lightning import Fabric

from benchmark.federation.collectives import (
    all_gather,
    from_first,
    gather_results,
    join_tensors,
    split_tensors,
    tensors_in,
    to_device,
    wait_for_all,
)
from benchmark.federation.site import ClientState
from federations import plain_fabric
from two_processes import between_two


def message(rank: int = 0) -> Any:
    """Tensors of every type and layout, of each rank's own shapes and values, among plain data."""
    torch.manual_seed(rank)
    return {
        (0, rank): (torch.randn(2 + rank, 3), {"n": 3, "none": None, "word": "ä"}),
        "client": ClientState({"weight": torch.randn(4).bfloat16()}, [[{"step": torch.tensor(7 + rank)}]]),
        "types": [
            torch.tensor([True, False, True]),
            torch.tensor(2**40 + rank, dtype=torch.int64),
            torch.tensor(float("nan"), dtype=torch.float64),
            torch.randn(3, dtype=torch.float16),
            torch.tensor([255], dtype=torch.uint8),
        ],
        "empty": (torch.empty(0), torch.empty(0, 5, dtype=torch.int64), torch.empty(3, 0, dtype=torch.bool)),
        "transposed": torch.randn(3, 4).t(),
        "strided": torch.arange(12.0).view(3, 4)[:, ::2],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }


def same(a: Any, b: Any) -> bool:
    """Equal trees, tensors bit for bit with their types, shapes and order in memory."""
    (first, ours), (second, theirs) = split_tensors(a), split_tensors(b)
    numbers = range(len(ours))
    return join_tensors(first, numbers) == join_tensors(second, numbers) and all(
        (x.shape, x.dtype, x.contiguous().view(-1).view(torch.uint8).tolist())
        == (y.shape, y.dtype, y.contiguous().view(-1).view(torch.uint8).tolist())
        and torch.empty_like(x).stride() == torch.empty_like(y).stride()
        for x, y in zip(ours, theirs, strict=True)
    )


def test_messages_are_taken_apart_and_moved():
    """A message comes back as what it was, with the very tensors, or with these on another device."""
    whole = message()
    again = join_tensors(*split_tensors(whole))
    assert same(again, whole) and all(a is b for a, b in zip(tensors_in(again), tensors_in(whole), strict=True))
    assert type(again["client"]) is ClientState
    there = tensors_in(to_device(whole, torch.device("meta")))
    assert [(t.device.type, t.shape) for t in there] == [("meta", t.shape) for t in tensors_in(whole)]
    assert all_gather(plain_fabric(), whole)[0] is whole and from_first(plain_fabric(), whole) is whole


def fail(fabric: Fabric) -> str:
    """What each process is told where the second one fails, with an error of any kind."""

    def work() -> int:
        if fabric.global_rank == 1:
            raise MemoryError("out of memory")
        return 0

    try:
        gather_results(fabric, work)
    except Exception as error:
        return f"{type(error).__name__}: {error}; {'MemoryError' in ' '.join(getattr(error, '__notes__', []))}"
    return "nothing"


def test_nobody_waits_for_one_that_has_failed() -> None:
    first, second = between_two(fail)
    assert first == "RunError: MemoryError: out of memory; True"
    assert second == "MemoryError: out of memory; False"


def exchange(fabric: Fabric) -> dict[str, bool]:
    """Both collectives on every kind of message; whether each gave what it must."""
    rank = fabric.global_rank
    mine = message(rank)
    gathered, first = all_gather(fabric, mine), from_first(fabric, mine)
    uneven = all_gather(fabric, {7: torch.ones(3)} if rank else {})
    hollow = all_gather(fabric, [torch.empty(0, 2), {}, rank])
    twice = torch.zeros(3)
    apart = all_gather(fabric, [twice, twice])[1 - rank]
    apart[0] += 1.0
    source = torch.arange(3.0) + rank
    received = all_gather(fabric, source)[1 - rank]
    source += 10.0
    received += 1.0
    wait_for_all(fabric)
    return {
        "two processes": fabric.world_size == 2 and len(gathered) == 2,
        "in rank order": all(same(theirs, message(number)) for number, theirs in enumerate(gathered)),
        "own without a copy": gathered[rank] is mine,
        "from the first": same(first, message(0)) and (first is mine) == (rank == 0),
        "one side empty": uneven[0] == {} and uneven[1].keys() == {7} and uneven[1][7].tolist() == [1.0] * 3,
        "nothing but empty tensors": all(same(p, [torch.empty(0, 2), {}, r]) for r, p in enumerate(hollow)),
        "no memory shared": not apart[1].any() and received.tolist() == [2.0 - rank + k for k in range(3)],
    }


@pytest.mark.timeout(300)
def test_two_processes_exchange_everything():
    """With gloo, as runs on several CPU processes do: every type, shape and layout, in both directions."""
    for rank, found in enumerate(between_two(exchange)):
        assert [what for what, right in found.items() if not right] == [], rank
