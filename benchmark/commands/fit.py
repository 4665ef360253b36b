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
from benchmark.config import RunConfig, Runtime, apply, folder, from_dict, identity, resolve, run_id, with_pipeline
from benchmark.files import read_yaml
from benchmark.launch.signals import STOPPED, check_stopped
from benchmark.registry import KINDS, one_line
from benchmark.suites.plan import PlannedRun
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError, Stopped, told

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
    points = grid(dotted, lambda point: _configuration(dict(given), point))
    made = [(point, _configuration(dict(given), {**dotted, **point})) for point in points]
    named = [
        (point, replace(config, seed=seed)) for point, config in made for seed in dict.fromkeys(seeds or [config.seed])
    ]
    configs = [config for _, config in named]
    if export and (dry or len(configs) > 1):
        raise ConfigError(f"--export {export}: a file holds the model of one run; this is {_what(dry, len(configs))}")

    from lightning.fabric.utilities.rank_zero import rank_zero_only

    tell = rank_zero_only(print)
    warn_of_slow_precision(configs[0].precision, configs[0].runtime.accelerator)
    if dry:
        from benchmark.commands.dry_run import show
        from benchmark.runs.records import state

        planned = [_planned(config) for config in configs]
        show(planned, {run.id: state(run.folder) for run in planned}, jobs=1)
        return 0
    if overwrite:
        discard(configs)
    if len(configs) == 1:
        code = _one(configs[0], tell)
        if export and code == 0 and getattr(rank_zero_only, "rank", 0) == 0:
            from benchmark.federation.exported import export as write_model

            write_model(folder(configs[0]), Path(export))
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


def compared(named: Sequence[tuple[Mapping[str, str], RunConfig]]) -> str:
    """A table with a line per point of a grid: accuracy of its runs that are complete, by the reading of ``report``."""
    from tabulate import tabulate

    from benchmark.report.statistics import interval
    from benchmark.runs.records import READING, read_record, state

    points: dict[tuple[str, ...], list[float]] = {}
    for point, config in named:
        scores = points.setdefault(tuple(point.values()), [])
        if state(folder(config)) == "complete":
            scores.append(read_record(folder(config))[READING[config.report]]["acc"])
    body = []
    for values, scores in points.items():
        half = interval(scores)
        told = f"{fmean(scores):.2f}{'' if half is None else f' ± {half:.2f}'}" if scores else "no result"
        body.append([*values, told, str(len(scores))])
    heads = [*named[0][0], f"acc ({named[0][1].report})", "seeds"]
    return str(tabulate(body, heads, tablefmt="simple", disable_numparse=True))


def _configuration(given: dict[str, Any], dotted: Mapping[str, Any]) -> RunConfig:
    """What the options describe."""
    values: dict[str, Any] = {}
    path, suite, row = (given.pop(name, None) for name in ("config", "suite", "row"))
    start: RunConfig | None = None
    if suite or row:
        start = _row(suite, row, path, given.pop("scale", None))
        values = identity(start)
    if path:
        values = read_yaml(Path(path), "--config")
    runtime = {f.name for f in fields(Runtime)}
    given = {f"runtime.{k}" if k in runtime else k: v for k, v in given.items()}
    values = apply(values, {**given, **dotted})
    for slot in KINDS:
        require(slot, values)
    if not (start or path):
        values = with_pipeline(values)
    config = resolve(from_dict(values))
    if start and run_id(replace(config, seed=start.seed)) != run_id(start):
        config = replace(config, scale="custom")  # no longer the suite's
    return config


def _row(suite: str | None, row: str | None, path: str | None, scale: str | None) -> RunConfig:
    """The configuration of a row of a suite, at its first scale where none is given: the full one."""
    if path:
        raise ConfigError("--config and --suite both say where to start; give one of them")
    if not (suite and row):
        raise ConfigError("--suite and --row go together, as in --suite PAPER --row TABLE/DATASET/METHOD")
    suites = load(suite)
    scale = scale or next(iter(suites.spec["scales"]))
    return suites.config(suites.row(row, scale), scale)


def _what(dry: bool, runs: int) -> str:
    return "a dry run" if dry else f"a command for {runs} runs"


def _planned(config: RunConfig) -> PlannedRun:
    return PlannedRun(run_id(config), config, [f"{config.method.name} on {config.data.name}"])


def _several(named: Sequence[tuple[Mapping[str, str], RunConfig]], tell: Any) -> int:
    """One run after the other; one that fails does not keep the next from being run."""
    failed = 0
    for point, config in named:
        name = ", ".join([*(f"{option} {value}" for option, value in point.items()), f"seed {config.seed}"])
        tell(name)
        try:
            code = _one(config, tell)
        except Exception as error:
            check_stopped()
            print(f"error: {name}: {one_line(told(error))}", file=sys.stderr)
            code = 1
        if code in (STOPPED, 130):
            return code
        failed += bool(code)
    return 1 if failed else 0


def _one(config: RunConfig, tell: Any) -> int:
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from benchmark.launch.progress import Display, continuation
    from benchmark.run import fit_resolved
    from benchmark.runs.records import read_record, state

    before, shown = state(folder(config)), _planned(config)
    try:
        with Display(1) if getattr(rank_zero_only, "rank", 0) == 0 else nullcontext() as display:
            if display:
                display.start(shown)
            with display.ticking() if display else nullcontext():
                path = fit_resolved(config)
    except (KeyboardInterrupt, Stopped) as ended:
        how, code = (str(ended), STOPPED) if isinstance(ended, Stopped) else ("interrupted", 130)
        tell(f"{how}; the same command {continuation(shown)}", file=sys.stderr)
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
