"""Federations from Python: in a notebook, in a script, or in another package.

from benchmark.api import fit

result = fit("fedavg", "digits", rounds=10)
result.rounds.plot(x="round", y="acc")
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from benchmark.config import Run, RunConfig, Runtime, from_dict, with_pipeline
from benchmark.federation.assembly import assemble, make, make_data
from benchmark.federation.exported import WEIGHTS, read_exported, read_weights
from benchmark.federation.loop import Federation
from benchmark.federation.scaling import fabric_precision
from benchmark.registry import KINDS, is_importable, one_line, path_of, register_local
from benchmark.run import fit as fit_on_disk
from benchmark.runs.loggers import callbacks
from benchmark.runs.metrics import classification_metrics
from benchmark.runs.records import read_record, read_rows, readings
from benchmark.suites.suite import load
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError
from methods.base import FedMethod

IN_MEMORY = frozenset({"accelerator", "threads", "engine", "slots", "replay", "callbacks", "data_dir"})


class Result:
    """What became of a run.

    Args:
        run: what was run.
        rows: its evaluated rounds.
        method: the trained method, if it is at hand.
        path: folder of its record, if it has one.
        weights: those of its last global model, if they were read already.
        averaged: the reading of its averaged model, if it has one.
    """

    def __init__(
        self,
        run: Run,
        rows: Sequence[Mapping[str, Any]],
        method: FedMethod | None = None,
        path: Path | None = None,
        averaged: Mapping[str, Any] | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.run, self.rows, self.path, self.averaged = run, list(rows), path, averaged
        self._weights = weights
        if method is not None:
            self.method = method

    @property
    def config(self) -> RunConfig:
        """The configuration."""
        return self.run.config

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per evaluated round: metrics in percent, means of losses, bytes sent so far, ``timing.seconds``."""
        return pd.json_normalize([dict(row) for row in self.rows])

    @property
    def readings(self) -> pd.DataFrame:
        """Metrics of the ``final`` round, of the ``best`` one by test accuracy, ``last_k_mean``, and ``averaged`` where
        the run has ``average_last``, one row each.
        """
        if not self.rows:
            return pd.DataFrame()
        found = readings([dict(row) for row in self.rows], self.config.last_k)
        found |= {"averaged": dict(self.averaged)} if self.averaged else {}
        return pd.DataFrame.from_dict(found, orient="index")

    @cached_property
    def method(self) -> FedMethod:
        """The method with the global model of the last round; ``method.model`` is the network.

        Raises:
            RunError: the run's folder has no weights, or the file is damaged.
        """
        weights = read_weights((self.path or Path()) / WEIGHTS) if self._weights is None else self._weights
        with torch.random.fork_rng(devices=[]):  # the caller's draws go on as if nothing had been made
            made, _ = make(self.run, torch.device("cpu"))
        method: FedMethod = made
        method.load_tensors(weights)
        return method.eval()

    def test(self) -> dict[str, float]:
        """Metrics of ``method`` on the test images, computed anew: those of ``final``, in percent; reads the data set.

        Raises:
            RunError: as ``method``.
            DataError: the data are missing.
        """
        data = make_data(self.run)
        data.place(self.method.device, self.method.dtype)  # type: ignore[arg-type]
        data.setup()
        with torch.inference_mode():
            blocks = [self.method.predict(block()) for _, block in data.test_blocks(self.method.eval_batch)]
        return classification_metrics(torch.cat(blocks), data.test_labels)

    def __repr__(self) -> str:
        names = f"{self.config.method.name} on {self.config.data.name}"
        return f"{names}, seed {self.config.seed}, {self.config.rounds} rounds\n{self.readings}"


def fit(
    method: str | type[FedMethod],
    data: str | type[FSSLDataModule],
    *,
    method_args: Mapping[str, Any] | None = None,
    data_args: Mapping[str, Any] | None = None,
    results_dir: str | Path | None = None,
    **options: Any,
) -> Result:
    """Run a federation and return what became of it.

    Without ``results_dir`` it runs in this process and writes nothing. The classes may then come from anywhere, a
    notebook's cell for instance. With it, this is the command ``fit``: the run has a folder with its record, is
    continued after an interruption, and is not run again once it is complete.

    Args:
        method: name, dotted path or class of the method.
        data: name, dotted path or class of the data set.
        method_args: arguments of the method, without those that the run hands over (the network, numbers of classes
            and clients).
        data_args: arguments of the data set: clients, labels, partition, pipeline.
        results_dir: folder that holds ``runs/``.
        **options: other fields of ``RunConfig`` (``model``, ``model_args``, ``rounds``, ``seed``, ``roster``,
            ``eval_every``, ``precision``, ...) and of ``Runtime`` (``accelerator``, ``threads``, ``data_dir``, ...).
            ``devices`` is 1 unless it is given: notebooks cannot start processes.

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data or the partition cannot be made.
        RunError: the run cannot go on.
    """
    if "runtime" in options:
        raise ConfigError("runtime: give its options by themselves, such as engine='slots'")
    runtime = {f.name: options.pop(f.name) for f in fields(Runtime) if f.name in options}
    if results_dir is None:
        for name in sorted(set(runtime) - IN_MEMORY):
            raise ConfigError(f"{name} is for runs that keep a record: give results_dir, too, or leave it out")
    else:
        runtime = {"devices": 1, **runtime, "results_dir": str(results_dir)}
    values = {
        "method": {"class_path": _named(method), "init_args": dict(method_args or {})},
        "data": {"class_path": _named(data), "init_args": dict(data_args or {})},
        **options,
        "runtime": runtime,
    }
    run = Run.of(from_dict(with_pipeline(values)))
    return _in_memory(run) if results_dir is None else _on_disk(run)


def load_run(path: str | Path, data_dir: str = "data") -> Result:
    """A run from its folder, complete or not, or from the file that ``fit --export`` wrote of it.

    Args:
        path: the folder, or the file.
        data_dir: where its data are, should its ``method`` be asked for.

    Raises:
        RunError: there is no record, or it is damaged.
        ConfigError: the code does not know its configuration any more.
    """
    if Path(path).is_file():
        held = read_exported(Path(path))
        run = _recorded(held.record, data_dir)
        return Result(run, held.rows, averaged=held.record.get("averaged"), weights=held.weights)
    record = read_record(Path(path))
    run = _recorded(record, data_dir)
    return Result(run, read_rows(Path(path)), path=Path(path), averaged=record.get("averaged"))


def _recorded(record: Mapping[str, Any], data_dir: str) -> Run:
    """The run of a record, whose configuration was resolved when it was made; its classes need not be at hand."""
    return Run(record["run_id"], from_dict({**record["config"], "runtime": {"data_dir": data_dir}}))


def load_runs(results_dir: str | Path = "results") -> pd.DataFrame:
    """All records below a folder: one row per run, nested keys joined by dots (``final.acc``, ``config.seed``).

    ``path`` is the run's folder, ``status`` says whether it is complete.

    Raises:
        RunError: a record is damaged.
    """
    paths = sorted(file.parent for file in Path(results_dir, "runs").glob("*/record.json"))
    return pd.json_normalize([{"path": str(path), **read_record(path)} for path in paths])


def load_rounds(paper: str, scale: str, results_dir: str | Path = "results") -> pd.DataFrame:
    """The evaluated rounds of all complete runs behind a suite's rows: one line per row, seed and round.

    Before the columns of ``metrics.jsonl`` stand ``table``, ``dataset``, ``row`` (the method as the table calls it, and
    the columns that tell rows of one name apart) and ``seed``.

    Args:
        paper: name of a suite, or the path of its YAML file.
        scale: one of the suite's.
        results_dir: the folder above ``runs``.

    Raises:
        ConfigError: there is no such suite or scale.
        RunError: a record is damaged.
    """
    suite = load(paper)
    plan = suite.plan(scale, runtime=Runtime(results_dir=str(results_dir)))
    parts = []
    for row in suite.rows:
        name = row.full_name.removeprefix(f"{row.table}/{row.dataset}/")
        for seed, key in plan.of_row.get(id(row), {}).items():
            if plan.found[key].record is not None:
                rounds = pd.json_normalize(read_rows(plan.runs[key].folder))
                where = {"table": row.table, "dataset": row.dataset, "row": name, "seed": seed}
                parts.append(pd.concat([pd.DataFrame(where, rounds.index), rounds], axis=1))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["table", "dataset", "row", "seed"])


class _Rows:
    """Keeps the evaluated rounds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        if row is not None:
            self.rows.append(row)


def _in_memory(run: Run) -> Result:
    runtime, rows = run.config.runtime, _Rows()
    try:
        precision = fabric_precision(run.config.precision, runtime.accelerator)
        fabric = Fabric(accelerator=runtime.accelerator, devices=1, **precision)
    except (ValueError, RuntimeError, MisconfigurationException) as refused:
        raise ConfigError(f"accelerator={runtime.accelerator}: {one_line(refused)}") from None
    fabric.launch()
    with _threads(runtime.threads), torch.random.fork_rng(devices=[]):
        method, data = make(run, fabric.device)
        federation = assemble(run, method, data, fabric, [rows, *callbacks(runtime.callbacks)])
        federation.run()
        federation.become_server()
    return Result(run, rows.rows, method.eval(), averaged=federation.averaged)


def _on_disk(run: Run) -> Result:
    for slot, kind in KINDS.items():
        cls = run.class_of(slot)
        if not is_importable(cls):
            raise ConfigError(
                f"{kind.what} '{path_of(cls)}' cannot be imported by anybody else, so that a record of it would mean "
                "nothing: put the class into a module, or leave results_dir out"
            )
    return load_run(fit_on_disk(run), run.config.runtime.data_dir)


def _named(given: str | type) -> str:
    return given if isinstance(given, str) else register_local(given)


@contextmanager
def _threads(number: int | str) -> Iterator[None]:
    """Run with so many threads of torch; ``auto`` leaves them as they are."""
    before = torch.get_num_threads()
    if isinstance(number, int):
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
