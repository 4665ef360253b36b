"""Run one configuration, make a paper's tables, see how far they are, draw curves, look at a partition."""

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from benchmark.config import RunConfig, Runtime, apply, class_spec, folder, from_dict, identity, resolve, run_id
from benchmark.files import load_yaml, read_value
from benchmark.registry import KINDS, described, explained, find_class, known_names, one_line
from benchmark.suites.suite import Plan, PlannedRun, Suite, load, rows_of_papers
from datamodules.common.errors import BenchError, ConfigError

MAPPINGS = ("model_args", "roster")
DOTTED = (
    "Options of the method, the data set, the network and the roster are given with a dot: --method.lr 0.1, "
    "--data.beta 0.8, --model_args.head_dropout 0.5, --roster.participants 5. "
    "`--method.help NAME` and `--data.help NAME` list them."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 fine, 1 a run failed, 2 bad input, 130 interrupted."""
    try:
        arguments, dotted = split_dotted(list(sys.argv[1:] if argv is None else argv))
        chosen = _parse(arguments)
        return COMMANDS[chosen.subcommand](chosen[chosen.subcommand], dotted)
    except BenchError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; is the folder there, writable and not full?", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues from the last checkpoint", file=sys.stderr)
        return 130


def split_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--method.x value`` and the like out of a command line; write the other options with ``_``.

    Values of method and data options stay strings (their types are known later), others are read as YAML.
    """
    rest: list[str] = []
    dotted: dict[str, Any] = {}
    arguments = iter(argv)
    for argument in arguments:
        name, given, value = argument.partition("=")
        if not name.startswith("--"):
            rest.append(argument)
            continue
        name = name[2:].replace("-", "_")
        head, dot, _ = name.partition(".")
        if not dot or head not in (*KINDS, *MAPPINGS):
            rest.append(f"--{name}{given}{value}")
            continue
        if not given:
            value = next(arguments, "")
        if not value or (not given and value.startswith("--")):
            names = f": {', '.join(known_names(KINDS[head]))}" if name == f"{head}.help" and head in KINDS else ""
            raise ConfigError(f"--{name} needs a value{names}")
        dotted[name] = value if head in KINDS else read_value(value)
    return rest, dotted


def _parse(arguments: list[str]) -> Namespace:
    top, commands = _parser()
    try:
        chosen: Namespace = top.parse_args(arguments, defaults=arguments[:1] != ["fit"])
    except ArgumentError as error:
        command = commands.get(arguments[0], top) if arguments else top
        message = explained(error, command)
        _, _, words = message.partition("nrecognized arguments: ")
        for word in words.split():
            meant = _meant(word.partition("=")[0], arguments, command) if word.startswith("--") else ""
            message += f"; did you mean {meant}?" if meant else ""
        raise ConfigError(f"{message} (`--help` lists the options)") from None
    return chosen


def _meant(option: str, arguments: Sequence[str], command: ArgumentParser) -> str:
    """What an unknown option may stand for: that of the method or the data set, or the closest of the command."""
    name, own = option[2:], [o[2:] for a in command._actions for o in a.option_strings if o not in ("-h", "--help")]
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for slot, kind in KINDS.items():
        if slot not in own:
            continue
        try:
            cls = find_class(dict(pairwise(words)).get(f"--{slot}", kind.base), kind)
        except ConfigError:
            cls = find_class(kind.base, kind)
        if name in described(cls, slot):
            return f"--{slot}.{name}"
    return next((f"--{close}" for close in get_close_matches(name, own, n=1)), "")


def _parser() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    top = ArgumentParser(prog="python -m benchmark", description=__doc__, exit_on_error=False)
    about = {
        "fit": f"Run one configuration, or finish it. {DOTTED}",
        "table": "Run what the tables of a paper need and is missing, then write the tables.",
        "tune": "Choose the learning rates of a suite's rows by a few short runs on held-out labelled images.",
        "status": "Show the state of all runs of a paper's tables.",
        "plot": "Draw columns of the records of runs, or of a suite's rows with their seeds averaged.",
        "site": "Make pages from all records: a leaderboard, a page per paper and a page per run.",
        "describe": f"Print and draw how a data set is split over clients. {DOTTED}",
    }
    commands = {name: ArgumentParser(description=text, exit_on_error=False) for name, text in about.items()}
    fit, table, tune, status, plot, site, describe = commands.values()

    text = str | None
    fit.add_argument("--config", type=text, help="YAML file to start from, e.g. the config.yaml of a run")
    fit.add_argument("--suite", type=text, help="start from a row of this suite, or of this .yaml file; needs --row")
    fit.add_argument(
        "--row",
        type=text,
        help="table/dataset/method as `status` lists it; --scale is that of the suite (default: paper)",
    )
    fit.add_argument("--method", type=text, help="name or dotted path of the method")
    fit.add_argument("--data", type=text, help="name or dotted path of the data set")
    fit.add_class_arguments(RunConfig, skip={*KINDS, *MAPPINGS, "runtime"})
    fit.add_class_arguments(Runtime)

    for suite in (table, tune, status):
        suite.add_argument("--paper", type=str, required=True, help="a suite, or the path of a .yaml file")
        suite.add_argument(
            "--scale", type=str, default="quick", help="quick, small, lite or paper, as far as the paper has it"
        )
    for suite in (table, status):
        suite.add_argument("--seeds", type=text, help="instead of those of the suite, e.g. 1,2,3")
    for runs in (table, tune):
        runs.add_argument(
            "--jobs",
            type=int | Literal["auto"],
            default="auto",
            help="runs at once (default: one per GPU, or core); "
            "on the CPU they share the cores' threads, and other numbers of threads round differently",
        )
        runs.add_class_arguments(Runtime, skip={"devices", "threads", "num_nodes"})
    tune.add_argument("--row", type=text, help="tune only patterns of table/dataset/method, separated by commas")
    table.add_argument("--tables", type=text, help="run only what these tables need, e.g. 1,4")
    table.add_argument("--methods", type=text, help="run only these rows, labels separated by commas")
    table.add_argument("--only", type=text, help="run only patterns of table/dataset/method, or run ids")
    table.add_argument(
        "--readme", type=text, help="file whose marked blocks are updated; default: README.md, with --results_dir: none"
    )
    status.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")

    plot.add_argument("runs", nargs="*", help="folders below results/runs; or name rows of a suite")
    plot.add_argument("--suite", type=text, help="the suite of --row, or the path of a .yaml file")
    plot.add_argument(
        "--row",
        action="append",
        help="table/dataset/method, as `status` lists it, or a pattern of these; may be given several times",
    )
    plot.add_argument("--scale", type=str, default="paper", help="of the suite")
    plot.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")
    plot.add_argument("--axis", type=Literal["round", "bytes", "seconds"], default="round", help="to draw against")
    plot.add_argument("--columns", type=str, default="acc", help="keys of metrics.jsonl, e.g. acc,pseudo/selected")
    plot.add_argument("--labels", type=text, help="names of the curves in the legend, one per curve, e.g. a,b,c")
    plot.add_argument("--out", type=str, default="curves.png", help="file to write; its suffix says the format")

    site.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")
    site.add_argument("--out", type=str, default="site", help="folder to write; index.html opens in a browser")
    site.add_argument(
        "--papers", type=text, help="suites, or paths of .yaml files, e.g. rscfed,mine.yaml; default: all"
    )

    describe.add_argument("--data", type=text, help="name or dotted path of the data set")
    describe.add_argument("--data_dir", type=str, default="data", help="folder with the data sets")
    describe.add_argument("--seed", type=int | None, help="of the run, which draws where data.partition_seed is null")
    describe.add_argument("--plot", type=text, help="PNG to draw clients and classes into")
    describe.add_argument("--export", type=text, help="save the partition, for --data.partition_file")

    subcommands = top.add_subcommands()
    for name, command in commands.items():
        subcommands.add_subcommand(name, command, help=about[name].partition(".")[0])
    return top, commands


def _fit(options: Namespace, dotted: dict[str, Any]) -> int:
    if _asked_help(dotted):
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
        _require(slot, values)
    config = resolve(from_dict(values))
    if start and run_id(replace(config, seed=start.seed)) != run_id(start):
        config = replace(config, scale="custom")  # no longer the suite's
    elsewhere = [] if start or path else rows_of_papers(config)

    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from benchmark import run
    from benchmark.launch.progress import Display
    from benchmark.report.records import read_record, state

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
            path = run.fit_resolved(config)
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


def _table(options: Namespace, dotted: Mapping[str, Any]) -> int:
    _refuse(dotted, "table")
    from benchmark.launch import pool
    from benchmark.launch.progress import Display
    from benchmark.report import tables
    from benchmark.report.loggers import mirror_tables

    runtime = Runtime(**{f.name: options[f.name] for f in fields(Runtime) if f.name in options})
    suite, plan = _plan(options, runtime)
    wanted = suite.select(plan, _listed(options.tables), _listed(options.methods), _listed(options.only))
    before = tables.collect(plan)
    missing = [run for run in wanted if before[run.id].state != "complete"]
    outcomes = []
    if missing:
        jobs, gpus = pool.default_jobs(runtime)
        jobs = jobs if options.jobs == "auto" else options.jobs
        outcomes = pool.run_all(missing, jobs, gpus, Display(len(missing)))

    whole = suite.plan(options.scale, runtime=runtime)
    shown = whole if set(plan.seeds) <= set(whole.seeds) else plan
    pages = tables.render(suite, shown, tables.collect(shown), suite.published())
    results = Path(runtime.results_dir)
    readme = options.readme or ("README.md" if runtime.results_dir == Runtime.results_dir else None)
    for path in tables.write(suite, plan.scale, pages, results, Path(readme) if readme else None):
        print(f"wrote {path}")
    if outcomes:
        frames = {page.number: page.frame for page in pages}
        mirror_tables(runtime.wandb, suite.paper, plan.scale, frames, results)
    bad = [outcome for outcome in outcomes if outcome.status != "complete"]
    for outcome in bad:
        where = f"{outcome.run.cells[0]}, {folder(outcome.run.config)}"
        print(f"{outcome.status}: {where}: {outcome.message}", file=sys.stderr)
    return 1 if bad else 0


def _tune(options: Namespace, dotted: Mapping[str, Any]) -> int:
    _refuse(dotted, "tune")
    from benchmark import tuning
    from benchmark.launch import pool

    runtime = Runtime(**{f.name: options[f.name] for f in fields(Runtime) if f.name in options})
    suite = load(options.paper)
    rows = suite.matching(_listed(options.row), options.scale)
    jobs = pool.default_jobs(runtime)[0] if options.jobs == "auto" else options.jobs
    for name, made in tuning.tune(suite, options.scale, rows, runtime, jobs).items():
        chosen = ", ".join(f"{option} {value:g}" for option, value in made["options"].items())
        print(f"{name}: {chosen} of {len(made['tried'])} tried")
    print(f"wrote {suite.tuned_file(options.scale)}")
    return 0


def _status(options: Namespace, dotted: Mapping[str, Any]) -> int:
    _refuse(dotted, "status")
    from benchmark.report.status import show

    _, plan = _plan(options, Runtime(results_dir=options.results_dir))
    show(plan)
    return 0


def _plot(options: Namespace, dotted: Mapping[str, Any]) -> int:
    _refuse(dotted, "plot")
    from benchmark.report.plots import learning_curves, read_runs, read_suite_rows

    labels = _listed(options.labels)
    if bool(options.suite) != bool(options.row) or bool(options.row) == bool(options.runs):
        raise ConfigError("plot: name folders of runs, or rows of a suite: --suite PAPER --row TABLE/DATASET/METHOD")
    if options.suite:
        curves = read_suite_rows(load(options.suite), options.row, options.scale, options.results_dir, labels)
    else:
        curves = read_runs(options.runs, labels)
    print(f"wrote {learning_curves(curves, _listed(options.columns), options.out, options.axis)}")
    return 0


def _site(options: Namespace, dotted: Mapping[str, Any]) -> int:
    _refuse(dotted, "site")
    from benchmark.site.build import build

    build(Path(options.results_dir), Path(options.out), _listed(options.papers))
    print(f"wrote {Path(options.out, 'index.html')}")
    return 0


def _describe(options: Namespace, dotted: dict[str, Any]) -> int:
    if _asked_help(dotted):
        return 0
    from benchmark.report.describe import describe

    values = apply({}, {"data": options.data, **dotted})
    _require("data", values)
    describe(class_spec("data", values["data"]), options.data_dir, options.plot, options.export, options.seed)
    return 0


def _plan(options: Namespace, runtime: Runtime) -> tuple[Suite, Plan]:
    suite = load(options.paper)
    try:
        seeds = [int(seed) for seed in _listed(options.seeds)]
    except ValueError:
        raise ConfigError(f"--seeds {options.seeds}: write numbers separated by commas, e.g. 1,2,3") from None
    return suite, suite.plan(options.scale, seeds, runtime)


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").strip("[]").split(",") if part.strip()]


def _refuse(dotted: Mapping[str, Any], command: str) -> None:
    if dotted:
        raise ConfigError(f"{command} takes no --{next(iter(dotted))}: what a table runs is in its suite file")


def _require(slot: str, values: Mapping[str, Any]) -> None:
    """Refuse a configuration that names no class for a slot, with the names there are."""
    spec = values.get(slot)
    if not (spec.get("class_path") if isinstance(spec, Mapping) else spec):
        raise ConfigError(f"--{slot} is missing; it is one of {', '.join(known_names(KINDS[slot]))}, or a dotted path")


def _asked_help(dotted: Mapping[str, Any]) -> bool:
    """Print the options of the class that ``--method.help NAME`` or ``--data.help NAME`` asks about."""
    asked = {slot: str(dotted[f"{slot}.help"]) for slot in KINDS if f"{slot}.help" in dotted}
    for slot, name in asked.items():
        cls = find_class(name, KINDS[slot])
        about, _, _ = (inspect.getdoc(cls) or "").partition("\nArgs:")
        print(f"{cls.__module__}.{cls.__qualname__}: {about.strip()}\n")
        for option, argument in described(cls, slot).items():
            print(f"  --{slot}.{option} {argument.type} ({argument.default})")
            if argument.text:
                print(textwrap.fill(argument.text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return bool(asked)


COMMANDS: dict[str, Callable[[Namespace, dict[str, Any]], int]] = {
    "fit": _fit,
    "table": _table,
    "tune": _tune,
    "status": _status,
    "plot": _plot,
    "site": _site,
    "describe": _describe,
}
