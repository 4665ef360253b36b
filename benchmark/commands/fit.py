"""``fit``: one run, or one for each of several seeds and of several values of options."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import DOTTED, MAPPINGS, asked_help, discard, numbers, require, warn_of_slow_precision
from benchmark.config import Run, RunConfig, Runtime, apply, from_dict, identity, with_pipeline
from benchmark.files import read_yaml
from benchmark.launch.signals import STOPPED, check_stopped
from benchmark.registry import KINDS, one_line
from benchmark.suites.suite import load
from datamodules.common.errors import BenchError, ConfigError, Stopped, message_of

ABOUT = f"Run one configuration, or finish it. {DOTTED} Several values, --method.lr 0.01,0.03, are run one by one."


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    text = str | None
    parser.add_argument("--config", type=text, help="YAML file to start from, e.g. the config.yaml of a run")
    parser.add_argument("--suite", type=text, help="start from a row of this suite, or of this .yaml file; needs --row")
    parser.add_argument(
        "--row",
        type=text,
        help="table/dataset/method as `status` lists it; --scale is that of the suite (default: its first)",
    )
    parser.add_argument("--method", type=text, help="name or dotted path of the method")
    parser.add_argument("--data", type=text, help="name or dotted path of the data set")
    parser.add_argument(
        "--seed", type=text, help="seed of every random stream (default: 1337); several, 0,1,2, are run one by one"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="run nothing; say how many rounds, how long, how much memory and disk"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="delete what an earlier run of this configuration has left, and run it"
    )
    parser.add_argument("--export", type=text, help="file to write the trained model to, with its configuration")
    parser.add_class_arguments(RunConfig, skip={*KINDS, *MAPPINGS, "seed", "runtime"})
    parser.add_class_arguments(Runtime)


def run(options: Namespace, dotted: dict[str, Any]) -> int:
    """Carry the command out; returns its exit code."""
    if asked_help(dotted):
        return 0
    given = dict(vars(options))
    dry, seeds = given.pop("dry_run", False), numbers(given.pop("seed", None), "--seed")
    overwrite, export = given.pop("overwrite", False), given.pop("export", None)
    points = grid(dotted, lambda point: _described(dict(given), point))
    made = [(point, _described(dict(given), {**dotted, **point})) for point in points]
    named = [
        (point, first.replace(seed=seed) if seeds else first)
        for point, first in made
        for seed in dict.fromkeys(seeds or [first.config.seed])
    ]
    runs = [run for _, run in named]
    if export and (dry or len(runs) > 1):
        raise ConfigError(f"--export {export}: a file holds the model of one run; this is {_what(dry, len(runs))}")

    if export and Path(export).is_dir():
        raise ConfigError(f"--export {export}: this is a folder; give the file to write, such as {export}/model.pt")

    from lightning.fabric.utilities.rank_zero import rank_zero_only

    tell = rank_zero_only(print)
    warn_of_slow_precision(runs[0].config.precision, runs[0].config.runtime.accelerator)
    if dry:
        from benchmark.commands.dry_run import show
        from benchmark.runs.states import state

        states = {run.id: "missing" if overwrite else state(run.folder) for run in runs}
        show([_naming(point, run) for point, run in named], states, jobs=1)
        return 0
    if len(points) > 1:
        _check_points(made)
    if overwrite:
        discard(runs)
    if len(runs) == 1:
        code = _one(runs[0], tell)
        if export and code == 0 and getattr(rank_zero_only, "rank", 0) == 0:
            from benchmark.federation.exported import export as write_model

            write_model(runs[0].folder, Path(export))
            tell(f"wrote {export}")
        return code
    code = _several(named, tell)
    if len(points) > 1 and code not in (STOPPED, 130):
        tell(f"\n{compared(named)}")
    return code


def grid(dotted: Mapping[str, Any], check: Callable[[dict[str, Any]], Any]) -> list[dict[str, str]]:
    """The points of the grid that options with several values make, ``--method.lr 0.01,0.03``; one without any.

    Args:
        dotted: options of the method and the data set, their values as text.
        check: raises ``ConfigError`` for options that make no configuration. A text with commas that its option takes
            as it stands is one value.
    """
    with_commas = {name: value for name, value in dotted.items() if isinstance(value, str) and _values(value)}
    several: dict[str, list[str]] = {}
    for name, text in with_commas.items():
        one_each = {other: _values(value)[0] for other, value in with_commas.items()}
        try:
            check({**dotted, **one_each, name: text})
        except ConfigError:
            several[name] = _values(text)
    return [dict(zip(several, values, strict=True)) for values in product(*several.values())]


def _values(text: str) -> list[str]:
    """The values in a text with commas; none where it is one value, or a list in brackets."""
    parts = [part.strip() for part in text.split(",")]
    return list(dict.fromkeys(parts)) if len(parts) > 1 and all(parts) and text[0] not in "[{(" else []


def compared(named: Sequence[tuple[Mapping[str, str], Run]]) -> str:
    """A table with a line per point of a grid: accuracy of its runs that are complete, by the reading of ``report``."""
    from tabulate import tabulate

    from benchmark.report.statistics import interval
    from benchmark.runs.records import READING
    from benchmark.runs.states import look

    points: dict[tuple[str, ...], list[float]] = {}
    for point, run in named:
        scores = points.setdefault(tuple(point.values()), [])
        state, record = look(run.folder)
        if state == "complete" and record:
            scores.append(record[READING[run.config.report]]["acc"])
    body = []
    for values, scores in points.items():
        half = interval(scores)
        told = f"{fmean(scores):.2f}{'' if half is None else f' ± {half:.2f}'}" if scores else "no result"
        body.append([*values, told, str(len(scores))])
    heads = [*named[0][0], f"acc ({named[0][1].config.report})", "seeds"]
    return str(tabulate(body, heads, tablefmt="simple", disable_numparse=True))


def _described(given: dict[str, Any], dotted: Mapping[str, Any]) -> Run:
    """The run that the options describe."""
    values: dict[str, Any] = {}
    path, suite, row = (given.pop(name, None) for name in ("config", "suite", "row"))
    start: Run | None = None
    if suite or row:
        start = _row(suite, row, path, given.pop("scale", None))
        values = identity(start.config)
    if path:
        values = read_yaml(Path(path), "--config")
    runtime = {f.name for f in fields(Runtime)}
    given = {f"runtime.{k}" if k in runtime else k: v for k, v in given.items()}
    values = apply(values, {**given, **dotted})
    for slot in KINDS:
        require(slot, values)
    if not (start or path):
        values = with_pipeline(values)
    config = from_dict(values)
    run = Run.of(config, f"{config.method.name} on {config.data.name}")
    if start and run.replace(seed=start.config.seed).id != start.id:
        run = run.replace(scale="custom")  # no longer the suite's
    return run


def _row(suite: str | None, row: str | None, path: str | None, scale: str | None) -> Run:
    """The run of a row of a suite, at its first scale where none is given: the full one."""
    if path:
        raise ConfigError("--config and --suite both say where to start; give one of them")
    if not (suite and row):
        raise ConfigError("--suite and --row go together, as in --suite PAPER --row TABLE/DATASET/METHOD")
    suites = load(suite)
    scale = scale or next(iter(suites.spec["scales"]))
    return suites.run(suites.row(row, scale), scale)


def _what(dry: bool, runs: int) -> str:
    return "a dry run" if dry else f"a command for {runs} runs"


def _several(named: Sequence[tuple[Mapping[str, str], Run]], tell: Any) -> int:
    """One run after the other; one that fails does not keep the next from being run."""
    failed = 0
    for point, run in named:
        name = ", ".join([*(f"{option} {value}" for option, value in point.items()), f"seed {run.config.seed}"])
        tell(name)
        try:
            code = _one(run, tell)
        except Exception as error:
            check_stopped()
            print(f"error: {name}: {one_line(message_of(error))}", file=sys.stderr)
            code = 1
        if code in (STOPPED, 130):
            return code
        failed += bool(code)
    return 1 if failed else 0


def _one(run: Run, tell: Any) -> int:
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from benchmark.launch.progress import Display, continuation
    from benchmark.run import fit
    from benchmark.runs.records import read_record
    from benchmark.runs.states import state

    config, before = run.config, state(run.folder)
    try:
        with Display(1) if getattr(rank_zero_only, "rank", 0) == 0 else nullcontext() as display:
            if display:
                display.start(run)
            with display.ticking() if display else nullcontext():
                path = fit(run)
    except (KeyboardInterrupt, Stopped) as ended:
        how, code = (str(ended), STOPPED) if isinstance(ended, Stopped) else ("interrupted", 130)
        tell(f"{how}; the same command {continuation(run)}", file=sys.stderr)
        return code
    record = read_record(path)
    done = " (was complete, nothing was run; --overwrite runs it again)"
    tell(f"{path}{done if before == 'complete' else ''}")
    tell(f"best (round {record['best']['round']}): {_scores(record['best'])}")
    tell(f"last (round {record['final']['round']}): {_scores(record['final'])}")
    if config.report == "last_k_mean":
        tell(f"last_k_mean ({record['last_k_mean']['rounds']} rounds): {_scores(record['last_k_mean'])}")
    if config.average_last:
        tell(f"averaged ({record['averaged']['rounds']} rounds): {_scores(record['averaged'])}")
    return 0


def _scores(reading: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in reading.items() if isinstance(value, float))


def _naming(point: Mapping[str, str], run: Run) -> Run:
    """A run of a grid, called by its values as well."""
    values = "".join(f", {option} {value}" for option, value in point.items())
    return replace(run, cells=tuple(f"{cell}{values}" for cell in run.cells))


def _check_points(made: Sequence[tuple[Mapping[str, str], Run]]) -> None:
    """Build what every point of a grid describes, so that a value out of range is refused before the first run.

    Raises:
        BenchError: a point cannot be built; the message names its values.
    """
    from torch import device

    from benchmark.federation.assembly import make

    for point, run in made:
        try:
            _, data = make(run, device("cpu"))
            data.roster(run.config.seed, **run.config.roster)
        except BenchError as error:
            values = ", ".join(f"{option} {value}" for option, value in point.items())
            raise type(error)(f"{values}: {error}") from error
