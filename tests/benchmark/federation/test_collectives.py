"""What processes tell each other: messages, failures, and the joint mean of uploads that stay where they were made."""

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
    wait_for_all,
)
from benchmark.federation.loop import Federation
from benchmark.federation.site import ClientState
from datamodules.common.errors import RunError
from federations import few_data, make_federation, make_method, plain_fabric, run_rows, tiny_federation
from methods.fed_consist import FedConsist
from methods.fedavg import FedAvg
from methods.parts.aggregation import weighted_mean
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
        ],
        "empty": (torch.empty(0), torch.empty(0, 5, dtype=torch.int64), torch.empty(3, 0, dtype=torch.bool)),
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


def failure(fabric: Fabric) -> str:
    """What a process is told where the second one fails, with an error of any kind."""

    def work() -> None:
        if fabric.global_rank == 1:
            raise MemoryError("out of memory")

    with pytest.raises(Exception, match="out of memory") as error:
        gather_results(fabric, work)
    return f"{type(error.value).__name__} {'MemoryError' in ' '.join(getattr(error.value, '__notes__', []))}"


def exchange(fabric: Fabric) -> dict[str, bool]:
    """All collectives on every kind of message; whether each gave what it must."""
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
        "nobody waits for one that has failed": failure(fabric) == ("MemoryError False" if rank else "RunError True"),
        "no memory shared": not apart[1].any() and received.tolist() == [2.0 - rank + k for k in range(3)],
    }


@pytest.mark.timeout(300)
def test_two_processes_exchange_everything():
    """With gloo, as runs on several CPU processes do: every type, shape and layout, in both directions."""
    for rank, found in enumerate(between_two(exchange)):
        assert [what for what, right in found.items() if not right] == [], rank


def tensors_of(run):
    return {name: value.tolist() for name, value in run.server.items()}


@pytest.mark.parametrize("method", ["fedavg", "cbafed"])
def test_a_run_is_that_with_ordered_sums_but_for_roundings(method):
    ordered, joint, slots = (
        tiny_federation(method, **engine) for engine in ({}, {"sums": "by_rank"}, {"sums": "by_rank", "slots": 3})
    )
    assert joint.joins_sums and not ordered.joins_sums
    rows, others = run_rows(ordered), run_rows(joint)
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        assert [row[k] for k in ("bytes_up", "steps")] == [other[k] for k in ("bytes_up", "steps")]
    for name, value in ordered.server.items():
        assert joint.server[name].dtype == value.dtype
        assert torch.allclose(joint.server[name].double(), value.double(), rtol=1e-3, atol=1e-5), name
    assert run_rows(slots) == others and tensors_of(slots) == tensors_of(joint)


def joint_runs(fabric):
    """Rows, last models and clients' states, where weights are numbers of images and where they depend on others."""
    found = []
    for method in (FedAvg, FedConsist):
        data = few_data(9, 9 if method is FedAvg else 2)
        run = Federation(make_method(method), data, data.roster(0), fabric, rounds=2, seed=0, sums="by_rank")
        rows = run_rows(run)
        momenta = {k: [t.double().sum().item() for t in split_tensors(run.clients[k])[1]] for k in sorted(run.clients)}
        found.append((rows, tensors_of(run), momenta))
    return found


@pytest.mark.timeout(300)
def test_all_processes_come_to_the_same_bits_and_another_number_of_them_rounds_differently():
    """With nine clients: processes have different numbers of them, and one of two sends its states in two messages."""
    alone = joint_runs(plain_fabric())
    one, other = between_two(joint_runs)
    assert one == other
    for (_, server, momenta), (_, expected, kept) in zip(one, alone, strict=True):
        assert momenta.keys() == kept.keys() and all(momenta.values())
        for name, value in server.items():
            assert torch.allclose(torch.tensor(value), torch.tensor(expected[name]), rtol=1e-3, atol=1e-5), name


class Reads(FedAvg):
    """Reads one upload, which it therefore needs."""

    def aggregate(self, uploads):
        uploads[0].tensors["model.conv1.bias"]


class Peeks(FedAvg):
    """Does so, and says that it needs the mean."""

    uploads_needed = "mean"
    aggregate = Reads.aggregate


class Twice(FedAvg):
    """Averages an upload with itself."""

    uploads_needed = "mean"

    def aggregate(self, uploads):
        self.load_tensors(weighted_mean([uploads[0].tensors] * 2, [1.0, 1.0]))


def test_a_method_that_needs_more_than_the_mean_says_so_or_is_told():
    """A class that overrides ``aggregate`` needs each upload, unless it says otherwise."""
    make_federation(Reads, few_data(2), 1, sums="by_rank").run()
    for cls, told in ((Peeks, "client 0.*uploads_needed"), (Twice, "averaged twice")):
        with pytest.raises(RunError, match=rf"{cls.__name__}\.aggregate, round 0: .*{told}"):
            make_federation(cls, few_data(2), 1, sums="by_rank").run()
