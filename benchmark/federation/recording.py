"""Records one training step as the list of tensor operations that it runs, and runs that list again.

A recorded step reads and writes the same memory every time: whoever replays it first copies the next batch, state and
numbers into the tensors that the step was recorded with. What Python decided while it was recorded stays decided:
branches, loop counts, and every Python number that entered an operation.

On CUDA the list is a CUDA graph. On the CPU it is a list of calls that keeps to the rules of a CUDA graph, slowly: the
test that a step may be captured.
"""

import os
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from datamodules.common.errors import RunError

# Operations that read values inside their kernels, on CUDA too, which torch does not tag.
_UNTAGGED = {
    "aten::_linalg_check_errors",
    "aten::_linalg_eigh",
    "aten::_linalg_svd",
    "aten::embedding_renorm_",
    "aten::histc",
    "aten::isin.Tensor_Tensor",
    "aten::linalg_matrix_exp",
    "aten::masked_scatter_backward",
    "aten::multinomial",
    "aten::normal.Tensor_Tensor",
    "aten::normal.float_Tensor",
}
# Operations whose shapes depend on data only if an index is a mask.
_INDEXING = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
}
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Methods that give data to Python without any operation, where the tensor is on the CPU already.
_METHODS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.cpu}


class Recording(ABC):
    """A step that was recorded."""

    @abstractmethod
    def replay(self) -> None:
        """Run the step again, on what its tensors hold now. Draws go on from where the generators stand."""


def record(
    step: Callable[[], object],
    device: torch.device,
    generators: Sequence[torch.Generator] = (),
    stream: torch.cuda.Stream | None = None,
    pool: Any = None,
) -> Recording:
    """Run a step once and record it meanwhile.

    Run the step at least once without recording before, on CUDA on the same ``stream``: an optimiser's first step makes
    its state, and a replay would make it anew. The tensors that the step works on must outlive the recording, at the
    same place: state is copied into them, never exchanged for others. The step clears its gradients itself.

    Args:
        step: zero_grad, forward, backward, optimiser and all that belongs to them.
        device: where the step computes.
        generators: the only ones that it may draw from. Seed them anew in place; a replay knows no others.
        stream: for CUDA, where the step is captured; a new one if not given. A replay runs on the current stream.
        pool: for CUDA, memory for recordings that never run at the same time (``torch.cuda.graph_pool_handle``).

    Raises:
        RunError: the step reads a number back to the host, makes a shape that depends on data, or draws from another
            generator. It stops there, half done.
    """
    if device.type == "cpu":
        return OperationList(step, generators)
    return CudaGraph(step, device, generators, stream, pool)


@contextmanager
def count_host_reads() -> Iterator[Counter[str]]:
    """Count what reads numbers back to the host or makes shapes that depend on data, by name of the operation.

    The rules are those of ``record``, which would raise; here all runs to its end.

    While anything looks at operations, torch derives some functions by other formulas: tangents of norm layers round
    otherwise, the backward pass of ``prod`` reads nothing. Steps that run in here take the formulas of a recording.
    """
    found: Counter[str] = Counter()

    def count(name: str) -> None:
        found[name] += 1

    with _Methods(count), _Operations(count):
        yield found


class CudaGraph(Recording):
    """A step as a CUDA graph; see ``record``. Capturing runs nothing, so the graph is replayed once.

    Nobody looks at the operations meanwhile, which would take longer than they do: CUDA itself refuses what cannot be
    captured, without a line. Draws from CUDA's global generator go unnoticed. A recording on the CPU names both.

    Adam must be ``capturable``, and a rate in a tensor float32: fused kernels take no other on CUDA.
    """

    def __init__(
        self,
        step: Callable[[], object],
        device: torch.device,
        generators: Sequence[torch.Generator],
        stream: torch.cuda.Stream | None,
        pool: Any = None,
    ) -> None:
        accelerator: Any = torch.get_device_module(device)
        self.graph = accelerator.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        with accelerator.device(device):
            stream = stream or accelerator.Stream()
            try:  # other threads, as those that watch over NCCL, may go on asking CUDA
                with accelerator.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    step()
            except RuntimeError as error:
                raise RunError(
                    f"a step cannot be captured as a CUDA graph ({error}): it reads numbers back to the host, makes "
                    "shapes that depend on data, or copies from the host. On the CPU the contract names the line "
                    "(pytest --pyargs benchmark.contract --fssl-method NAME); --replay false takes steps one "
                    "by one"
                ) from error
            self.graph.replay()

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self.graph.replay()


class OperationList(Recording):
    """A step as a list of calls, for the CPU; see ``record``. It keeps all intermediate tensors alive."""

    def __init__(self, step: Callable[[], object], generators: Sequence[torch.Generator]) -> None:
        recorder = _Recorder(_refuse, generators)
        with _Methods(_refuse), recorder:
            step()
        self.calls = recorder.calls

    def replay(self) -> None:
        """Call every operation again, below autograd and autocast, where it was recorded."""
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            for call in self.calls:
                call.again()


@dataclass
class _Call:
    """One operation, with aliases of its tensors: they share memory with the step's own and know no graph.

    ``results`` are the tensors that it made, ``None`` for those that share memory with an argument.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor | None]

    def again(self) -> None:
        """Run it and write what it makes over what it made before. Changes in place and views need no more."""
        made = tree_leaves(self.operation(*self.args, **self.kwargs))
        for old, new in zip(self.results, made, strict=True):
            if old is not None:
                old.copy_(new)


class _Methods(TorchFunctionMode):
    """Sees calls of the methods of tensors that read without an operation."""

    def __init__(self, host_read: Callable[[str], None]) -> None:
        super().__init__()
        self.host_read = host_read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METHODS:
            self.host_read(f"Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operations of a step, those of its backward passes too, and looks for what no replay can repeat.

    Args:
        host_read: called with the name of an operation that needs the data on the host.
        generators: those that the step may draw from; ``None``: draws do not matter.
    """

    def __init__(self, host_read: Callable[[str], None], generators: Sequence[torch.Generator] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host_read, self.generators = host_read, generators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode a composite operation comes whole: see its parts
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if _reads_host(func, args):
            self.host_read(_name(func))
        if self.generators is None or torch.Tag.nondeterministic_seeded not in func.tags:
            return self.run(func, args, kwargs)
        known = {_address(generator) for generator in self.generators}
        given = {_address(value) for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)}
        before = torch.get_rng_state()
        out = self.run(func, args, kwargs)
        if not given <= known or not torch.equal(before, torch.get_rng_state()):
            raise RunError(
                f"{_name(func)} at {_place()}: a step may not draw from torch's global generator or from one that the "
                "recording does not know, for nobody could seed it for a replay. Draw with generator=self.generator; "
                "where an operation takes no generator (dropout), draw a mask with one that does"
            )
        return out

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        return func(*args, **kwargs)


class _Recorder(_Operations):  # type: ignore[no-untyped-call]
    """Keeps the operations as well."""

    def __init__(self, host_read: Callable[[str], None], generators: Sequence[torch.Generator]) -> None:
        super().__init__(host_read, generators)
        self.calls: list[_Call] = []

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note it."""
        if func.namespace == "profiler":  # marks of an optimiser for the profiler, no work
            return func(*args, **kwargs)
        kept_args, kept_kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        if func is torch.ops.aten.lift_fresh.default:  # a tensor from Python numbers: a replay makes it anew
            kept_args = (args[0].clone(),)
        out = func(*args, **kwargs)
        memory = {_memory(t) for t in tree_leaves((kept_args, kept_kwargs)) if isinstance(t, Tensor)}

        def is_new(leaf: Any) -> bool:
            return isinstance(leaf, Tensor) and not leaf._is_zerotensor() and _memory(leaf) not in memory

        results = [leaf.detach() if is_new(leaf) else None for leaf in tree_leaves(out)]
        self.calls.append(_Call(func, kept_args, kept_kwargs, results))
        return out


def _reads_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation needs values on the host, for its result or for the shape of it."""
    if func._schema.name in _INDEXING:
        if len(args) > 2 and args[2].ndim == 0:  # x[mask] = 0.0 before torch 2.12: on CUDA, too, it fills by the mask
            return False
        return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not _TAGS.isdisjoint(func.tags) or func.name() in _UNTAGGED


def _name(func: Any) -> str:
    return str(func.overloadpacket)


def _refuse(name: str) -> None:
    raise RunError(
        f"{name} at {_place()}: a step may not read numbers back to the host, nor make shapes that depend on data, for "
        "a replay would not see them change. Keep the number in a StepNumber, or another 0-dim tensor; use masks "
        "(torch.where, products) in place of boolean indexing; or do it in on_train_batch_start"
    )


def _place() -> str:
    """File and line of the innermost code that is neither torch's nor of this module.

    A backward pass on a GPU runs in a thread of torch's own, which has no such code.
    """
    torchs = f"{Path(torch.__file__).parent}{os.sep}"
    frames = [f for f in traceback.extract_stack() if f.filename != __file__ and not f.filename.startswith(torchs)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the backward pass"


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _address(generator: Any) -> int:
    """Tells generators apart: an operation is given another Python object for the same one."""
    return int(generator._cdata)
