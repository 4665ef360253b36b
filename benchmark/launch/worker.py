"""What the processes of a run do: lock the run's folder, continue where the run stands, record it round by round."""

import ctypes
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from multiprocessing import parent_process
from signal import SIGINT
from typing import Any

import torch
from lightning import Fabric
from lightning.pytorch import Callback

from benchmark.config import Run, RunConfig, Runtime
from benchmark.federation.assembly import assemble
from benchmark.federation.collectives import on_first, wait_for_all
from benchmark.federation.loop import Federation, RoundCallback
from benchmark.federation.store import Store, discard_states
from benchmark.launch.recorder import Recorder, is_complete, resume
from benchmark.launch.signals import STOPPED, check_stopped, die_with_parent, stoppable
from benchmark.runs import loggers
from benchmark.runs.folder import RunFolder
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, DataError, RunError, Stopped
from datamodules.common.memory import available_bytes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def worker_main(fabric: Fabric, run: Run) -> None:
    """Entry point of every process of a run.

    A process that was started for the run treats Ctrl-C like the other signals: the one that started it waits for it.
    """
    try:
        with stoppable(SIGINT):
            _set_up_process(run.config.runtime)
            _run_unless_complete(fabric, run)
    except Stopped:
        if parent_process() is None:
            raise
        sys.exit(STOPPED)


def _set_up_process(runtime: Runtime) -> None:
    warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*does not have many workers.*")
    die_with_parent()
    if parent_process() is not None:  # a notebook's own process stays as it is
        keep_memory()
    if runtime.accelerator == "cpu":  # set by Lightning; it slows Adam, which looks for a GPU at every step
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    if runtime.threads != "auto":
        torch.set_num_threads(runtime.threads)


def keep_memory() -> None:
    """Tell glibc's malloc to serve everything from the heap and never to trim it.

    Large forward passes and full-batch steps become up to twice as fast, since page faults can cost more than the
    arithmetic. But the process does not return memory to the system until it ends. ``FSSL_KEEP_MEMORY=0`` in the
    environment switches this off.
    """
    if os.environ.get("FSSL_KEEP_MEMORY", "1") == "0" or not sys.platform.startswith("linux"):
        return
    with suppress(OSError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def enough_queues() -> None:
    """Ask CUDA, before it starts, for 32 work queues (its maximum) instead of 8, which more slots would have to share.

    ``CUDA_DEVICE_MAX_CONNECTIONS`` takes precedence if it is set in the environment.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def _run_unless_complete(fabric: Fabric, run: Run) -> None:
    """Carry the run out under its lock. Another process may have completed it before the lock was ours."""
    files = RunFolder(run.folder)
    with ExitStack() as stack:
        on_first(fabric, lambda: stack.enter_context(files.lock()))
        if fabric.is_global_zero:
            discard_states(files.path)
        if fabric.broadcast(fabric.is_global_zero and is_complete(run)):
            return
        recorder = stack.enter_context(Recorder(run, files)) if fabric.is_global_zero else None
        _run(fabric, run, files, recorder)


def _run(fabric: Fabric, run: Run, files: RunFolder, recorder: Recorder | None) -> None:
    """The run from where it stands to its complete record.

    An error is recorded, unless it is one of the configuration or the data and no record is open yet.

    Raises:
        RunError: the method or the data set has ended the program, or raised what is no ``Exception`` otherwise.
    """
    try:
        federation = _make_federation(fabric, run, files, recorder)
        resume(fabric, federation, recorder)
        federation.run()
        if recorder:
            recorder.finish(federation)
        wait_for_all(fabric)
    except (KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:
        check_stopped()  # processes that others have left may fail before the signal that was sent to all reaches them
        failure: BaseException = error
        if not isinstance(error, Exception):
            failure = RunError(f"{files.path}: the method or the data set raised {type(error).__name__}: {error}")
        if recorder and (files.record or not isinstance(failure, (ConfigError, DataError))):
            files.fail(failure, run)
        if failure is error:
            raise
        raise failure from error


def _make_federation(fabric: Fabric, run: Run, files: RunFolder, recorder: Recorder | None) -> Federation:
    """The run at its beginning, with its record opened."""
    runtime = run.config.runtime
    callbacks: list[RoundCallback | Callback] = [recorder] if recorder else []
    callbacks += loggers.callbacks(runtime.callbacks)
    federation = assemble(run, fabric, callbacks)
    federation.clients = Store(_client_memory(runtime), files.path)
    data = federation.data
    facts = {**data_provenance(data), "client_state_bytes": federation.engine.kept_bytes() * data.num_clients}
    on_first(fabric, lambda: files.open(run, facts))
    if recorder:
        recorder.say(data.about())
        recorder.say(_summary(run.config, federation, facts["client_state_bytes"]))
    return federation


def data_provenance(data: FSSLDataModule, most_listed: int = 10_000) -> Mapping[str, Any]:
    """What a record says about the data.

    These are hashes of the files and of the partition, class counts of each client and of the server, the number of
    test images, and what the data set adds itself (``provenance``). With more than ``most_listed`` clients there are no
    class counts: a record is written every few seconds, and the partition can be drawn again.
    """
    facts: dict[str, Any] = {"partition_hash": data.partition.hash, "data_sha256": data.sha256}
    if data.num_clients <= most_listed:
        server = torch.bincount(data.server.labels.cpu(), minlength=data.num_classes).tolist()
        labelled, unlabelled = data.class_counts("labelled").tolist(), data.class_counts("unlabelled").tolist()
        counts = {"labelled": labelled, "unlabelled": unlabelled, "server": [server] if any(server) else []}
        facts["labelled_histogram"] = [row for row in labelled if any(row)]
        # An entry is one text: in an indented file, a list would take a line for each class.
        facts["class_counts"] = {role: [" ".join(map(str, row)) for row in rows] for role, rows in counts.items()}
    facts["test_images"] = len(data.test_labels)
    return {**facts, **data.provenance}


def _client_memory(runtime: Runtime) -> int | None:
    """Bytes that the clients' states may take in the memory of a process; ``None`` where the system does not say."""
    if runtime.client_memory != "auto":
        return int(runtime.client_memory * 1e9)
    free = available_bytes()
    return None if free is None else free // 4 // int(runtime.devices)  # the first process may need twice that


def _summary(config: RunConfig, federation: Federation, kept: int) -> str:
    """Where a run takes place and how many bytes all its clients may keep between visits, with a warning if the run
    never leaves its warm-up.
    """
    from rich.filesize import decimal

    rt, clients = config.runtime, federation.data.num_clients
    warmup = federation.method.hparams.get("warmup_rounds", 0)
    all_warm = f"; ALL {config.rounds} rounds lie within the warm-up of {warmup}" if config.rounds <= warmup else ""
    return (
        f"{rt.devices} x {rt.accelerator} with {rt.threads} CPU threads each, {config.precision}; "
        f"what {clients} clients keep between visits takes up to {decimal(kept)}{all_warm}"
    )
