"""``fit``: one run."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import DOTTED, MAPPINGS, asked_help, require
from benchmark.config import RunConfig, Runtime, apply, folder, from_dict, identity, resolve, run_id
from benchmark.files import load_yaml
from benchmark.registry import KINDS
from benchmark.suites.suite import PlannedRun, load, rows_of_papers
from datamodules.common.errors import ConfigError

ABOUT = f"Run one configuration, or finish it. {DOTTED}"


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    text = str | None
    parser.add_argument("--config", type=text, help="YAML file to start from, e.g. the config.yaml of a run")
    parser.add_argument("--suite", type=text, help="start from a row of this suite, or of this .yaml file; needs --row")
    parser.add_argument(
        "--row",
        type=text,
        help="table/dataset/method as `status` lists it; --scale is that of the suite (default: paper)",
    )
    parser.add_argument("--method", type=text, help="name or dotted path of the method")
    parser.add_argument("--data", type=text, help="name or dotted path of the data set")
    parser.add_class_arguments(RunConfig, skip={*KINDS, *MAPPINGS, "runtime"})
    parser.add_class_arguments(Runtime)


def run(options: Namespace, dotted: dict[str, Any]) -> int:
    """Carry the command out; returns its exit code."""
    if asked_help(dotted):
        return 0
    values: dict[str, Any] = {}
    given = dict(vars(options))
    path, suite, row = (given.pop(name, None) for name in ("config", "suite", "row"))
    start: RunConfig | None = None
    if suite or row:
        start = _row(suite, row, path, given.pop("scale", "paper"))
        values = identity(start)
    if path:
        try:
            values = load_yaml(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {path}: {getattr(error, 'strerror', None) or error}") from None
    runtime = {f.name for f in fields(Runtime)}
    given = {f"runtime.{k}" if k in runtime else k: v for k, v in given.items()}
    values = apply(values, {**given, **dotted})
    for slot in KINDS:
        require(slot, values)
    config = resolve(from_dict(values))
    if start and run_id(replace(config, seed=start.seed)) != run_id(start):
        config = replace(config, scale="custom")  # no longer the suite's
    elsewhere = [] if start or path else rows_of_papers(config)

    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from benchmark.launch.progress import Display
    from benchmark.report.records import read_record, state
    from benchmark.run import fit_resolved

    if elsewhere:
        rank_zero_only(print)(
            "note: the constants of a paper's table are others than the defaults; "
            f"`fit --suite SUITE --row ROW` starts from them ({'; '.join(elsewhere)})"
        )
    before = state(folder(config))
    shown = PlannedRun(run_id(config), config, [f"{config.method.name} on {config.data.name}"])
    with Display(1) if getattr(rank_zero_only, "rank", 0) == 0 else nullcontext() as display:
        if display:
            display.start(shown)
        with display.ticking() if display else nullcontext():
            path = fit_resolved(config)
    record, tell = read_record(path), rank_zero_only(print)
    tell(f"{path}{' (was complete, nothing was run)' if before == 'complete' else ''}")
    tell(f"best (round {record['best']['round']}): {_scores(record['best'])}")
    tell(f"last (round {record['final']['round']}): {_scores(record['final'])}")
    if config.report == "last_k_mean":
        tell(f"last_k_mean ({record['last_k_mean']['rounds']} rounds): {_scores(record['last_k_mean'])}")
    return 0


def _row(suite: str | None, row: str | None, path: str | None, scale: str) -> RunConfig:
    """The configuration of a row of a suite."""
    if path:
        raise ConfigError("--config and --suite both say where to start; give one of them")
    if not (suite and row):
        raise ConfigError("--suite and --row go together, as in --suite PAPER --row TABLE/DATASET/METHOD")
    suites = load(suite)
    return suites.config(suites.row(row, scale), scale)


def _scores(reading: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in reading.items() if isinstance(value, float))
