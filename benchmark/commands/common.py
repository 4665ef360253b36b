"""What several commands share: options, lists of words and numbers, and checks."""

import inspect
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

from benchmark.config import Run, Runtime
from benchmark.registry import KINDS, find_class, path_of
from benchmark.runs.console import duration, printable
from benchmark.runs.records import Record, revisions
from benchmark.suites.plan import Plan, Row
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError

TEXT = str | None
"""The type of an option that may be left out."""
MAPPINGS = ("model_args", "roster")
DOTTED = (
    "Options of the method, the data set, the network and the roster are given with a dot: --method.lr 0.1, "
    "--data.beta 0.8, --model_args.head_dropout 0.5, --roster.participants 5. "
    "`--method.help NAME` and `--data.help NAME` list those of a class."
)


def add_flag(parser: ArgumentParser, name: str, about: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=about)


def add_suite_arguments(parser: ArgumentParser) -> None:
    """Add the options of commands on a suite."""
    parser.add_argument("--paper", type=str, required=True, help="name of a suite, or the path of a .yaml file")
    parser.add_argument(
        "--scale",
        type=str,
        default="quick",
        help="quick, small, laptop, lite, board or paper; a suite has some of them",
    )


def add_seeds_argument(parser: ArgumentParser) -> None:
    """Add the option of commands on the runs of a suite."""
    parser.add_argument("--seeds", type=str | None, help="seeds to run in place of the suite's, e.g. 1,2,3")


def add_jobs_arguments(parser: ArgumentParser) -> None:
    """Add the options of commands that make many runs: how many at once, and where and how to run them."""
    parser.add_argument(
        "--jobs",
        type=int | Literal["auto"],
        default="auto",
        help="number of runs at once; auto: one per GPU, or per core. On a CPU they share the cores, and a different "
        "number of threads rounds differently",
    )
    parser.add_class_arguments(Runtime, skip={"devices", "num_nodes"})


def runtime_of(options: Namespace) -> Runtime:
    """Where and how to run, as the options say."""
    return Runtime(**{field.name: options[field.name] for field in fields(Runtime) if field.name in options})


def jobs_of(options: Namespace, runtime: Runtime) -> int:
    """How many runs to make at once, by ``--jobs``."""
    from benchmark.launch.placement import default_jobs

    jobs = default_jobs(runtime) if options.jobs == "auto" else options.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; it must be at least 1")
    return jobs


def discard(folders: Iterable[Path]) -> None:
    """Delete what earlier runs have left in these folders (``--overwrite``); nothing if a process works on one.

    Raises:
        ConfigError: this is one of several processes that something else has started; it would delete what another
            one has begun.
        RunError: a process is working on one of the runs.
    """
    from benchmark.launch.launchers import is_one_of_several
    from benchmark.runs import folder

    if is_one_of_several():
        raise ConfigError("--overwrite is for a command that starts its processes itself; delete the run's folder")
    folder.discard(folders)


def forget_trials(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime, more: Iterable[Path] = ()) -> None:
    """Delete what earlier trials of these rows have left, and ``more`` folders, so that they are run again.

    Raises:
        BenchError: the trials could not start here, the suite takes no choices, or a process is working on one of the
            runs.
    """
    from benchmark.board import tune

    check_startable(run for row in rows for run in tune.trial_of(suite, scale, row, 0, runtime).runs)
    suite.check_writable("choices", "tune")
    discard([*tune.left(suite, scale, rows, runtime), *more])
    tune.forget(suite, scale, rows)


def check_startable(runs: Iterable[Run]) -> None:
    """Try one of the runs for each data set, before anything is deleted for them.

    Raises:
        BenchError: it could not start here: an option of the machine cannot be met, data are missing, or a value is
            wrong.
    """
    from benchmark.launch.launchers import is_one_of_several, leave_allocation
    from benchmark.launch.run import check

    if not is_one_of_several():
        leave_allocation()  # as the processes of the runs do
    for run in {run.config.data.class_path: run for run in runs}.values():  # one for each data set
        check(run)


def show_plan(runs: Sequence[Run], states: Mapping[str, str], jobs: int = 1) -> None:
    """Print what is left of runs (``--dry_run``): rounds, and time as far as records of equal runs here tell.

    Args:
        runs: those of one command, at least one.
        states: state of each (``runs.states.state``, or ``outdated``), by run id.
        jobs: number of runs at once.
    """
    from tabulate import tabulate

    from benchmark.report.status import measured_here, parts, summary

    found = parts(runs, states, measured_here(runs[0].config.runtime))
    body = []
    for part in found:
        pace = "unknown" if part.per_round is None else f"{part.per_round:.3g}"
        time = "unknown" if part.per_round is None else duration(part.seconds)
        body.append([len(part.runs), f"{part.left:,}", pace, time, len(part.records), printable(part.runs[0].name)])
    heads = ["runs", "rounds left", "s per round", "time", "records", "row"]
    print(tabulate(body, heads, tablefmt="plain", disable_numparse=True))
    print(*summary(found, min(jobs, sum(states[run.id] != "complete" for run in runs))), sep="\n")


def tell_other_code(plan: Plan, runs: Iterable[Run]) -> None:
    """Print notes about methods whose code has changed since some of these runs were made."""
    from benchmark.runs.code_identity import by_other_code, revision

    changed: dict[str, list[tuple[Run, Record]]] = {}
    for run in runs:
        record = plan.found[run.id].record
        if record and by_other_code(run, record):
            changed.setdefault(run.config.method.name, []).append((run, record))
    for name, found in changed.items():
        earlier = " and ".join(sorted({made for _, record in found for made in revisions(record)}))
        now = " and ".join(sorted({revision(run) for run, _ in found}))
        note = (
            f"note: {len(found)} complete {'runs were' if len(found) > 1 else 'run was'} made by other code of {name} "
            f"than is there now ({earlier}; now {now}); `table --overwrite` with --methods or --only runs them again"
        )
        print(printable(note), file=sys.stderr)


def numbers(text: str | None, option: str) -> list[int]:
    """Whole numbers separated by commas; an empty list if the option was not given.

    Raises:
        ConfigError: the text is something else, or there is no number in it.
    """
    try:
        return [int(number) for number in listed(text, option)]
    except ValueError:
        raise ConfigError(f"{option} {text}: write numbers separated by commas, e.g. 1,2,3") from None


def listed(text: str | None, option: str, known: Container[str] = ()) -> list[str]:
    """Words separated by commas, with or without brackets; a text that is one of the ``known`` names is not split.

    The list is empty if the option was not given, which mostly means all, or the default.

    Raises:
        ConfigError: the option was given without a word.
    """
    if text is None:
        return []
    if text in known:
        return [text]
    words = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    found = [part.strip() for part in words.split(",") if part.strip()]
    if not found:
        raise ConfigError(f"{option} {text}: there is nothing between the commas")
    return found


def asked_help(dotted: Mapping[str, Any]) -> bool:
    """Print the options of the class that ``--method.help NAME`` or ``--data.help NAME`` asks about."""
    asked = {slot: str(dotted[f"{slot}.help"]) for slot in KINDS if f"{slot}.help" in dotted}
    for slot, name in asked.items():
        cls = find_class(name, KINDS[slot])
        about, _, _ = (inspect.getdoc(cls) or "").partition("\nArgs:")
        parser = ArgumentParser(usage=path_of(cls), add_help=False)
        parser.add_class_arguments(cls, slot, skip=set(KINDS[slot].supplied), fail_untyped=False)
        options = parser.format_help().partition(f"--{slot} CONFIG")[2].partition("\n")[2]
        print(f"{path_of(cls)}: {about.strip()}\n\n{options}".replace("``", ""))
    return bool(asked)
