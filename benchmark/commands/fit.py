"""``fit``: one run, or one for each of several seeds and of several values of options."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import (
    DOTTED,
    MAPPINGS,
    asked_help,
    discard,
    numbers,
    same_command,
)
from benchmark.config import (
    ROSTER,
    ROSTER_SUPPLIED,
    Run,
    RunConfig,
    Runtime,
    apply,
    class_spec,
    from_dict,
    identity,
    with_pipeline,
)
from benchmark.launch.signals import STOPPED, check_stopped
from benchmark.registry import KINDS, converted, find_class, handed_over, imported, one_line
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError, Stopped, message_of
from datamodules.common.yaml import read_yaml

ABOUT = f"Run one configuration, or finish it. {DOTTED} Several values, --method.lr 0.01,0.03, are run one by one."

MOST_POINTS = 10_000


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
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
        "--dry_run", action="store_true", help="run nothing; tell rounds, and time as far as records tell"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="delete what an earlier run of this configuration has left, and run it"
    )
    parser.add_argument("--export", type=text, help="file to write the trained model to, with its configuration")
    parser.add_class_arguments(RunConfig, skip={*KINDS, *MAPPINGS, "seed", "runtime"})
    parser.add_class_arguments(Runtime)


Point = Mapping[str, str]
"""One value of each option that was given several."""


def run(options: Namespace, dotted: dict[str, Any]) -> int:
    """Run the command; returns its exit code."""
    if asked_help(dotted):
        return 0
    given = dict(vars(options))
    dry, overwrite, export = (given.pop(name, None) for name in ("dry_run", "overwrite", "export"))
    seeds = numbers(given.pop("seed", None), "--seed")
    values, row = _start(given, dotted)
    points = grid(values, dotted)
    made = [(point, _described(apply(values, point), row, point)) for point in points]
    named = [
        (point, first.replace(seed=seed))
        for point, first in made
        for seed in dict.fromkeys(seeds or [first.config.seed])
    ]
    runs = [run for _, run in named]
    if export and (dry or len(runs) > 1 or Path(export).is_dir()):
        count = 0 if dry else len(runs)
        raise ConfigError(f"--export {export}: it takes the name of a file, and one run; this command makes {count}")

    from lightning.fabric.utilities.rank_zero import rank_zero_only

    if dry:
        from benchmark.commands.dry_run import show
        from benchmark.runs.states import state

        show(runs, {run.id: "missing" if overwrite else state(run.folder) for run in runs}, jobs=1)
        return 0
    if len(points) > 1 or overwrite:
        from benchmark.federation.assembly import check_values
        from benchmark.launch.run import check

        for _, one in made:  # so that a value out of range is refused before the first run, and before it is deleted
            (check if overwrite else check_values)(one)
    if overwrite:
        discard(run.folder for run in runs)
    tell = rank_zero_only(print)
    code = _carried_out(named, tell, same_command(bool(overwrite)))
    if export and code == 0 and getattr(rank_zero_only, "rank", 0) == 0:
        from benchmark.runs.exported import export as write_model

        write_model(runs[0], Path(export))
        tell(f"wrote {export}")
    if len(points) > 1 and code not in (STOPPED, 130):
        tell(f"\n{compared(named)}")
    return code


def grid(values: Mapping[str, Any], dotted: Mapping[str, Any]) -> list[Point]:
    """The points of the grid that options with several values make, ``--method.lr 0.01,0.03``; one without any.

    A text with commas is one value where the type of its option takes it as it stands. Otherwise it is several, if any
    of its parts is a value of that type; those that are not are refused when their run is described.

    Args:
        values: plain configuration, with the options.
        dotted: options of the method, the data set and the roster, as text.

    Raises:
        ConfigError: an unknown class, or more than ``MOST_POINTS`` points.
    """
    several: dict[str, list[str]] = {}
    for option, text in dotted.items():
        parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else []
        if len(parts) < 2 or not all(parts) or _takes(values, option, text):
            continue
        if any(_takes(values, option, part) for part in parts):
            several[option] = list(dict.fromkeys(parts))
    if (points := prod(map(len, several.values()))) > MOST_POINTS:
        raise ConfigError(f"these options make a grid of {points:,} runs per seed; at most {MOST_POINTS:,} are started")
    return [dict(zip(several, point, strict=True)) for point in product(*several.values())]


def _takes(values: Mapping[str, Any], option: str, text: str) -> bool:
    """Whether the type of an option takes a text; those of networks are not known before they are built."""
    head, _, name = option.partition(".")
    try:
        if head in KINDS:
            spec = class_spec(head, values[head])
            cls = find_class(spec.class_path, KINDS[head])
            converted(cls, {name: text}, head, handed_over(cls, head, spec.init_args))
        elif head == "roster":
            converted(imported(ROSTER), {name: text}, head, ROSTER_SUPPLIED)
    except ConfigError:
        return False
    return True


def compared(named: Sequence[tuple[Point, Run]]) -> str:
    """A table of the points of a grid: mean accuracy of the complete runs, by the reading of ``report``."""
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


def _start(given: Mapping[str, Any], dotted: Mapping[str, Any]) -> tuple[dict[str, Any], Run | None]:
    """Plain configuration of all options on top of what they start from, and the run of the row if it is a suite's."""
    given, values, start = dict(given), {}, None
    path, paper, row = (given.pop(name, None) for name in ("config", "suite", "row"))
    if bool(paper) != bool(row) or (path and paper):
        raise ConfigError("start from --config FILE, or from --suite PAPER --row TABLE/DATASET/METHOD")
    if paper:
        suite = load(paper)
        scale = given.pop("scale", None) or next(iter(suite.spec.scales))
        start = suite.run(suite.row(row, scale), scale)
        values = identity(start.config)
    if path:
        read = read_yaml(Path(path), "--config")
        options = {name: read.pop(name) for name in list(read) if "." in name}
        values = apply(read, options)
    runtime = {f.name for f in fields(Runtime)}
    given = {f"runtime.{name}" if name in runtime else name: value for name, value in given.items()}
    values = apply(values, {**given, **dotted})
    return (values if values and (start or path) else with_pipeline(values)), start


def _described(values: Mapping[str, Any], start: Run | None, point: Point) -> Run:
    """The run of a plain configuration; one that is no longer that of the suite's row has no scale of the suite."""
    config = from_dict(values)
    run = Run.of(config, ", ".join([f"{config.method.name} on {config.data.name}", *_named(point)]))
    changed = start is not None and run.replace(seed=start.config.seed).id != start.id
    return run.replace(scale="custom") if changed else run


def _named(point: Point) -> list[str]:
    return [f"{option} {value}" for option, value in point.items()]


def _carried_out(named: Sequence[tuple[Point, Run]], tell: Any, again: str) -> int:
    """Make one run after the other, several in a process each; if one of several fails, the others still run."""
    from benchmark.launch import pool
    from benchmark.launch import run as one_run
    from benchmark.launch.launchers import is_one_of_several

    alone = len(named) == 1
    carry_out = one_run.fit if alone or is_one_of_several() else pool.in_own_process
    failed = 0
    for number, (point, run) in enumerate(named):
        name = ", ".join([*_named(point), f"seed {run.config.seed}"])
        if not alone:
            tell(name)
        try:
            code = _one(run, tell, again, carry_out, number, len(named))
        except Exception as error:
            if alone:
                raise
            check_stopped()
            print(f"error: {name}: {one_line(message_of(error))}", file=sys.stderr)
            code = 1
        if code in (STOPPED, 130):
            return code
        failed += bool(code)
    return 1 if failed else 0


def _one(run: Run, tell: Any, again: str, carry_out: Callable[[Run], Path], number: int, total: int) -> int:
    """Make a run, number ``number`` of ``total``, and tell its readings, or what the command ``again`` would do."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from benchmark.launch.progress import Display, continuation
    from benchmark.runs.records import READING, read_record
    from benchmark.runs.states import state

    before = state(run.folder)
    try:
        with Display(total, done=number) if getattr(rank_zero_only, "rank", 0) == 0 else nullcontext() as display:
            if display:
                display.start(run)
            with display.ticking() if display else nullcontext():
                path = carry_out(run)
    except (KeyboardInterrupt, Stopped) as ended:
        how, code = (str(ended), STOPPED) if isinstance(ended, Stopped) else ("interrupted", 130)
        tell(f"{how}; {again} {continuation(run)}", file=sys.stderr)
        return code
    record = read_record(path)
    tell(f"{path}{' (was complete, nothing was run; --overwrite runs it again)' if before == 'complete' else ''}")
    shown = ["best", "last", run.config.report, *["averaged"] * bool(run.config.average_last)]
    for name in dict.fromkeys(shown):
        reading = record[READING[name]]
        when = f"round {reading['round']}" if "round" in reading else f"{reading['rounds']} rounds"
        scores = (f"{metric} {value:.2f}" for metric, value in reading.items() if isinstance(value, float))
        tell(f"{name} ({when}): {', '.join(scores)}")
    return 0
