"""A device that exists only in this process: its tensors have values, but do not lie on the CPU.

A tensor of the device wraps a tensor of the CPU, and a dispatch mode runs every operation on the wrapped tensors. A
program therefore computes the same bits as on the CPU, while torch and this mode see another device: an operation that
mixes tensors of both is refused, as on a GPU, and whatever makes the host wait is counted by file and line.

It has none of a GPU's kernels, allocator, autocast or processes: what runs here has not run on a GPU.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast
from unittest.mock import patch

import lightning
import torch
from lightning import Fabric
from lightning.fabric.accelerators.cpu import CPUAccelerator
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.federation.recording import INDEXING, reads_host

NAME = "emulated"
ONE_KIND = "Make it on the device (device=self.device), or register it as a buffer"
CPU_GENERATOR = "draw from self.generator, or from client.generator('a purpose')"

_aten = torch.ops.aten
_copies = (_aten._to_copy.default, _aten.copy_.default)
_indexed = {name.removeprefix("aten::") for name in INDEXING}
_no_scalars = {"cat", "stack", "index_select", "gather", "index_copy", "index_copy_"}  # all of their tensors count
_elsewhere = tuple(f"{Path(one.__file__).parent}/" for one in (torch, lightning) if one.__file__)
_generator = torch.Generator
_active: list["Emulation"] = []


class DeviceError(RuntimeError):
    """What a GPU would refuse."""


class CodeLine(NamedTuple):
    """A line of code: file, number, and the function that it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})" if self.file else "the backward pass"


@dataclass(eq=False)
class Allocation:
    """A block of the device's memory, which the tensors in it share. ``past`` is for observers."""

    past: Any = None


class DeviceTensor(Tensor):
    """A tensor of the device that wraps one of the CPU, ``near``."""

    near: Tensor
    memory: Allocation
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, near: Tensor, memory: Allocation | None = None) -> "DeviceTensor":
        """Around a tensor, in new memory if none is given."""
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            made: DeviceTensor = Tensor._make_wrapper_subclass(
                cls,
                near.size(),
                strides=near.stride(),
                storage_offset=near.storage_offset(),
                dtype=near.dtype,
                device=_PLACE,
            )
        made.near, made.memory = near, memory or Allocation()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Operations that no mode has intercepted, as in autograd's own threads."""
        if not _active:
            raise DeviceError(f"{func}: a tensor of the emulated device outlived it")
        with _active[-1]:
            return func(*args, **(kwargs or {}))

    def __repr__(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.near!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            with torch.no_grad():
                made = self.detach().clone()
            parameter = getattr(self, "_is_param", False)
            memo[id(self)] = torch.nn.Parameter(made, self.requires_grad) if parameter else made
        return memo[id(self)]

    def data_ptr(self) -> int:
        """Address of the values."""
        return self.near.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Storage of the values."""
        return self.near.untyped_storage()

    def tolist(self) -> Any:
        """The values; the host waits for them."""
        if _active:
            _active[-1].host_waits("tolist")
        return self.near.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """Refused, as on a GPU."""
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy it to the host")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()


class DeviceGenerator(_generator):
    """A generator of the device; it draws the numbers that one of the CPU would."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device."""
        return _PLACE


def address(generator: Any) -> int:
    """Identifies a generator: an operation gets the same one as another Python object."""
    return int(generator._cdata)


class _GeneratorKind(type):
    """``isinstance`` for the stand-in of ``torch.Generator``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _generator)


class _Generator(metaclass=_GeneratorKind):
    """Stands in for ``torch.Generator``, which cannot make one for a device written in Python."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != NAME:
            return _generator(device=device)
        made = DeviceGenerator()
        _active[-1].generators[address(made)] = made  # kept alive, and its address with it
        return made


class Facts(NamedTuple):
    """What the schema of an operation declares."""

    name: str
    composite: bool
    written: tuple[tuple[int, str], ...]
    returned: tuple[tuple[int, int, str], ...]
    view: bool


@cache
def facts(func: Any) -> Facts:
    """Which arguments an operation changes, and which of its results are arguments (result, position, name)."""
    schema = func._schema
    inputs = [(i, a.name, a.alias_info) for i, a in enumerate(schema.arguments)]
    written = tuple((i, name) for i, name, alias in inputs if alias is not None and alias.is_write)
    results = [(n, r.alias_info) for n, r in enumerate(schema.returns) if r.alias_info is not None]
    returned = tuple(
        (n, i, name)
        for n, result in results
        for i, name, alias in inputs
        if result.is_write and alias is not None and alias.before_set == result.before_set
    )
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    view = any(not result.is_write for _, result in results)
    return Facts(schema.name.removeprefix("aten::"), composite, written, returned, view)


@dataclass
class Operation:
    """An operation on the device, as observers see it.

    Args:
        func: the operation.
        args: its arguments; tensors of the device are unwrapped.
        kwargs: likewise.
        used: tensors of the device among its arguments.
        written: those of them that it changes.
        waits: whether the host waits for the device.
        uploads: whether it copies from the host.
        result: what it returned, unwrapped.
        made: the tensors that it made in memory of their own.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    used: list[DeviceTensor]
    written: list[DeviceTensor]
    waits: bool
    uploads: bool
    result: Any = None
    made: list[DeviceTensor] = field(default_factory=list)

    @property
    def facts(self) -> Facts:
        """What its schema declares."""
        return facts(self.func)


class Observer(Protocol):
    """Sees all operations on the device."""

    def before(self, operation: Operation) -> None:
        """Called before it runs."""

    def after(self, operation: Operation) -> None:
        """Called after it has run."""


class Emulation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The device, as long as it exists; see ``emulated``.

    ``reads`` counts the reads that the host waits for, ``uploads`` its copies to the device, by operation and place.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads, self.uploads = Counter[tuple[str, CodeLine]](), Counter[tuple[str, CodeLine]]()
        self.generators: dict[int, DeviceGenerator] = {}
        self.observers: list[Observer] = []

    def __enter__(self) -> Any:
        _active.append(self)
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) is made here and then moved
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        torch._C._set_only_lift_cpu_tensors(self._lifts)
        _active.pop()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]

    def host_waits(self, name: str) -> None:
        """Count a read."""
        self.reads[name, here()] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        known = facts(func)
        given = list(leaves((*args, *kwargs.values())))
        used = [one for one in given if isinstance(one, DeviceTensor)]
        asked = kwargs.get("device")
        goes = None if asked is None else torch.device(asked).type
        if not used and goes != NAME:
            if any(isinstance(one, _generator) and address(one) in self.generators for one in given):
                raise DeviceError(f"{known.name} at {here()}: a generator of the device draws a tensor of the CPU")
            return func(*args, **kwargs)
        if known.name == "prim::device":
            return _PLACE
        if known.composite and used:  # in inference mode it comes whole: see its parts
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        others = [one for one in given if isinstance(one, Tensor) and not isinstance(one, DeviceTensor)]
        if func not in _copies:
            self.refuse_mixture(known.name, given, args, used, others)
        near_args = tuple(map(inside, args))
        near_kwargs = {name: inside(one) for name, one in kwargs.items()}
        if asked is not None:
            near_kwargs["device"] = torch.device("cpu")
        if func is _aten.copy_.default:
            comes = not isinstance(args[0], DeviceTensor)
        else:
            comes = func is _aten._to_copy.default and goes == "cpu"
        uploads = func in _copies and bool(others) and not comes
        reads = bool(used) and reads_host(func, near_args)
        waits = comes or reads or (uploads and others[0].ndim > 0)
        written = [
            one
            for place, name in known.written
            for one in leaves([args[place] if place < len(args) else kwargs.get(name)])
            if isinstance(one, DeviceTensor)
        ]
        operation = Operation(func, near_args, near_kwargs, used, written, waits, uploads)
        for observer in self.observers:
            observer.before(operation)
        if waits and not uploads:
            self.host_waits(known.name)
        if uploads:
            self.uploads[known.name, here()] += 1
        near = func(*near_args, **near_kwargs)
        if isinstance(near, Tensor) and near._is_zerotensor():  # a zero of forward mode, without memory
            near = near.clone()
        operation.result = near
        if comes:
            result = near.clone() if func is _aten._to_copy.default and near is near_args[0] else near
            result = args[0] if func is _aten.copy_.default else result
        else:
            result = self.wrapped(operation, known, args, kwargs)
        for observer in self.observers:
            observer.after(operation)
        return result

    def refuse_mixture(
        self, name: str, given: Sequence[Any], args: Sequence[Any], used: list[DeviceTensor], others: list[Tensor]
    ) -> None:
        """Refuse a generator of the CPU, or tensors of it. A tensor without axes counts as a number in most operations.

        Raises:
            DeviceError: names the operation, the shapes and the place.
        """
        if any(isinstance(one, _generator) and address(one) not in self.generators for one in given):
            raise DeviceError(
                f"{name} at {here()}: a generator of the CPU draws a tensor of the device; {CPU_GENERATOR}"
            )
        for one in others if used else ():
            if name in _indexed and one.ndim and isinstance(args[0], DeviceTensor):
                raise DeviceError(
                    f"{name} at {here()}: positions {list(one.shape)} lie on the CPU, what they index on the device: "
                    f"every use copies them, and the host waits. {ONE_KIND}"
                )
            if one.ndim or name in _no_scalars:
                raise DeviceError(
                    f"{name} at {here()}: a tensor {list(one.shape)} lies on the CPU, another on the device. {ONE_KIND}"
                )

    def wrapped(self, operation: Operation, known: Facts, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result on the device: arguments changed in place, views, and new tensors."""
        memories = {one.near.untyped_storage()._cdata: one.memory for one in operation.used}
        wrap = partial(wrapped_in, memories, operation.made)
        if not known.returned:
            return wrap(operation.result)
        several = isinstance(operation.result, (list, tuple))
        results = list(operation.result) if several else [operation.result]
        kept = {n: args[place] if place < len(args) else kwargs[name] for n, place, name in known.returned}
        results = [kept[n] if n in kept else wrap(near) for n, near in enumerate(results)]
        return tuple(results) if several else results[0]


def wrapped_in(memories: Mapping[int, Allocation], made: list[DeviceTensor], near: Any) -> Any:
    """A result, wrapped; tensors that lie in none of the memories are added to ``made``."""
    if isinstance(near, (list, tuple)):
        return type(near)([wrapped_in(memories, made, one) for one in near])
    if not isinstance(near, Tensor):
        return near
    memory = memories.get(near.untyped_storage()._cdata)
    found = DeviceTensor(near, memory)
    if memory is None:
        made.append(found)
    return found


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and the values within lists and tuples."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves(value)
        else:
            yield value


def inside(value: Any) -> Any:
    """The value with the device's tensors unwrapped."""
    if isinstance(value, DeviceTensor):
        return value.near
    return type(value)(map(inside, value)) if type(value) in (list, tuple) else value


def here() -> CodeLine:
    """The innermost line of code that is not torch's, Lightning's or an observer's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file == __file__ or file.startswith((*_elsewhere, "<")) or frame.f_globals.get("_watches_operations")):
            return CodeLine(file, frame.f_lineno, frame.f_code.co_qualname)
        frame = cast(Any, frame.f_back)
    return CodeLine("", 0, "")


_watches_operations = True

_backend = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    _is_in_bad_fork=lambda: False,
    current_device=lambda: 0,
    device_count=lambda: 1,
    manual_seed=lambda seed: None,
    manual_seed_all=lambda seed: None,
    synchronize=lambda device=None: None,
    get_rng_state=lambda device=None: torch.zeros(16, dtype=torch.uint8),
    set_rng_state=lambda state, device=None: None,
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
)
"""What torch requires of a device's module; code with one stream needs no more than ``current_stream``."""
_backend.current_stream = lambda device=None: SimpleNamespace(synchronize=lambda: None)


class _Hooks(backend_registration._DummyPrivateUse1Hook):
    def has_primary_context(self, dev_id: int) -> bool:
        return True


def _make_known() -> None:
    """Register the device with torch; autograd looks for devices once per process, at the first backward pass."""
    if torch._C._get_privateuse1_backend_name() == "privateuseone":
        backend_registration._setup_privateuseone_for_python_backend(NAME, _backend, _Hooks())


_make_known()
_PLACE = torch.device(torch._C._get_privateuse1_backend_name(), 0)


def device() -> torch.device:
    """The device.

    Raises:
        DeviceError: another device has been registered in this way, or this one too late.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name != NAME:
        raise DeviceError(f"this process has the device {name!r} already, and cannot emulate a second one of its kind")
    return _PLACE


@contextmanager
def emulated() -> Iterator[Emulation]:
    """Within this context the device exists and computes; its tensors do not outlive it.

    Raises:
        DeviceError: see ``device``.
    """
    place = device()
    with patch.object(torch, "Generator", _Generator), Emulation() as emulation:
        try:
            torch.zeros((), device=place, requires_grad=True).square().backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise DeviceError(
                "the emulated device came too late: autograd does not take up a device after its first backward pass. "
                "Import benchmark.contract.checks before anything trains"
            ) from error
        yield emulation


class _Accelerator(CPUAccelerator):
    """The device as Fabric's accelerator."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing to set up."""


class _Fabric(Fabric):
    def autocast(self) -> AbstractContextManager[Any]:
        """No context: autocast is the only thing that Fabric does by the name of the accelerator."""
        return nullcontext()


def fabric(**precision: Any) -> Fabric:
    """One process on the device, in single precision or with the given precision plugin."""
    made = _Fabric(accelerator=_Accelerator(), strategy=SingleDeviceStrategy(device=device()), **precision)
    made.launch()
    return made


__all__ = [
    "CodeLine",
    "DeviceError",
    "DeviceTensor",
    "Emulation",
    "Observer",
    "Operation",
    "device",
    "emulated",
    "fabric",
]
