"""Five methods in slots on an emulated device with streams and graphs: bits, races, what cannot be captured.

Tensors of the device wrap tensors of the CPU, on which a dispatch mode runs every operation, so that it computes the
CPU's bits. As on a GPU, no operation takes tensors of both, a stream sees what another has done only once it has waited
for it, freed memory goes to the next tensor of its stream, and a captured step runs when it is replayed. Nothing here
has run on a GPU.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from lightning import Fabric
from lightning.fabric.accelerators.cpu import CPUAccelerator
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmark.federation import fit
from benchmark.federation.recording import reads_host
from datamodules.common.errors import RunError
from federations import different, half_trained, rounds_until, tiny_federation
from methods.fedavg import FedAvg
from methods.models import cnn

NAME = "emulated"
aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
REAL = torch.Generator


class DeviceTensor(Tensor):
    """A tensor of the device around one of the CPU, ``near``; ``memory`` is the block that it lies in."""

    near: Tensor
    memory: "Memory"
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, near: Tensor, memory: "Memory") -> "DeviceTensor":
        form = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype, "device": PLACE}
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            made: DeviceTensor = Tensor._make_wrapper_subclass(cls, near.size(), **form)
        made.near, made.memory = near, memory
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        with DEVICE:  # in autograd's own threads
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = self.detach().clone()
            parameter = getattr(self, "_is_param", False)
            memo[id(self)] = torch.nn.Parameter(made, self.requires_grad) if parameter else made
        return memo[id(self)]

    def data_ptr(self) -> int:
        return self.near.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.near.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()


class DeviceGenerator(REAL):
    device = property(lambda self: PLACE)  # type: ignore[assignment]


def generator(device: Any = "cpu") -> Any:
    """Stands in for ``torch.Generator``, which cannot make one for a device written in Python."""
    if torch.device(device).type != NAME:
        return REAL(device=device)
    made = DeviceGenerator()
    return DEVICE.generators.setdefault(made._cdata, made)


class Stream:
    """A stream that has launched ``ticks`` operations; ``clock`` says how far it has waited for others."""

    def __init__(self, device: Any = None) -> None:
        self.ticks, self.clock = 0, dict[Stream, int]()

    def wait_stream(self, other: "Stream") -> None:
        merge(self.clock, other.clock | {other: other.ticks})

    def synchronize(self) -> None:
        merge(DEVICE.host, self.clock | {self: self.ticks})


def merge(clock: dict[Stream, int], other: dict[Stream, int]) -> None:
    clock |= {stream: max(clock.get(stream, 0), tick) for stream, tick in other.items()}


Uses = dict[Stream, tuple[int, str]]
"""The last operations of streams: tick and name."""


class Memory:
    """A block of memory: which operation has written it, and which have read it since."""

    def __init__(self) -> None:
        self.written, self.read = Uses(), Uses()
        weakref.finalize(self, DEVICE.freed.setdefault(DEVICE.now, []).extend, (self.written, self.read))

    def use(self, name: str, writes: bool) -> None:
        """Note a race with what was not waited for, and then this operation."""
        for uses in (self.written, self.read) if writes else (self.written,):
            DEVICE.require_seen(uses, name)
        if writes:
            self.written.clear()
            self.read.clear()
        (self.written if writes else self.read)[DEVICE.now] = DEVICE.now.ticks, name


def written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation changes."""
    known = enumerate(func._schema.arguments)
    places = [(place, one.name) for place, one in known if one.alias_info is not None and one.alias_info.is_write]
    found = tree_leaves([args[place] if place < len(args) else kwargs.get(name) for place, name in places])
    return [one for one in found if isinstance(one, Tensor)]


@cache
def is_view(func: Any) -> bool:
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def real(near: Tensor) -> Tensor:
    return near.clone() if near._is_zerotensor() else near  # a zero of forward mode, without memory


class Device(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations, and notes the ``races`` among them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generators, self.host = dict[int, DeviceGenerator](), dict[Stream, int]()
        self.main = self.now = Stream()
        self.races, self.freed = Counter[str](), dict[Stream, list[Uses]]()
        self.graph: Graph | None = None

    def require_seen(self, uses: Uses, name: str) -> None:
        """Note a race with every use that the stream, or the host before it launched this, has not waited for."""
        for stream, (tick, other) in uses.items():
            if stream is not self.now and max(self.now.clock.get(stream, 0), self.host.get(stream, 0)) < tick:
                self.races[f"{name} does not wait for {other}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name()
        given = tree_leaves((args, kwargs))
        used = [one for one in given if isinstance(one, DeviceTensor)]
        asked = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        if func.namespace == "profiler" or (not used and asked != NAME):
            return func(*args, **kwargs)
        if func is torch.ops.prim.device.default:
            return PLACE
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") and used:
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        others = [one for one in given if isinstance(one, Tensor) and not isinstance(one, DeviceTensor)]
        generators = [one._cdata for one in given if isinstance(one, REAL)]
        mixed = bool(used) and func not in COPIES and any(one.ndim for one in others)
        if mixed or not self.generators.keys() >= set(generators):
            raise RuntimeError(f"{name}: a tensor or generator of the CPU meets one of the device")
        near_args, near_kwargs = tree_map_only(DeviceTensor, lambda one: one.near, (args, kwargs))
        if asked is not None:
            near_kwargs["device"] = torch.device("cpu")
        comes = not isinstance(args[0], DeviceTensor) if func is COPIES[1] else func is COPIES[0] and asked == "cpu"
        uploads = func in COPIES and bool(others) and not comes
        waits = comes or (bool(used) and reads_host(func, near_args)) or uploads
        if self.graph is not None:
            self.graph.allow(func, near_args, near_kwargs, waits, generators)
        call = func, near_args, near_kwargs, {storage(one.near): one.memory for one in used}
        blocks = call[-1]
        if not is_view(func):
            self.launch(*call)
        result = tree_map_only(Tensor, real, func(*near_args, **near_kwargs))
        if waits:
            self.now.synchronize()
        if self.graph is not None and not is_view(func):
            self.graph.calls.append((call, result))
        if comes:
            return args[0] if func is COPIES[1] else result.clone() if result is near_args[0] else result
        same = {id(one.near): one for one in used}
        return tree_map_only(
            Tensor, lambda near: same[id(near)] if id(near) in same else self.wrapped(near, blocks, name), result
        )

    def launch(self, func: Any, args: Any, kwargs: Any, blocks: dict[int, Memory]) -> None:
        merge(self.now.clock, self.host)
        self.now.ticks += 1
        changed = {storage(one) for one in written(func, args, kwargs)}
        for key, memory in blocks.items():
            memory.use(func.name(), key in changed)

    def wrapped(self, near: Tensor, blocks: dict[int, Memory], name: str) -> DeviceTensor:
        if storage(near) not in blocks:
            freed = self.freed.setdefault(self.now, [])  # a list that finalizers hold
            while freed:
                self.require_seen(freed.pop(), f"{name}, in memory that was freed,")
            blocks[storage(near)] = Memory()
            blocks[storage(near)].use(name, True)
            if self.graph is not None:
                self.graph.made.append(near)
        return DeviceTensor(near, blocks[storage(near)])


class Graph:
    """A captured step. Capturing has no effect: afterwards all values are restored, and new tensors are NaN."""

    def __init__(self) -> None:
        self.generators, self.calls, self.made = list[Any](), list[Any](), list[Tensor]()
        self.saved = dict[int, tuple[Tensor, Tensor]]()

    def register_generator_state(self, generator: Any) -> None:
        self.generators.append(generator)

    def allow(self, func: Any, args: Any, kwargs: Any, waits: bool, generators: list[int]) -> None:
        if waits or not {one._cdata for one in self.generators} >= set(generators):
            raise RuntimeError(f"{func.name()}: operation not permitted when stream is capturing")
        for one in written(func, args, kwargs):
            if storage(one) not in self.saved:
                whole = one.as_strided((one.untyped_storage().nbytes() // one.element_size(),), (1,), 0)
                self.saved[storage(one)] = whole, whole.clone()

    def replay(self) -> None:
        for call, result in self.calls:
            DEVICE.launch(*call)
            func, args, kwargs, _ = call
            with _disable_current_modes():
                for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and storage(old) != storage(new):
                        old.copy_(new)


@contextmanager
def capturing(graph: Graph, pool: Any, stream: Stream, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"  # otherwise NCCL's watchdog thread breaks the capture
    DEVICE.graph, states = graph, [one.get_state() for one in graph.generators]
    try:
        with on_stream(stream):
            yield
    finally:
        DEVICE.graph = None
        with torch.inference_mode(), _disable_current_modes():
            for whole, before in graph.saved.values():
                whole.copy_(before)
            for near in graph.made:
                near.fill_(torch.nan if near.is_floating_point() else 0)
            for generator, state in zip(graph.generators, states, strict=True):
                generator.set_state(state)


@contextmanager
def on_stream(one: Stream | None) -> Iterator[None]:
    before, DEVICE.now = DEVICE.now, one or DEVICE.now
    try:
        yield
    finally:
        DEVICE.now = before


class Hooks(backend_registration._DummyPrivateUse1Hook):
    def has_primary_context(self, dev_id: int) -> bool:
        return True


def nothing(*args: Any) -> None:
    pass


BACKEND = SimpleNamespace(
    **{name: nothing for name in ("manual_seed", "manual_seed_all", "set_rng_state")},
    **{"is_initialized": lambda: True, "is_available": lambda: True, "_is_in_bad_fork": lambda: False},
    **{"current_device": lambda: 0, "device_count": lambda: 1, "get_amp_supported_dtype": lambda: [torch.bfloat16]},
    **{"get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8), "graph_pool_handle": object},
    **{"Stream": Stream, "stream": on_stream, "current_stream": lambda device=None: DEVICE.now},
    **{"device": lambda device: nullcontext(), "CUDAGraph": Graph, "graph": capturing},
)
backend_registration._setup_privateuseone_for_python_backend(NAME, BACKEND, Hooks())  # before any backward pass
PLACE, DEVICE = torch.device(NAME, 0), Device()


class Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        pass


class OnDevice(Fabric):
    autocast = nullcontext  # type: ignore[assignment]


def on_the_device(method: Any, **engine: Any) -> Any:
    """Rows and server of two rounds in slots, and whether steps were replayed."""
    half_trained()
    DEVICE.races.clear()
    for freed in DEVICE.freed.values():
        freed.clear()
    fabric = OnDevice(accelerator=Accelerator(), strategy=SingleDeviceStrategy(device=PLACE))
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) is made on the CPU and then moved
    try:
        with patch.object(torch, "Generator", generator), DEVICE:
            federation = tiny_federation(method, fabric, **engine)
            rows = rounds_until(federation, 2)
            replayed = bool(federation.engine.counts().get("replayed"))
            return rows, {name: value.cpu() for name, value in federation.server.items()}, replayed
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)


@cache
def on_the_cpu(method: Any) -> Any:
    """The same in the reference engine, with convolutions and rates computed as a device does."""
    one_kernel = patch.object(cnn, "conv_pool", lambda conv, x: cnn.pool(conv(x)))
    with one_kernel, patch.object(fit, "reads_single", lambda parameters: True):
        federation = tiny_federation(method)
        return rounds_until(federation, 2), federation.server


@pytest.mark.parametrize("replay", [True, False], ids=["replay", "eager"])
@pytest.mark.parametrize("method", ["fedavg", "local_ssl", "fl2", "fedmatch", "feddure"])
def test_slots_on_a_device(method: str, replay: bool) -> None:
    """The bits of the reference engine on the CPU, and no race."""
    expected_rows, expected = on_the_cpu(method)
    rows, server, replayed = on_the_device(method, slots=3, replay=replay)
    assert different(server, expected) == [] and rows == expected_rows
    assert DEVICE.races == {} and replayed is replay


@pytest.mark.parametrize(
    "fault",
    [lambda: patch("datamodules.base.finished"), lambda: patch.object(Stream, "wait_stream")],
    ids=["unfinished layouts", "streams that do not wait"],
)
def test_a_race_is_found(fault: Callable[[], Any]) -> None:
    """Whoever leaves out that a stream, or the host, waits."""
    with fault():
        on_the_device("local_ssl", slots=3, replay=False)
    assert DEVICE.races


class ReadsLoss(FedAvg):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * min(1.0, float(loss.detach()))


def test_what_cannot_be_captured_is_refused() -> None:
    with pytest.raises(RunError, match=r"ReadsLoss.*cannot be captured.*the contract names the line"):
        on_the_device(ReadsLoss, slots=1)
