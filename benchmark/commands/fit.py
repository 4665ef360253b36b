"""``fit``: one run, or one for each of several seeds."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import DOTTED, MAPPINGS, TEXT, add_flag, asked_help, discard, numbers, show_plan
from benchmark.config import Run, RunConfig, Runtime, apply, from_dict, identity, with_pipeline
from benchmark.registry import KINDS, find_class
from benchmark.runs.records import READING, read_record
from benchmark.runs.states import state
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError
from datamodules.common.yaml import read_yaml

ABOUT = f"Run one configuration, or finish it. {DOTTED}"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--config", type=TEXT, help="YAML file to start from, e.g. the config.yaml of a run")
    parser.add_argument("--suite", type=TEXT, help="start from a row of this suite, or of this .yaml file; needs --row")
    parser.add_argument(
        "--row",
        type=TEXT,
        help="table/dataset/method as `status` lists it; --scale is that of the suite (default: its first)",
    )
    parser.add_argument("--method", type=TEXT, help="name or dotted path of the method")
    parser.add_argument("--data", type=TEXT, help="name or dotted path of the data set")
    parser.add_argument(
        "--seed",
        type=TEXT,
        help="seed of the run (default: that of --config or the row, or 1337); several, 0,1,2, are run one by one",
    )
    add_flag(parser, "--dry_run", "run nothing; print the rounds left, and the time where records allow")
    add_flag(parser, "--overwrite", "delete what an earlier run of this configuration has left, and run it")
    parser.add_argument("--export", type=TEXT, help="file to write the trained model to, with its configuration")
    parser.add_class_arguments(RunConfig, skip={*KINDS, *MAPPINGS, "seed", "runtime"})
    parser.add_class_arguments(Runtime)


def run(options: Namespace, dotted: dict[str, Any]) -> int:
    """Run the command; returns its exit code."""
    if asked_help(dotted):
        return 0
    given = dict(vars(options))
    dry_run, overwrite, export = given.pop("dry_run", None), given.pop("overwrite", None), given.pop("export", None)
    seeds = dict.fromkeys(numbers(given.pop("seed", None), "--seed"))
    template = _described(*_start(given, dotted))
    runs = [template.replace(seed=seed) for seed in seeds or [template.config.seed]]
    if export and (dry_run or len(runs) > 1 or Path(export).is_dir()):
        raise ConfigError(f"--export {export}: give the name of a file, and one run, not several or a dry one")

    if dry_run:
        show_plan(runs, {run.id: "missing" if overwrite else state(run.folder) for run in runs})
        return 0
    if overwrite:
        from benchmark.launch.run import check

        check(template)  # a value out of range is refused before anything is deleted
        discard(run.folder for run in runs)
    return _run_several(runs) if len(runs) > 1 else _run_one(runs[0], export)


def _start(given: dict[str, Any], dotted: Mapping[str, Any]) -> tuple[dict[str, Any], Run | None]:
    """Plain configuration of all options on top of what they start from, and the run of the row if it is a suite's."""
    values, start = dict[str, Any](), None
    path, paper, row = given.pop("config", None), given.pop("suite", None), given.pop("row", None)
    if bool(paper) != bool(row) or (path and paper):
        raise ConfigError("start from --config FILE, or from --suite PAPER --row TABLE/DATASET/METHOD")
    if paper:
        suite = load(paper)
        scale = given.pop("scale", None) or next(iter(suite.spec.scales))
        start = suite.run(suite.row(row, scale), scale)
        values = identity(start.config)
        name = given.get("method")
        if name and not issubclass(find_class(name, KINDS["method"]), start.class_of("method")):
            del values["method"]  # its options are another method's
    if path:
        read = read_yaml(Path(path), "--config")
        options = {name: read.pop(name) for name in list(read) if "." in name}
        values = apply(read, options)
    runtime = {f.name for f in fields(Runtime)}
    if path and (dotted or given.keys() - runtime):
        values["scale"] = "custom"
    given = {f"runtime.{name}" if name in runtime else name: value for name, value in given.items()}
    values = apply(values, {**given, **dotted})
    return (values if start else with_pipeline(values)), start


def _described(values: Mapping[str, Any], start: Run | None) -> Run:
    """The run of a plain configuration; one that is no longer that of the suite's row has no scale of the suite."""
    run = Run.of(from_dict(values))
    if start and run.replace(seed=start.config.seed).id == start.id:
        return Run(run.id, run.config, start.cells)
    return run.replace(scale="custom") if start else run


def _run_several(runs: Sequence[Run]) -> int:
    """Make one run after the other, in a process each, and tell their readings; if one fails, the others still run."""
    from benchmark.launch.pool import run_all
    from benchmark.launch.progress import label

    outcomes = run_all(runs)
    complete = [outcome.run for outcome in outcomes if outcome.status == "complete"]
    for run in complete:
        print(f"{label(run)}\n{_readings(run)}")
    return 0 if len(complete) == len(runs) else 1


def _run_one(run: Run, export: str | None) -> int:
    """Make a run in this process, which may be one of several, of which the first one speaks, and export its model."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from benchmark.launch import run as one_run
    from benchmark.launch.progress import Display
    from benchmark.launch.worker import keep_memory
    from benchmark.runs.exported import export as write_model

    def is_first() -> bool:  # which is known for sure once the processes have met
        return getattr(rank_zero_only, "rank", 0) == 0

    keep_memory()
    before = state(run.folder)
    with Display(1).following(run) if is_first() else nullcontext():
        one_run.fit(run)
    if is_first():
        idle = " (was complete, nothing was run; --overwrite runs it again)" if before == "complete" else ""
        print(_readings(run, idle))
        if export:
            write_model(run, Path(export))
            print(f"wrote {export}")
    return 0


def _readings(run: Run, note: str = "") -> str:
    """The folder of a complete run, with a note, and its readings."""
    record = read_record(run.folder)
    lines = [f"{run.folder}{note}"]
    for name in dict.fromkeys(["best", "last", run.config.report, "averaged"]):
        if reading := record.get(READING[name]):
            when = f"round {reading['round']}" if "round" in reading else f"{reading['rounds']} rounds"
            scores = (f"{metric} {value:.2f}" for metric, value in reading.items() if isinstance(value, float))
            lines.append(f"{name} ({when}): {', '.join(scores)}")
    return "\n".join(lines)
