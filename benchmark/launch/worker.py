"""What each process of a run does: take up where the run stands, go on round by round, and record it."""

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import parent_process
from signal import SIGINT
from typing import Any, NoReturn, TypeVar, cast

import torch
from lightning import Fabric
from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.pytorch import Callback

from benchmark.config import Run, RunConfig, Runtime, differences
from benchmark.federation import checkpoint
from benchmark.federation.assembly import assemble, make
from benchmark.federation.collectives import from_first, wait_for_all
from benchmark.federation.loop import Federation, RoundCallback
from benchmark.federation.store import Store
from benchmark.launch.allocator import keep_memory
from benchmark.launch.orphan import die_with_parent
from benchmark.launch.signals import STOPPED, check_stopped, stoppable
from benchmark.runs import loggers
from benchmark.runs.data_provenance import facts
from benchmark.runs.environment import code_version
from benchmark.runs.folder import RunFolder, method_source
from benchmark.runs.loggers import Mirror, mirror_run
from datamodules.common.errors import BenchError, ConfigError, DataError, RunError, Stopped, safe_str
from datamodules.common.memory import available_bytes
from datamodules.partition.partition import stored_hash

CHECKPOINT = "checkpoint.pt"
STATES = "states"  # folders, one per process, for clients' states that memory has no room for
MESSAGE_BYTES = 1 << 28

Found = TypeVar("Found")


def work(fabric: Fabric, pickled: bytes) -> None:
    """Body of every process of a run; it comes as bytes, since Fabric takes no frozen class.

    A process that was started for the run treats Ctrl-C like the other signals: the one that started it waits for it.
    """
    try:
        with stoppable(SIGINT), exits_seen():
            _body(fabric, pickle.loads(pickled))
    except Stopped:
        if parent_process() is None:
            raise
        sys.exit(STOPPED)


@contextmanager
def exits_seen() -> Iterator[None]:
    """Let ``os._exit`` raise ``SystemExit`` in the main thread, as ``sys.exit`` does.

    Else it would end a run in one process with the code that it is given, 0 perhaps, and nobody could tell. Other
    threads, and processes that were forked, still end at once.
    """
    process, at_once = os.getpid(), os._exit

    def leave(status: int) -> NoReturn:
        if os.getpid() == process and threading.current_thread() is threading.main_thread():
            sys.exit(status)
        at_once(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = at_once


def is_complete(run: Run) -> bool:
    """Whether the run has its complete record.

    Raises:
        ConfigError: the record was made under other defaults, or from another partition file.
    """
    config, path = run.config, run.folder
    if not (path / "record.json").exists():
        return False
    record = RunFolder(path).record()
    if changed := differences(record["config"], config):
        raise ConfigError(f"{path}: {'; '.join(changed)}. Delete the folder to run it again")
    if record["status"] != "complete":
        return False
    split = config.data.init_args.get("partition_file")
    if split and stored_hash(split) != record.get("partition_hash"):
        raise ConfigError(f"{split} has changed since {path} was made; delete that folder to run it again")
    made, now = record["environment"].get("method_source"), method_source(run)
    if made and now and made != now:
        raise ConfigError(
            f"{path} was made by other code of {config.method.name}: its source was {made} (code "
            f"{record['code_version']}) and is {now} now (code {code_version()}); give --overwrite to run it again, or "
            "another --results_dir to keep both"
        )
    checkpoint.remove(path / CHECKPOINT)  # a kill may have come between the record and this
    return True


def _body(fabric: Fabric, run: Run) -> None:
    warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*does not have many workers.*")
    die_with_parent()
    keep_memory()
    if run.config.runtime.threads != "auto":
        torch.set_num_threads(run.config.runtime.threads)
    main, files = fabric.is_global_zero, RunFolder(run.folder)
    try:
        with ExitStack() as held:
            _first(fabric, lambda: held.enter_context(files.lock()))
            if not fabric.broadcast(main and is_complete(run)):  # another process may have been faster
                _recorded(fabric, run, files)
    except (ConfigError, DataError):
        if main:
            files.forget()
        raise


def _first(fabric: Fabric, work: Callable[[], Found]) -> Found | None:
    """What the first process finds, ``None`` in the others.

    Raises:
        RunError: the first process cannot go on; every process raises its error, so that none waits for it.
    """
    found, error = None, None
    if fabric.is_global_zero:
        try:
            found = work()
        except RunError as refused:
            error = refused
    if (told := fabric.broadcast(error)) is not None:
        raise told
    return found


def _recorded(fabric: Fabric, run: Run, files: RunFolder) -> None:
    main = fabric.is_global_zero
    with mirror_run(run, files.path) if main else Mirror("off", files.path) as mirror:
        recorder = Recorder(files, mirror, run.config.runtime.checkpoint_every_s) if main else None
        try:
            _rounds(fabric, run, files, recorder)
        except (KeyboardInterrupt, Stopped):
            if recorder is not None:
                try:
                    recorder.save()
                except (OSError, BenchError) as error:
                    print(f"{files.path}: the last rounds could not be saved: {error}", file=sys.stderr)
            raise


def _rounds(fabric: Fabric, run: Run, files: RunFolder, recorder: "Recorder | None") -> None:
    """The run from where it stands to its record, which the first process writes: the one with a ``recorder``."""
    config, path = run.config, files.path
    try:
        method, data = make(run, fabric.device)
        more: list[RoundCallback | Callback] = [*loggers.callbacks(config.runtime.callbacks)]
        if recorder:
            more.insert(0, recorder)
        store = Store(_client_memory(config.runtime), path / f"{STATES}.{fabric.global_rank}")
        federation = assemble(run, method, data, fabric, more, store)
        known = {**facts(data), "client_state_bytes": federation.client_state_bytes}
        _first(fabric, lambda: files.open(run, known))
        if recorder:
            print(f"{path}: {_in_words(config, federation)}", file=sys.stderr)
        saved = _told(fabric, _first(fabric, lambda: _saved(files, cast(Recorder, recorder), federation)))
        if saved is not None:
            federation.load_state_dict(saved)
            if recorder:
                recorder.checkpoint.taken_up(federation.state_dict())
        wait_for_all(fabric)
        rows = saved.get("rows") if saved is not None else None
        _first(fabric, lambda: files.rewind(federation.round, rows))
        if recorder:
            files.saved(federation.round)
            _log_again(federation, files)
        if recorder and saved is not None:
            print(f"{path}: continues from round {federation.round + 1} of {config.rounds}", file=sys.stderr)
            if rows is None:
                print(f"{path}: its checkpoint is of an older version and cannot vouch for its rows", file=sys.stderr)
        federation.run()
        if recorder and (taken := federation.engine.counts()):
            ways = ", ".join(f"{count:,} {way}" for way, count in taken.items())
            print(f"{path}: steps of clients in slots, in this process: {ways}", file=sys.stderr)
        if recorder:
            weights = {name: value.cpu() for name, value in federation.server.items()}
            checkpoint.save_plain(path / "weights.pt", weights)
            recorder.finish(federation.averaged, federation.confusion)
            checkpoint.remove(path / CHECKPOINT)
        wait_for_all(fabric)
    except (KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:
        check_stopped()  # a process that was left alone by others may meet that before the signal that all were sent
        told = error if isinstance(error, Exception) else RunError(f"{path}: {_odd(error)}")
        if recorder and (files.opened or not isinstance(error, (ConfigError, DataError))):
            files.fail(told, run)
        if told is error:
            raise
        raise told from error


def _log_again(federation: Federation, run: RunFolder) -> None:
    """Give the CSV logger the rounds before a resume: it starts its file over."""
    csv = [logger for logger in federation.fabric.loggers if isinstance(logger, CSVLogger)]
    if csv:
        for row in run.rows():
            federation.log(row, csv)


def _odd(error: BaseException) -> str:
    """What is said of an error that nobody catches with ``except Exception``, and that asks for no stop."""
    if isinstance(error, SystemExit):
        return f"the method or the data set ended the program (exit code {error.code!r})"
    return f"the method or the data set raised {type(error).__name__}: {safe_str(error)}"


def _told(fabric: Fabric, saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """The first process's checkpoint, in every process. No message is much larger than ``MESSAGE_BYTES``, or than what
    one client keeps.
    """
    if fabric.world_size == 1:
        return saved
    parts = checkpoint.divided(saved, MESSAGE_BYTES) if saved is not None else []
    count = fabric.broadcast(len(parts))
    if count == 0:
        return None
    received = [from_first(fabric, parts[number] if parts else {}) for number in range(count)]
    return checkpoint.joined(received)


def _saved(run: RunFolder, recorder: "Recorder", federation: Federation) -> dict[str, Any] | None:
    """The checkpoint that the run continues from; one that does not say where it comes from (an old one) is trusted.

    Raises:
        RunError: it is of another run or partition, or lacks something of the run.
    """
    saved, path = recorder.checkpoint.load(), run.path / CHECKPOINT
    if saved is None:
        return None
    checkpoint.check(saved, path)
    origin, ours = saved.get("origin") or {}, run.origin
    for key in ("run_id", "partition_hash"):
        if origin and origin[key] != ours[key]:
            raise RunError(
                f"{path}: its {key} is {origin[key]} (code {origin['code_version']}), not {ours[key]}"
                "; bring this run's own checkpoint back, or delete the folder to start over"
            )
    if wrong := _misfit(saved, federation):
        raise RunError(f"{path}: {wrong}; bring this run's own checkpoint back, or delete the folder to start over")
    return saved


def _misfit(saved: Mapping[str, Any], federation: Federation) -> str:
    """What of a checkpoint is not of this run: its round, or tensors of the server or a client; empty if nothing."""
    if saved["round"] > federation.rounds:
        return f"round is {saved['round']}, after the last of {federation.rounds}"
    own = federation.method.tensors("personal")
    floating = {name: value for name, value in federation.server.items() if value.is_floating_point()}
    begun = saved["round"] > federation.rounds - federation.average_last
    parts = [("server", saved["server"], federation.server)]
    parts += [("summed", saved.get("summed", {}), floating if begun else {})]
    parts += [(f"clients.{client}", tensors, own) for client, (tensors, _) in saved["clients"].items()]
    for where, found, known in parts:
        shapes, ours = ({name: value.shape for name, value in one.items()} for one in (found, known))
        if strange := [name for name in ours | shapes if shapes.get(name) != ours.get(name)]:
            return f"{where}.{strange[0]} is missing, unknown, or of another shape"
    return ""


def _client_memory(runtime: Runtime) -> int | None:
    """Bytes that the clients' states may take in the memory of a process; ``None`` where the system does not say."""
    if runtime.client_memory != "auto":
        return int(runtime.client_memory * 1e9)
    free = available_bytes()
    return None if free is None else free // 2 // int(runtime.devices)


def _in_words(config: RunConfig, federation: Federation) -> str:
    """Where a run takes place, the memory that its clients' own states may grow to in every process, and a warning
    where it never leaves its warm-up.
    """
    rt, clients, kept = config.runtime, federation.data.num_clients, federation.client_state_bytes / 1e9
    engine = f", {rt.slots} slots" if rt.engine == "slots" else ""
    warmup = federation.method.hparams.get("warmup_rounds", 0)
    all_warm = f"; ALL {config.rounds} rounds lie within the warm-up of {warmup}" if config.rounds <= warmup else ""
    return (
        f"{rt.devices} x {rt.accelerator} with {rt.threads} CPU threads each, {config.precision}{engine}; "
        f"what {clients} clients keep between visits takes up to {kept:.2g} GB{all_warm}"
    )


class Recorder:
    """Writes each evaluated round to the run's folder and its mirror, and a checkpoint as often as it may.

    It holds the state at the end of the last round, whose tensors nothing changes any more, so that it can be saved at
    any moment.
    """

    def __init__(self, run: RunFolder, mirror: Mirror, every_s: float) -> None:
        self.run, self.mirror = run, mirror
        self.checkpoint = checkpoint.Checkpoint(run.path / CHECKPOINT, every_s)
        self.state: dict[str, Any] | None = None

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        """Write the row of an evaluated round, and a checkpoint if it is time."""
        if row is not None:
            self.run.append(row)
            self.mirror.row(row)
        self.run.beat(federation.round)
        self.state = {**federation.state_dict(), "rows": self.run.rows_digest}
        if federation.round < federation.rounds and self.checkpoint.due(self.state):
            self.save()
        check_stopped()

    def save(self) -> None:
        """Write a checkpoint of the end of the last round, unless it has been written."""
        if self.state is not None:
            self.checkpoint.save({**self.state, "origin": self.run.origin})
            self.run.saved(self.state["round"])
            self.state = None

    def finish(self, averaged: Mapping[str, Any] | None, confusion: torch.Tensor | None) -> None:
        """Write the complete record, which makes checkpoints superfluous; ``averaged`` is a reading of its own."""
        self.state = None
        self.mirror.record(self.run.finish(averaged, None if confusion is None else confusion.tolist()))
