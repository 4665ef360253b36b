"""Streams and graphs of the emulated device: visibility of operations between streams, and graphs that are replayed.

Every operation belongs to the stream of the moment. Streams and the host have vector clocks: an operation sees another
if its stream, or the host before it was launched, has waited for that one. Two operations on the same memory, of which
one writes, race if neither sees the other. Memory that was freed goes to the next tensor of its stream.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from benchmark.contract import emulated
from benchmark.contract.emulated import DeviceError, Emulation, Operation, here

Clock = dict["Stream", int]
_watches_operations = True


class Stream:
    """A stream that has launched ``ticks`` operations; ``clock`` says how far it has waited for others."""

    def __init__(self, device: Any = None) -> None:
        self.ticks, self.clock = 0, Clock()

    def wait_stream(self, other: "Stream") -> None:
        """Make later operations wait for those launched on the other stream."""
        merge(self.clock, other.clock)
        self.clock[other] = max(self.clock.get(other, 0), other.ticks)

    def synchronize(self) -> None:
        """Make the host wait."""
        merge(TIMES.host, self.clock)
        TIMES.host[self] = self.ticks


def merge(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        clock[stream] = max(clock.get(stream, 0), tick)


@dataclass
class Use:
    """An operation on a piece of memory."""

    stream: Stream
    tick: int
    what: str

    def is_seen_by(self, stream: Stream) -> bool:
        return (
            self.stream is stream or max(stream.clock.get(self.stream, 0), TIMES.host.get(self.stream, 0)) >= self.tick
        )


@dataclass
class Past:
    """History of a piece of memory: where it was allocated, the last writer, and later readers by stream."""

    home: Stream
    size: int
    written: Use
    read: dict[Stream, Use] = field(default_factory=dict)


class Times:
    """All streams' clocks, and the races that were found."""

    def __init__(self) -> None:
        self.host: Clock = {}
        self.main = self.now = Stream()
        self.races: Counter[str] = Counter()
        self.freed: dict[Stream, list[Past]] = {}

    def before(self, operation: Operation) -> None:
        """Check that an operation sees what it depends on."""
        if operation.facts.view:
            return
        stream = self.now
        merge(stream.clock, self.host)
        stream.ticks += 1
        use = Use(stream, stream.ticks, "")
        written = {id(one.memory) for one in operation.written}
        for memory in {id(one.memory): one.memory for one in operation.used}.values():
            past: Past | None = memory.past
            if past is None:
                continue
            change = id(memory) in written
            for other in (past.written, *(past.read.values() if change else ())):
                if not other.is_seen_by(stream):
                    self.races[f"{operation.facts.name} at {here()} does not wait for {other.what}"] += 1
            use.what = use.what or f"{operation.facts.name} at {here()}"
            if change:
                past.written, past.read = use, {}
            else:
                past.read[stream] = use

    def after(self, operation: Operation) -> None:
        """Record new memory and reuse of freed memory; the host has waited for copies and reads."""
        stream = self.now
        for one in operation.made:
            what = f"{operation.facts.name} at {here()}"
            size = one.near.untyped_storage().nbytes()
            one.memory.past = past = Past(stream, size, Use(stream, stream.ticks, what))
            for old in self.freed.pop(stream, []):
                if unseen := [use for use in (old.written, *old.read.values()) if not use.is_seen_by(stream)]:
                    self.races[f"{what} may get memory that {unseen[0].what} still uses"] += 1
            weakref.finalize(one.memory, self.died, past)
        if operation.waits:
            stream.synchronize()

    def died(self, past: Past) -> None:
        if past.home is not None and any(use.stream is not past.home for use in (past.written, *past.read.values())):
            self.freed.setdefault(past.home, []).append(past)


TIMES = Times()


class Graph:
    """A captured step. Capturing has no effect: afterwards all values are restored, and new tensors are NaN."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.calls: list[Operation] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def replay(self) -> None:
        """Run all operations again, on the current stream."""
        for one in self.calls:
            TIMES.before(one)
            with _disable_current_modes():
                for old, new in zip(leaves(one.result), leaves(one.func(*one.args, **one.kwargs)), strict=True):
                    if isinstance(old, Tensor) and memory(old) != memory(new):
                        old.copy_(new)


class Capture:
    """Records the operations of a graph, and undoes their effects."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.saved, self.new = graph, dict[int, tuple[Tensor, Tensor]](), dict[int, Tensor]()
        self.states = [(one, one.get_state()) for one in graph.generators]

    def before(self, operation: Operation) -> None:
        """Refuse host syncs and draws from other generators; save values that will be overwritten."""
        name = operation.facts.name
        if operation.waits or operation.uploads:
            raise DeviceError(f"{name}: operation not permitted when stream is capturing")
        if torch.Tag.nondeterministic_seeded in operation.func.tags:
            given = [one for one in operation.kwargs.values() if isinstance(one, torch.Generator)]
            known = {emulated.address(one) for one in self.graph.generators}
            if any(emulated.address(one) not in known for one in given):
                raise DeviceError(f"{name}: a generator that is not registered draws while the stream is capturing")
        for one in operation.written:
            if memory(one.near) not in self.new and memory(one.near) not in self.saved:
                whole = all_of(one.near)
                self.saved[memory(one.near)] = whole, whole.clone()

    def after(self, operation: Operation) -> None:
        for one in operation.made:
            self.new[memory(one.near)] = one.near
        if not operation.facts.view:
            self.graph.calls.append(operation)

    def undo(self) -> None:
        for whole, before in self.saved.values():
            whole.copy_(before)
        for near in self.new.values():
            spoil(near)
        for generator, state in self.states:
            generator.set_state(state)


def spoil(near: Tensor) -> None:
    """Fill memory with values that cannot be mistaken for results."""
    if near.is_floating_point():
        near.fill_(torch.nan)
    elif near.dtype != torch.bool:
        near.fill_(torch.iinfo(near.dtype).min)


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def all_of(tensor: Tensor) -> Tensor:
    """Return the whole storage of a tensor."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)


def leaves(result: Any) -> list[Any]:
    return list(emulated.leaves([result]))


@contextmanager
def stream(one: Stream | None) -> Iterator[None]:
    """Assign operations to a stream while the context is open."""
    before, TIMES.now = TIMES.now, one or TIMES.now
    try:
        yield
    finally:
        TIMES.now = before


@contextmanager
def streams(emulation: Emulation) -> Iterator[Times]:
    """Give the device streams and graphs; objects kept from earlier ones keep their history."""

    @contextmanager
    def graph(into: Graph, pool: Any, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # otherwise NCCL's watchdog thread breaks the capture
        capture = Capture(into)
        emulation.observers.append(capture)
        try:
            with names["stream"](stream):
                yield
        finally:
            emulation.observers.remove(capture)
            with torch.inference_mode():
                capture.undo()

    names: dict[str, Any] = {
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda device=None: TIMES.now,
        "device": lambda device: nullcontext(),
        "graph_pool_handle": object,
        "CUDAGraph": Graph,
        "graph": graph,
    }
    TIMES.races.clear()
    TIMES.freed.clear()
    emulation.observers.append(TIMES)
    with patch.multiple(emulated._backend, create=True, **names):
        yield TIMES
    emulation.observers.remove(TIMES)
