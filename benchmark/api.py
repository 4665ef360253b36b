"""Python interface, for notebooks, scripts and other packages.

from benchmark.api import fit

result = fit("fedavg", "digits", rounds=10)
result.rounds.plot(x="round", y="acc")
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from benchmark.config import Run, RunConfig, Runtime, from_dict, with_pipeline
from benchmark.federation.assembly import assemble, make_method
from benchmark.federation.loop import Federation
from benchmark.federation.metrics import scores
from benchmark.launch.run import fit as fit_on_disk
from benchmark.registry import KINDS, is_importable, path_of, register_local
from benchmark.report import frame
from benchmark.runs.environment import accelerator_here, free_threads
from benchmark.runs.exported import LOOK, SIZES, WEIGHTS, Exported, read_exported, read_weights
from benchmark.runs.loggers import callbacks
from benchmark.runs.records import read_record, read_rows, readings
from benchmark.suites.suite import load
from datamodules.base import FSSLDataModule
from datamodules.common.devices import threads
from datamodules.common.errors import ConfigError, one_line
from methods.base import FedMethod

IN_MEMORY = frozenset({"accelerator", "threads", "engine", "slots", "replay", "callbacks", "data_dir"})


@dataclass(repr=False, eq=False)
class Result:
    """The result of a run.

    Args:
        run: the run.
        rows: its evaluated rounds.
        path: folder of its record, if any.
        averaged: the reading of its averaged model, if any.
        exported: what the file has that it was loaded from, if any.
    """

    run: Run
    rows: list[dict[str, Any]]
    path: Path | None = None
    averaged: Mapping[str, Any] | None = None
    exported: Exported | None = None

    @property
    def config(self) -> RunConfig:
        """The configuration."""
        return self.run.config

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per evaluated round: metrics in percent, mean losses, bytes sent so far, ``timing.seconds``."""
        return pd.json_normalize(self.rows)

    @property
    def readings(self) -> pd.DataFrame:
        """One row per reading.

        Metrics of the ``final`` round, of the ``best`` round by test accuracy, ``last_k_mean``, and ``averaged`` once a
        run with ``average_last`` is complete.
        """
        if not self.rows:
            return pd.DataFrame()
        found = readings(self.rows, self.config.last_k)
        found |= {"averaged": dict(self.averaged)} if self.averaged else {}
        return pd.DataFrame.from_dict(found, orient="index")

    @cached_property
    def data(self) -> FSSLDataModule:
        """The data module; set up, unless an exported file says all that the method needs to know of it.

        Raises:
            ConfigError: the current code does not know its class or an argument.
            DataError: the data are missing.
        """
        data = self.run.make_data()
        data.place(torch.device("cpu"), torch.float64 if self.config.precision == "64-true" else torch.float32)
        if not (self.exported and self.exported.input):
            data.setup()
            return data
        for name in LOOK:
            setattr(data, name, self.exported.input[name])
        data.views = data._views()
        return data

    @cached_property
    def method(self) -> FedMethod:
        """The method with the global model of the last round; ``method.model`` is the network.

        Raises:
            RunError: the run's folder has no weights, or their file is damaged.
            ConfigError: the current code does not know its class, its network or an argument; or see ``data``.
            DataError: see ``data``.
        """
        exported = self.exported
        weights = exported.weights if exported else read_weights((self.path or Path()) / WEIGHTS)
        recorded = exported.input if exported else {}
        sizes = {name: recorded.get(name) or getattr(self.data, name) for name in SIZES}
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random state unchanged
            method = make_method(self.run, self.data, **sizes).to(dtype=self.data.dtype)
        method.load_tensors(weights)
        method._engine.autocast = _fabric(self.config.precision, "cpu").autocast
        return method.eval()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers."""
        return tuple(self.data.class_names)

    def predict(self, images: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Classify images by ``method``, seen as the run has seen its test images; int64 ``[B]``, see ``class_names``.

        Args:
            images: uint8 ``[B, height, width, 1 or 3]``, an array or a tensor; or the feature vectors ``[B, d]`` of a
                data set that has such.

        Raises:
            ConfigError: the run would have refused them: they have colour, or with a border are not of its side; or
                see ``method``.
            DataError: they are something else, or see ``data``.
            RunError: see ``method``.
        """
        blocks = torch.split(torch.as_tensor(images), self.method.eval_batch)
        with torch.inference_mode(), self.method.autocast():
            classes = [self.method.predict(self.data.see(block)).argmax(dim=1).cpu() for block in blocks]
        return torch.cat(classes).numpy()

    def test(self) -> dict[str, float]:
        """Compute the metrics of ``method`` on the test images again, in percent; reads the data set.

        Raises:
            RunError: see ``method``.
            ConfigError: see ``method``.
            DataError: the data are missing.
        """
        method, data = self.method, self.data
        data.setup()
        with torch.inference_mode(), method.autocast():
            blocks = [method.predict(block()) for _, block in data.test_blocks(method.eval_batch)]
        return scores(torch.cat(blocks), data.test_labels)[0]

    def __repr__(self) -> str:
        done = self.rows[-1]["round"] + 1 if self.rows else 0
        return f"{self.run.name}, seed {self.config.seed}, {done} of {self.config.rounds} rounds\n{self.readings}"


def fit(
    method: str | type[FedMethod],
    data: str | type[FSSLDataModule],
    *,
    method_args: Mapping[str, Any] | None = None,
    data_args: Mapping[str, Any] | None = None,
    results_dir: str | Path | None = None,
    **options: Any,
) -> Result:
    """Run a federation and return its result.

    Without ``results_dir`` it runs in this process and writes nothing but caches of data, and the classes may come from
    anywhere, e.g. a notebook cell. With it, this is the command ``fit``: the run has a folder with its record, is
    resumed after an interruption, and is not repeated once it is complete.

    Args:
        method: name, dotted path or class of the method.
        data: name, dotted path or class of the data set.
        method_args: arguments of the method, except those passed by the framework (the network, numbers of classes,
            clients and images, the shape of an image).
        data_args: arguments of the data set: clients, labels, partition, pipeline.
        results_dir: folder that holds ``runs/``.
        **options: other fields of ``RunConfig`` (``model``, ``model_args``, ``rounds``, ``seed``, ``roster``,
            ``eval_every``, ``precision``, ...) and of ``Runtime`` (``accelerator``, ``threads``, ``data_dir``, ...).
            ``devices`` defaults to 1, not to SLURM's tasks.

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data cannot be read, or the partition cannot be created.
        RunError: the run cannot continue.
        Stopped: with ``results_dir``, on ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP``; the same call resumes.
    """
    if "runtime" in options:
        raise ConfigError("runtime: pass its options as separate arguments, such as engine='slots'")
    runtime = {f.name: options.pop(f.name) for f in fields(Runtime) if f.name in options}
    if results_dir is None:
        for name in sorted(set(runtime) - IN_MEMORY):
            raise ConfigError(f"{name} is for runs with a record: also give results_dir, or leave it out")
    else:
        runtime = {"devices": 1, **runtime, "results_dir": str(results_dir)}
    values = {
        "method": {"class_path": _class_path(method), "init_args": dict(method_args or {})},
        "data": {"class_path": _class_path(data), "init_args": dict(data_args or {})},
        **options,
        "runtime": runtime,
    }
    run = Run.of(from_dict(with_pipeline(json.loads(json.dumps(values, default=_plain)))))
    return _in_memory(run) if results_dir is None else _on_disk(run)


def load_run(path: str | Path, data_dir: str = "data") -> Result:
    """Load a run from its folder, complete or not, or from a file written by ``fit --export``.

    Args:
        path: the folder, or the file.
        data_dir: directory of its data (see ``Result.data``).

    Raises:
        RunError: there is no record, or it is damaged.
        ConfigError: the current code does not know its configuration.
    """
    path = Path(path)
    exported = read_exported(path) if path.is_file() else None
    record, rows = (exported.record, exported.rows) if exported else (read_record(path), read_rows(path))
    config = from_dict({**record["config"], "runtime": {"data_dir": data_dir}})
    run = Run(record["run_id"], config)  # not `Run.of`: its classes need not be available
    return Result(run, rows, path=None if exported else path, averaged=record.get("averaged"), exported=exported)


def load_runs(results_dir: str | Path = "results") -> pd.DataFrame:
    """Load all records below a folder: one row per run, nested keys joined by dots (``final.acc``, ``config.seed``).

    ``path`` is the run's folder, ``status`` is ``complete``, ``failed``, or ``running``, also where it was interrupted.

    Raises:
        RunError: a record is damaged.
    """
    paths = sorted(file.parent for file in Path(results_dir, "runs").glob("*/record.json"))
    runs = [{"path": str(path), **read_record(path)} for path in paths]
    return pd.json_normalize(runs) if runs else pd.DataFrame(columns=["path", "status"])


def load_rounds(paper: str, scale: str, results_dir: str | Path = "results") -> pd.DataFrame:
    """Load the evaluated rounds of all complete runs of a suite's rows: one line per row, seed and round.

    The columns of ``metrics.jsonl`` are preceded by ``table``, ``dataset``, ``row`` (the method's name in the table,
    and the columns that distinguish rows of the same name) and ``seed``. Added are ``bytes`` (up and down) and
    ``seconds``, both since the first round.

    Args:
        paper: name of a suite, or the path of its YAML file.
        scale: scale of the suite.
        results_dir: folder that holds ``runs/``.

    Raises:
        ConfigError: there is no such suite or scale.
    """
    suite = load(paper)
    return frame.rounds(suite, suite.matching([], scale), scale, results_dir)


class _RowCollector:
    """Callback that collects the evaluated rounds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        if row is not None:
            self.rows.append(row)


def _in_memory(run: Run) -> Result:
    runtime, collector = run.config.runtime, _RowCollector()
    fabric = _fabric(run.config.precision, accelerator_here(runtime.accelerator))
    fabric.launch()
    num_threads = min(torch.get_num_threads(), free_threads()) if runtime.threads == "auto" else runtime.threads
    with threads(num_threads), torch.random.fork_rng(devices=[]):
        federation = assemble(run, fabric, [collector, *callbacks(runtime.callbacks)])
        federation.run()
        federation.become_server()
    result = Result(run, collector.rows, averaged=federation.averaged)
    result.method, result.data = federation.method.eval(), federation.data
    return result


def _fabric(precision: str, accelerator: str) -> Fabric:
    try:
        return Fabric(accelerator=accelerator, devices=1, precision=precision)  # type: ignore[arg-type]
    except (ValueError, RuntimeError, MisconfigurationException) as refused:
        raise ConfigError(f"accelerator={accelerator}: {one_line(refused)}") from None


def _on_disk(run: Run) -> Result:
    paths = (run.config.model, str(run.config.data.init_args.get("pipeline")))
    local = [path_of(cls) for cls in map(run.class_of, KINDS) if not is_importable(cls)]
    local += [path for path in paths if path.startswith("__main__.")]
    if local:
        raise ConfigError(
            f"{local[0]} cannot be imported by others, so a record of it would be meaningless: put it into a module, "
            "or leave results_dir out"
        )
    with threads("auto"), torch.random.fork_rng(devices=[]):  # the caller's stay as they are
        path = fit_on_disk(run)
    return load_run(path, run.config.runtime.data_dir)


def _class_path(cls: str | type) -> str:
    return cls if isinstance(cls, str) else register_local(cls)


def _plain(value: Any) -> Any:
    """A number of NumPy as a plain one; anything else, such as a path, as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
