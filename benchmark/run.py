"""One run, from its configuration to its record: ``fit``. Also the script that ``fabric run`` launches."""

import gc
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import dropwhile
from multiprocessing import parent_process
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, TypeVar, cast

import torch
from lightning import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from torch.multiprocessing.spawn import ProcessException

from benchmark.config import RunConfig, Runtime, differences, folder, resolve
from benchmark.federation import checkpoint
from benchmark.federation.collectives import from_first
from benchmark.federation.loop import Federation, RoundCallback
from benchmark.launch.allocator import keep_memory
from benchmark.launch.environment import asked_threads, check_processes, cores, idle_cores
from benchmark.launch.launchers import slurm_tasks, torchrun, within
from benchmark.launch.lock import RunLocked
from benchmark.launch.orphan import die_with_parent
from benchmark.launch.signals import STOPPED, Stopped, check_stopped, children, stop, stoppable
from benchmark.registry import KINDS, build, find_class, imported, one_line, parameters
from benchmark.report import loggers
from benchmark.report.loggers import Mirror, mirror_run
from benchmark.report.records import RunFolder, saved_rounds, state
from datamodules.base import FSSLDataModule
from datamodules.common.errors import BenchError, ConfigError, DataError, RunError
from datamodules.partition.partition import stored_hash
from methods import models
from methods.base import FedMethod
from methods.parts.declarations import check_declarations

CHECKPOINT = "checkpoint.pt"
WORTH_PROCESSES = 2_000_000
WORTH_THREADS = 1_000_000
MESSAGE_BYTES = 1 << 28

Found = TypeVar("Found")


def fit(config: RunConfig) -> Path:
    """Run (or finish) what ``config`` describes and return the run's folder.

    A complete run is left alone; an interrupted one continues from its last checkpoint and ends with the record of
    an uninterrupted run, bit for bit on the CPU (wall-clock fields aside).

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data or the partition cannot be made.
        RunError: the run cannot go on, or another process is working on it.
        Stopped: ``SIGTERM`` or ``SIGUSR1`` came; the run has saved the end of its last round.
    """
    return fit_resolved(resolve(config))


def fit_resolved(config: RunConfig) -> Path:
    """``fit`` for a configuration that is resolved already."""
    with stoppable():
        return _fit(config)


def _fit(config: RunConfig) -> Path:
    external = os.environ.get("LT_CLI_USED") == "1"  # `fabric run` has made the processes already
    if external:
        config = replace(config, precision=os.environ.get("LT_PRECISION", config.precision))
    path = folder(config)
    if _is_complete(config):
        return path
    if external:
        fabric = Fabric(precision=config.precision)  # type: ignore[arg-type]
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes, kind = fabric.world_size // local, fabric.device.type
        config = replace(config, runtime=replace(config.runtime, accelerator=kind, devices=local, num_nodes=nodes))
        _run(fabric, pickle.dumps(replace(config, runtime=placed(config))))
        return path
    if started := torchrun():
        config = replace(config, runtime=within(config.runtime, started))
    config = replace(config, runtime=placed(config))
    rt, tasks = config.runtime, slurm_tasks()
    several = rt.devices != 1 or rt.num_nodes != 1
    spawned = several and not (tasks or started)
    strategy = ("ddp_spawn" if spawned else "ddp") if several else "auto"
    if several and tasks and not started and tasks != rt.devices * rt.num_nodes:
        raise ConfigError(
            f"{rt.devices} devices on {rt.num_nodes} nodes are asked for, but SLURM started {tasks} tasks; "
            "give one task per device (--ntasks), or --devices 1"
        )
    if spawned and rt.num_nodes != 1:
        raise ConfigError(
            f"{rt.num_nodes} nodes are asked for, but nothing has started this process on each of them; start it with "
            "SLURM's srun, or on every node with torchrun (docs/usage.md)"
        )
    if spawned and rt.accelerator == "cpu":
        check_processes("--devices", int(rt.devices))
    try:
        fabric = Fabric(
            accelerator=rt.accelerator,
            strategy=strategy,
            devices=rt.devices,
            num_nodes=rt.num_nodes,
            precision=config.precision,  # type: ignore[arg-type]
            loggers=loggers.lightning_loggers(rt.logger, path),
        )
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as refused:
        raise ConfigError(f"--devices {rt.devices} --accelerator {rt.accelerator}: {one_line(refused)}") from None
    if spawned and rt.accelerator == "cpu":  # what is missing is missed before processes start
        _data(config).prepare_data()
    before = children()
    try:
        fabric.launch(_run, pickle.dumps(config))  # type: ignore[arg-type]
    except ProcessException as exception:
        if getattr(exception, "exit_code", None) == STOPPED:
            raise Stopped(SIGTERM) from None
        error = _raised(exception, path)
        error.__cause__ = exception  # has the traceback, which the record shall have, too
        if isinstance(error, (ConfigError, DataError)):
            RunFolder(path).forget()
        if not isinstance(error, RunLocked) and state(path) in ("stale", "failed"):
            RunFolder(path).fail(error, config)
        raise error from exception
    except (KeyboardInterrupt, Stopped) as asked:
        stop(children() - before, asked.signal if isinstance(asked, Stopped) else SIGTERM)
        raise
    finally:
        gc.collect()  # the federation and its data set refer to each other
        with suppress(RuntimeError):  # of a GPU that the error at hand has left unusable
            torch.cuda.empty_cache()
    if not (tasks or started) and state(path) != "complete":
        raise RunError(f"{path}: its processes ended without an error, but the run is not complete; run it again")
    return path


def _is_complete(config: RunConfig) -> bool:
    """Whether the run has its complete record.

    Raises:
        ConfigError: the record was made under other defaults, or from another partition file.
    """
    path = folder(config)
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
    checkpoint.remove(path / CHECKPOINT)  # a kill may have come between the record and this
    return True


def _raised(exception: ProcessException, path: Path) -> BenchError:
    """What a process of the run died of; an error of ours keeps its class and message."""
    traceback = str(exception).strip().rpartition("\nTraceback (most recent call last):\n")[2]
    last = "\n".join(dropwhile(lambda line: line.startswith(" "), traceback.splitlines()))  # what follows the frames
    name, _, message = last.partition(": ")
    try:
        cls = imported(name)
    except (ImportError, AttributeError, ValueError):
        cls = None
    if isinstance(cls, type) and issubclass(cls, BenchError):
        return cls(message)
    return RunError(f"{path}: {last}; the same command continues from the last checkpoint")


def placed(config: RunConfig) -> Runtime:
    """The runtime with ``auto`` replaced by what is faster here.

    On the CPU, one single-threaded process per core, up to one per participant, beats one process with all cores for
    small networks; those of a million parameters or more are as fast with threads (`docs/performance.md`), which hold
    clients' states once. A run of a few seconds is not worth starting processes for. On GPUs a run takes one process:
    several runs side by side use the others. Under SLURM the processes are the tasks that it has started.

    The threads are those of ``OMP_NUM_THREADS`` where it is set; else a run that continues has as many as before, and a
    new one takes the cores that nobody else is using.
    """
    rt = config.runtime
    accelerator = rt.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    devices, threads = rt.devices, rt.threads
    if devices == "auto" and (tasks := slurm_tasks()):
        devices = max(1, tasks // rt.num_nodes)
    if devices == "auto":
        args, cls = config.data.init_args, find_class(config.data.class_path, KINDS["data"])
        active = config.roster.get("participants") or args["num_clients"]
        total = max(args["num_clients"], 1)
        work = config.rounds * getattr(cls, "train_size", WORTH_PROCESSES) * active / total
        several = accelerator == "cpu" and work >= WORTH_PROCESSES and _is_small(config)
        devices = min(cores(), active) if several else 1
    if not isinstance(devices, int) or devices < 1:
        raise ConfigError(f"devices={devices}: give a number of processes from 1, or auto")
    if threads == "auto":
        threads = asked_threads() or (_threads(config, devices) if accelerator == "cpu" else 1)
    return replace(rt, accelerator=accelerator, devices=devices, threads=threads)


def _threads(config: RunConfig, devices: int) -> int:
    """CPU threads of each process, as ``placed`` chooses them."""
    if devices > 1:
        return max(1, cores() // devices)
    path = folder(config)
    if saved_rounds(path) != 0 and (path / "record.json").exists():  # another number would round differently
        before = RunFolder(path).record()["environment"].get("threads")
        if isinstance(before, int):
            return before
    return idle_cores()


def _is_small(config: RunConfig) -> bool:
    cls = find_class(config.data.class_path, KINDS["data"])
    shape = {"image_size": config.data.init_args.get("side") or getattr(cls, "image_size", 32)}
    try:
        parameters = models.num_parameters(config.model, getattr(cls, "num_classes", 10), **(shape | config.model_args))
        return parameters < WORTH_THREADS
    except ConfigError:  # it does not take images; feature vectors come with small networks
        return True


def make(config: RunConfig, device: torch.device) -> tuple[Any, FSSLDataModule]:
    """The method with its freshly initialised network, and the data module, both on ``device``.

    The network is built right after seeding torch with the run seed, as the papers' codes do.
    """
    dtype = torch.float64 if config.precision == "64-true" else torch.float32
    data, devices = _data(config), config.runtime.devices
    data.place(device, dtype, devices if device.type == "cpu" and isinstance(devices, int) else 1)
    data.setup()
    torch.manual_seed(config.seed)
    shape = {"image_size": data.image_size, "in_features": data.feature_dim}
    shape["in_channels"] = data.hparams.get("channels", 3)
    model = models.build(config.model, data.num_classes, **(shape | config.model_args))
    image_shape = [data.hparams.get("channels", 3), data.image_size, data.image_size]
    known = {
        "model": model,
        "num_classes": data.num_classes,
        "num_clients": data.num_clients,
        "image_shape": image_shape,
    }
    needed = parameters(find_class(config.method.class_path, KINDS["method"]))
    method = build(config.method, "method", **{name: known[name] for name in needed if name in known})
    check_declarations(method)
    needed_views = {view for stream in method.views.values() for view in stream.values()}
    if missing := sorted(needed_views - set(data.views)):
        raise ConfigError(
            f"{type(method).__name__} needs the view {missing[0]!r}, and the data's pipeline has only "
            f"{', '.join(data.views)}; choose another with --data.pipeline, and the setting that it was made for: "
            f"--data.scenario {method.scenario} with a number of labels (docs/usage.md)"
        )
    return method.to(device=device, dtype=dtype), data


def assemble(
    config: RunConfig,
    method: FedMethod,
    data: FSSLDataModule,
    fabric: Fabric,
    callbacks: Sequence[RoundCallback | Callback] = (),
) -> Federation:
    """The federation that ``config`` describes, of what ``make`` has made."""
    return Federation(
        method,
        data,
        data.roster(config.seed, **config.roster),
        fabric,
        config.rounds,
        config.seed,
        config.eval_every,
        callbacks=callbacks,
        slots=config.runtime.slots if config.runtime.engine == "slots" else None,
        replay=config.runtime.replay,
        nonfinite=config.nonfinite,
    )


def _data(config: RunConfig) -> FSSLDataModule:
    data: FSSLDataModule = build(config.data, "data", data_dir=config.runtime.data_dir, run_seed=config.seed)
    return data


def _run(fabric: Fabric, pickled: bytes) -> None:
    """Body of every process of a run; its configuration comes as bytes, since Fabric takes no frozen class.

    A process that was started for the run treats Ctrl-C like the other signals: the one that started it waits for it.
    """
    try:
        with stoppable(SIGINT):
            _body(fabric, pickle.loads(pickled))
    except Stopped:
        if parent_process() is None:
            raise
        sys.exit(STOPPED)


def _body(fabric: Fabric, config: RunConfig) -> None:
    warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*does not have many workers.*")
    die_with_parent()
    keep_memory()
    if config.runtime.threads != "auto":
        torch.set_num_threads(config.runtime.threads)
    main, run = fabric.is_global_zero, RunFolder(folder(config))
    try:
        with ExitStack() as held:
            _first(fabric, lambda: held.enter_context(run.lock()))
            if not fabric.broadcast(main and _is_complete(config)):  # another process may have been faster
                _work(fabric, config, run)
    except (ConfigError, DataError):
        if main:
            run.forget()
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


def _work(fabric: Fabric, config: RunConfig, run: RunFolder) -> None:
    main = fabric.is_global_zero
    with mirror_run(config, run.path) if main else Mirror("off", run.path) as mirror:
        recorder = _Recorder(run, mirror, config.runtime.checkpoint_every_s) if main else None
        try:
            _rounds(fabric, config, run, recorder)
        except (KeyboardInterrupt, Stopped):
            if recorder is not None:
                recorder.save()
            raise


def _rounds(fabric: Fabric, config: RunConfig, run: RunFolder, recorder: "_Recorder | None") -> None:
    """The run from where it stands to its record, which the first process writes: the one with a ``recorder``."""
    path = run.path
    try:
        method, data = make(config, fabric.device)
        more: list[RoundCallback | Callback] = [*loggers.callbacks(config.runtime.callbacks)]
        if recorder:
            more.insert(0, recorder)
        federation = assemble(config, method, data, fabric, more)
        known = {**facts(data), "client_state_bytes": client_state_bytes(federation)}
        _first(fabric, lambda: run.open(config, known))
        if recorder:
            print(f"{path}: {placement(config, federation)}", file=sys.stderr)
        saved = _told(fabric, _first(fabric, lambda: _saved(run, cast(_Recorder, recorder).checkpoint)))
        if saved is not None:
            federation.load_state_dict(saved)
            if recorder:
                recorder.checkpoint.taken_up(federation.state_dict())
        fabric.barrier()
        _first(fabric, lambda: run.rewind(federation.round))
        if recorder:
            run.saved(federation.round)
        if recorder and saved is not None:
            print(f"{path}: continues from round {federation.round + 1} of {config.rounds}", file=sys.stderr)
        federation.run()
        if recorder:
            weights = {name: value.cpu() for name, value in federation.server.items()}
            checkpoint.save_plain(path / "weights.pt", weights)
            recorder.finish()
            checkpoint.remove(path / CHECKPOINT)
        fabric.barrier()
    except (Exception, SystemExit) as error:
        check_stopped()  # a process that was left alone by others may meet that before the signal that all were sent
        told = error
        if isinstance(error, SystemExit):
            told = RunError(f"{path}: the method or the data set ended the program (sys.exit({error.code!r}))")
        if recorder and (run.opened or not isinstance(error, (ConfigError, DataError))):
            run.fail(told, config)
        if told is error:
            raise
        raise told from error


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
    received = [from_first(fabric, parts[number] if parts else None) for number in range(count)]
    return checkpoint.joined(received)


def _saved(run: RunFolder, kept: checkpoint.Checkpoint) -> dict[str, Any] | None:
    """The checkpoint that the run continues from; one that does not say where it comes from (an old one) is trusted.

    Raises:
        RunError: it is of another run or partition.
    """
    saved = kept.load()
    origin, ours = (saved or {}).get("origin", {}), run.origin
    for key in ("run_id", "partition_hash"):
        if origin and origin[key] != ours[key]:
            raise RunError(
                f"{run.path / CHECKPOINT}: its {key} is {origin[key]} (code {origin['code_version']}), not {ours[key]}"
                "; bring this run's own checkpoint back, or delete the folder to start over"
            )
    return saved


def placement(config: RunConfig, federation: Federation) -> str:
    """Where a run takes place, the memory that its clients' own states may grow to in every process, and a warning
    where it never leaves its warm-up.
    """
    rt, clients, kept = config.runtime, federation.data.num_clients, client_state_bytes(federation) / 1e9
    engine = f", {rt.slots} slots" if rt.engine == "slots" else ""
    warmup = federation.method.hparams.get("warmup_rounds", 0)
    all_warm = f"; ALL {config.rounds} rounds lie within the warm-up of {warmup}" if config.rounds <= warmup else ""
    return (
        f"{rt.devices} x {rt.accelerator} with {rt.threads} CPU threads each, {config.precision}{engine}; "
        f"what {clients} clients keep between visits takes up to {kept:.2g} GB{all_warm}"
    )


def client_state_bytes(federation: Federation) -> int:
    """What all clients together may keep between their visits, in bytes."""
    return federation.engine.kept_bytes() * federation.data.num_clients


def facts(data: FSSLDataModule) -> Mapping[str, Any]:
    """What a record says about the data: hashes of what was read and of the partition, class counts, the number of
    images that are tested on, and what the data set adds (``provenance``).
    """
    held = [row for row in data.class_counts("labelled").tolist() if any(row)]
    known = {
        "partition_hash": data.partition.hash,
        "data_sha256": data.sha256,
        "labelled_histogram": held,
        "class_counts": class_counts(data),
        "test_images": len(data.test_labels),
    }
    return {**known, **data.provenance}


def class_counts(data: FSSLDataModule) -> dict[str, list[str]]:
    """Images per class, a line for each client: ``labelled`` and ``unlabelled``; ``server``: a line, or none.

    A line is one text, since a list would take as many lines of the record as there are classes.
    """
    server = torch.bincount(data.server.labels.cpu(), minlength=data.num_classes).tolist()
    counts = {
        "labelled": data.class_counts("labelled").tolist(),
        "unlabelled": data.class_counts("unlabelled").tolist(),
        "server": [server] if any(server) else [],
    }
    return {role: [" ".join(map(str, row)) for row in rows] for role, rows in counts.items()}


class _Recorder:
    """Writes each evaluated round to the run's folder and its mirror, and a checkpoint as often as it may.

    It holds the state at the end of the last round, whose tensors nothing changes any more, so that it can be saved at
    any moment.
    """

    def __init__(self, run: RunFolder, mirror: Mirror, every_s: float) -> None:
        self.run, self.mirror = run, mirror
        self.checkpoint = checkpoint.Checkpoint(run.path / CHECKPOINT, every_s)
        self.state: dict[str, Any] | None = None

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        if row is not None:
            self.run.append(row)
            self.mirror.row(row)
        self.run.beat(federation.round)
        self.state = federation.state_dict()
        if federation.round < federation.rounds and self.checkpoint.due(self.state):
            self.save()
        check_stopped()

    def save(self) -> None:
        """Write a checkpoint of the end of the last round, unless it has been written."""
        if self.state is not None:
            self.checkpoint.save({**self.state, "origin": self.run.origin})
            self.run.saved(self.state["round"])
            self.state = None

    def finish(self) -> None:
        """Write the complete record, which makes checkpoints superfluous."""
        self.state = None
        self.mirror.record(self.run.finish())


if __name__ == "__main__":
    from benchmark.cli import main

    sys.exit(main(["fit", *sys.argv[1:]]))
