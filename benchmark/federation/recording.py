"""Records a training step as the list of tensor operations that it runs, and replays that list.

A recorded step always reads and writes the same memory. Before a replay, the next batch, state and numbers are copied
into the tensors that it was recorded with. All that Python decided during the recording stays as it was: branches, loop
counts, and every Python number that entered an operation.

On CUDA the list is a CUDA graph. On the CPU it is a list of calls that follows the rules of a CUDA graph. That is slow;
it tests whether a step may be captured.
"""

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from datamodules.common.errors import RunError

# Operations whose kernels read values, on CUDA, too, but which torch does not tag.
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
INDEXING = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
}
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Methods that give data to Python without an operation if the tensor is on the CPU already.
_METHODS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.cpu}


def record(
    step: Callable[[], object],
    device: torch.device,
    generators: Sequence[torch.Generator] = (),
    stream: torch.cuda.Stream | None = None,
    pool: Any = None,
) -> Callable[[], None]:
    """Run a step once and record it; returns what replays it, on CUDA on the current stream.

    Run the step at least once before, on CUDA on the same ``stream``: an optimiser's first step creates its state,
    which a replay would create again. The tensors that the step works on must outlive the recording and stay at the
    same place: state is copied into them. The step clears its gradients itself. On CUDA, Adam must be ``capturable``,
    and a rate in a tensor must be float32, as fused kernels require.

    Args:
        step: the whole step: zero_grad, forward, backward, optimiser step.
        device: where the step computes.
        generators: the only ones that it may draw from. Reseed them in place; a replay knows no others.
        stream: for CUDA, where the step is captured; default: one of torch's.
        pool: for CUDA, memory shared by recordings that never run concurrently (``torch.cuda.graph_pool_handle``).

    Raises:
        RunError: the step reads a number back to the host, makes a shape that depends on data, or draws from another
            generator (torch's global one goes unnoticed on CUDA), or the memory of a GPU is full. The step is then left
            half done.
    """
    if device.type == "cpu":
        return listed(step, generators)
    # Operations are not watched, which would take longer than running them. CUDA refuses what cannot be captured but
    # does not name the line, and draws from its global generator go unnoticed. A recording on the CPU names both.
    accelerator: Any = torch.get_device_module(device)
    graph = accelerator.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with accelerator.device(device):
        try:  # other threads, such as NCCL's watchdog, may still call CUDA
            with accelerator.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                step()
        except torch.OutOfMemoryError as error:
            raise RunError(f"{error}: take fewer --slots, or --replay false") from error
        except RuntimeError as error:
            raise RunError(
                f"a step cannot be captured as a CUDA graph ({error}): it reads numbers back to the host, makes "
                "shapes that depend on data, or copies from the host. On the CPU the contract names the line "
                "(docs/add-a-method.md); --replay false takes steps one by one"
            ) from error
        graph.replay()  # capturing has run nothing
    return graph.replay


def listed(step: Callable[[], object], generators: Sequence[torch.Generator]) -> Callable[[], None]:
    """Record a step as a list of calls; see ``record``. It keeps all intermediate tensors in memory.

    A replay calls every operation again, below autograd and autocast. What it creates is copied over what it created
    before; in-place changes and views need no copy.
    """
    recorder = WatchedOperations(generators)
    with WatchedMethods(), recorder:
        step()

    def replay() -> None:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            for operation, args, kwargs, results in recorder.calls:
                for old, new in zip(results, tree_leaves(operation(*args, **kwargs)), strict=True):
                    if old is not None:
                        old.copy_(new)

    return replay


class WatchedMethods(TorchFunctionMode):
    """Refuses calls of tensor methods that read data without an operation, and of ``one_hot``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METHODS:
            _refuse(f"Tensor.{func.__name__}")
        if func is F.one_hot:
            _refuse("one_hot")
        return func(*args, **(kwargs or {}))


class WatchedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations of a step and its backward passes that a replay cannot repeat, and lists the others.

    A call is kept with aliases of its tensors, which share memory with the step's own but have no autograd graph, and
    with the tensors that it created, ``None`` for those that share memory with an argument.

    Args:
        generators: those that the step may draw from.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generators = generators
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor | None]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode a composite operation arrives whole: watch its parts
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if reads_host(func, args):
            _refuse(str(func.overloadpacket))
        if func.namespace == "profiler":  # an optimiser's marks for the profiler
            return func(*args, **kwargs)
        kept_args, kept_kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        if func is torch.ops.aten.lift_fresh.default:  # a tensor from Python numbers, which a replay creates again
            kept_args = (args[0].clone(),)
        before = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        out = func(*args, **kwargs)
        if before is not None:
            self.require_own_generators(func, tree_leaves((args, kwargs)), before)
        memory = {_memory(t) for t in tree_leaves((kept_args, kept_kwargs)) if isinstance(t, Tensor)}

        def is_new(leaf: Any) -> bool:
            return isinstance(leaf, Tensor) and not leaf._is_zerotensor() and _memory(leaf) not in memory

        results = [leaf.detach() if is_new(leaf) else None for leaf in tree_leaves(out)]
        self.calls.append((func, kept_args, kept_kwargs, results))
        return out

    def require_own_generators(self, func: Any, args: list[Any], before: Tensor) -> None:
        """Refuse an operation that has drawn from another generator than ``generators``.

        Args:
            func: the operation.
            args: its arguments.
            before: the state of torch's global generator before it.

        Raises:
            RunError: it has.
        """
        drawn_from = {_address(arg) for arg in args if isinstance(arg, torch.Generator)}
        allowed = set(map(_address, self.generators))
        if not drawn_from <= allowed or not torch.equal(before, torch.get_rng_state()):
            raise RunError(
                f"{func.overloadpacket} at {users_line()[0]}: a step may not draw from torch's global generator or "
                "from one that the recording does not know, since a replay could not seed it. Draw with "
                "generator=self.generator; if an operation takes no generator (dropout), draw a mask with one that "
                "does; --replay false takes steps one by one"
            )


def reads_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation needs values on the host, for its result or its shape."""
    if func._schema.name in INDEXING:
        if len(args) > 2 and args[2].ndim == 0:  # x[mask] = 0.0 before torch 2.12: a masked fill, on CUDA, too
            return False
        return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not _TAGS.isdisjoint(func.tags) or func.name() in _UNTAGGED


def _refuse(name: str) -> None:
    hint = "Take that of methods.parts.tensors. " if name == "one_hot" else ""
    raise RunError(
        f"{name} at {users_line()[0]}: a step may not read numbers back to the host or make shapes that depend on "
        f"data, since a replay would not see them change. {hint}Keep the number in a StepNumber or another 0-dim "
        "tensor; use masks (torch.where, products) instead of boolean indexing; or do it in on_train_batch_start"
    )


def users_line(*ours: str) -> tuple[str, str]:
    """The innermost code that is neither torch's nor this module's nor in the files ``ours``: its file and line, and
    the name of its function.
    """
    skipped = (f"{Path(torch.__file__).parent}{os.sep}", __file__, *ours)
    frame = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(skipped)][-1]
    return f"{frame.filename}:{frame.lineno}", frame.name


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _address(generator: Any) -> int:
    """Identifies a generator: operations get different Python objects for the same one."""
    return int(generator._cdata)
