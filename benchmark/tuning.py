"""Tune the learning rates of a suite's rows: the same small number of values per row, scored on held-out images.

Optuna keeps the study. No test image and no reported seed is used.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from benchmark.config import Run, Runtime, apply, from_dict, identity, spelled
from benchmark.launch import pool
from benchmark.launch.progress import Display
from benchmark.launch.resume import is_complete
from benchmark.registry import one_line
from benchmark.runs.code_identity import method_source
from benchmark.runs.records import READING, method_sources, read_record
from benchmark.runs.states import state
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite
from datamodules.common.errors import NOT_FINITE, ConfigError, RunError

FOLDER = "tuning"
FACTOR = "factor"
FORGOTTEN = "forgotten"  # a study's attribute: the number of its first trials that no longer count
HOLDOUTS = ("balanced_holdout", "labelled_holdout")  # data options that replace the test set


@dataclass(frozen=True)
class Trial:
    """One value of a row's learning rates.

    Args:
        row: the tuned row.
        factor: factor on its learning rates; 1 is the paper's choice.
        options: the resulting rates, e.g. ``{"method.lr": 0.03}``.
        runs: the runs that score it, one per seed.
    """

    row: Row
    factor: float
    options: Mapping[str, float]
    runs: tuple[Run, ...]


Scored = tuple[Trial, tuple[float, int]]
"""A trial, its runs' mean held-out accuracy in percent, and their total number of held-out images."""


def trials(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime) -> list[Trial]:
    """Return the first trials of each row, as given by the entry ``tuning`` of the suite's scale.

    The entry has ``factors``, ``rates`` (names of options to multiply, if the method has them), ``share_of_rounds``,
    ``lengths`` (names of options in rounds, such as warm-ups, which are shortened by the same share and rounded up),
    ``seeds`` (each trial is run with each of them), and a layer of options (``set``, ``methods``, ``datasets``) on top:
    held-out images. For ``beyond`` see ``further``.

    Raises:
        ConfigError: the scale has no such entry, a row has no learning rate to multiply, or no images are held out, so
            that test images would be used.
    """
    factors = _spec(suite, scale)["factors"]
    return [_trial(suite, scale, row, float(factor), runtime) for row in rows for factor in factors]


def further(suite: Suite, scale: str, scored: Sequence[Scored], runtime: Runtime) -> Trial | None:
    """Return one more trial for a row whose best factor is the smallest or largest: ``beyond`` times further out.

    It is enough that one of several ``tied`` factors is, since a value beyond it may be better. If the smallest and the
    largest are both tied, it is beyond the better of them, and beyond the largest if they are equally good.

    ``None`` if the best factors lie between others, a trial has no score yet, or the suite has no ``beyond``.
    """
    spec = _spec(suite, scale)
    beyond = spec["beyond"]
    if beyond is None or len(scored) < len(spec["factors"]):
        return None
    best, factors = {one.factor: score for one, (score, _) in tied(scored)}, [one.factor for one, _ in scored]
    ends = [end for end in (max(factors), min(factors)) if end in best]
    if not ends:
        return None
    end = max(ends, key=lambda factor: best[factor])
    factor = end * beyond if end == max(factors) else end / beyond
    return _trial(suite, scale, scored[0][0].row, factor, runtime)


def bounded(suite: Suite, scale: str, row: Row) -> list[Row]:
    """Return the rows of a bound's method in its table and data set; none if the row is not a bound."""
    bounds = next(table.bounds for table in suite.tables if table.number == row.table)
    if row.method not in bounds:
        return []

    def method(one: Row) -> str:
        return str(suite.spec["labels"][one.method]["method"])

    return [
        other
        for other in suite.matching([], scale)
        if (other.table, other.dataset, method(other)) == (row.table, row.dataset, method(row))
        and other.method not in bounds
    ]


def _spec(suite: Suite, scale: str) -> Mapping[str, Any]:
    return {"beyond": None, "lengths": [], "set": {}, **suite.entry(scale, FOLDER, "tune")}


def _trial(suite: Suite, scale: str, row: Row, factor: float, runtime: Runtime) -> Trial:
    spec = _spec(suite, scale)
    whole = spelled(identity(Run.of(from_dict(suite.values(row, scale, tuned=False))).config))
    shorter = {name: math.ceil(whole[name] * spec["share_of_rounds"]) for name in spec["lengths"] if whole.get(name)}
    values = suite.values(row, scale, tuned=False, last={**spec, "set": {**shorter, **spec["set"]}})
    values["rounds"] = math.ceil(values.get("rounds", whole["rounds"]) * spec["share_of_rounds"])
    config = Run.of(from_dict(values)).config
    arguments = {f"method.{name}": value for name, value in config.method.init_args.items()}
    rates = {name: arguments[name] for name in spec["rates"] if arguments.get(name) is not None}
    if not rates:
        raise ConfigError(
            f"{suite.where}, {row.name}: none of {', '.join(spec['rates'])} has a value to start from; set one "
            f"in scale {scale}"
        )
    options = {name: float(f"{rate * factor:.2g}") for name, rate in rates.items()}
    if not any(config.data.init_args.get(name) for name in HOLDOUTS):
        raise ConfigError(
            f"{suite.where}, {row.name}: tuning would be scored on test images: set "
            f"{' or '.join(f'data.{name}' for name in HOLDOUTS)}"
        )
    own = replace(runtime, results_dir=str(Path(runtime.results_dir) / FOLDER))
    tried = Run.of(from_dict(apply(values, options)), f"tune {row.name} x {factor:g}")
    return Trial(row, factor, options, tuple(tried.replace(seed=seed, runtime=own) for seed in spec["seeds"]))


def tune(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime, jobs: int) -> dict[str, Any]:
    """Run the rows' missing trials, choose, and write the choices beside the suite.

    All trials are kept in Optuna's journal (``journal_of``); trials in it are not run again. A bound also runs the
    ``further`` trials of its method's rows, whose own trials are run for this: it would not be a bound if one of them
    had a rate that it has not tried.

    Returns:
        What was written, by row: the chosen ``options``, and everything ``tried`` with its score.

    Raises:
        ConfigError: the suite is part of an installed package, or a complete trial was made by other code of its method
            (``is_complete``); or see ``trials``.
        RunError: a trial failed for a reason other than its rate; there is no choice for its row, but for all others.
            Or the journal is damaged.
    """
    suite.check_writable("choices", "tune")
    of_method = {row.full_name: bounded(suite, scale, row) for row in rows}
    involved = {row.full_name: row for row in [*rows, *(other for others in of_method.values() for other in others)]}
    first = trials(suite, scale, list(involved.values()), runtime)
    journal = journal_of(suite, scale, Path(runtime.results_dir))
    journal.parent.mkdir(parents=True, exist_ok=True)
    studies = _studies(journal, list(involved.values()))
    planned = first
    _run_missing(planned, studies, runtime, jobs)
    steps = {name: further(suite, scale, _known(first, row, studies), runtime) for name, row in involved.items()}
    more = []
    for row in rows:
        asked = [steps[one.full_name] for one in (row, *of_method[row.full_name])]
        factors = dict.fromkeys(step.factor for step in asked if step is not None)
        more += [_trial(suite, scale, row, factor, runtime) for factor in factors]
    _run_missing(more, studies, runtime, jobs)
    planned += more
    without = [(trial.row, run) for trial in planned for run in _unknown(trial, studies)]
    without = [(row, run) for row, run in without if row in rows]
    whole = [row for row in rows if all(other is not row for other, _ in without)]
    made = {row.full_name: choice(_known(planned, row, studies)) for row in whole}
    suite.tuned.add(scale, made)
    if without:
        named = ", ".join(f"{run.cells[0]} ({run.folder}: {state(run.folder)})" for _, run in without)
        raise RunError(
            f"no score of {named}: nothing is chosen for these rows. Fix what failed, wait for what others run, and "
            "run tune again"
        )
    return made


def left(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime) -> list[Path]:
    """Return the folders of all runs of earlier trials of the rows, whether or not they exist.

    Raises:
        ConfigError: see ``trials``.
        RunError: the journal is damaged.
    """
    found = [run.folder for trial in trials(suite, scale, rows, runtime) for run in trial.runs]
    journal = journal_of(suite, scale, Path(runtime.results_dir))
    for study in _studies(journal, rows).values() if journal.exists() else ():
        for trial in study.get_trials(deepcopy=False):
            found += (journal.parent / "runs").glob(f"*-{_run_of(trial)}")
    return found


def forget(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime) -> None:
    """Let no earlier trial of the rows count; the journal still says what has been tried, which ``retraced`` counts.

    ``tune`` runs everything again whose folder (``left``) has been deleted.

    Raises:
        RunError: the journal is damaged.
    """
    journal = journal_of(suite, scale, Path(runtime.results_dir))
    for study in _studies(journal, rows).values() if journal.exists() else ():
        study.set_user_attr(FORGOTTEN, len(study.get_trials(deepcopy=False)))


def journal_of(suite: Suite, scale: str, results: Path) -> Path:
    """Return the file of a suite's journal below a folder of results, whether or not it exists."""
    return results / FOLDER / f"{suite.paper}-{scale}.journal"


def retraced(suite: Suite, scale: str, row: Row, journal: Path) -> tuple[dict[str, Any] | None, list[str], int]:
    """Return ``tune``'s choice for a row that is not a bound from its journal alone, without running or writing
    anything.

    A trial is identified by its run's id, so a different grid, seed, held-out part or length is a different trial.

    Returns:
        The choice, ``None`` if a run is missing; what is missing; and the number of configurations tried, including
        those outside the rule.

    Raises:
        ConfigError: see ``trials``.
        RunError: there is no journal, or it is damaged.
    """
    if not journal.exists():
        raise RunError(f"{journal}: there is no such file; `tune` and `enter` create it in the results folder")
    with TemporaryDirectory() as place:
        copy = Path(shutil.copy(journal, place))
        studies = _studies(copy, [row])
        runtime = Runtime()
        planned = trials(suite, scale, [row], runtime)
        step = further(suite, scale, _known(planned, row, studies), runtime)
        planned += [step] if step else []
        missing = [
            f"{', '.join(f'{name} {value:g}' for name, value in trial.options.items())}, seed {run.config.seed}"
            for trial in planned
            for run in _unknown(trial, studies)
        ]
        of_rule = {run.id for trial in planned for run in trial.runs}
        tried = {_run_of(trial) for trial in studies[row.full_name].get_trials(deepcopy=False)}
        others = math.ceil(len(tried - of_rule) / len(planned[0].runs))
        made = None if missing else choice(_known(planned, row, studies))
    return made, missing, len(planned) + others


def _studies(journal: Path, rows: Sequence[Row]) -> dict[str, optuna.Study]:
    """Open the rows' studies by name, in a journal that is created if needed.

    Raises:
        RunError: the journal is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _leave_out_torn_line(journal)
    try:
        backend = JournalFileBackend(str(journal.absolute()))  # its lock is a link to the file
        storage = optuna.storages.JournalStorage(backend)
        return {
            name: optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
            for name in (row.full_name for row in rows)
        }
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:  # from Optuna
        raise RunError(
            f"{journal}: the journal is damaged ({one_line(error)}); delete it: the trials' records will be read again"
        ) from None


def _leave_out_torn_line(journal: Path) -> None:
    """Cut off a line torn by a kill, since the next line would be appended to it. One being written is waited for."""
    if not _is_torn(journal):
        return
    writing = JournalFileSymlinkLock(str(journal.absolute()))
    writing.acquire()
    try:
        if _is_torn(journal):
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    finally:
        writing.release()


def _is_torn(journal: Path) -> bool:
    return journal.exists() and not (b"\n" + journal.read_bytes()).endswith(b"\n")


def _run_of(trial: optuna.trial.FrozenTrial) -> str:
    """The id of the run that a trial tells of; one that somebody else has added to the study has no run."""
    return str(trial.user_attrs.get("run_id", f"trial {trial.number}"))


def _run_missing(planned: Sequence[Trial], studies: Mapping[str, optuna.Study], runtime: Runtime, jobs: int) -> None:
    """Run the trials missing in their studies, and add the results."""
    missing = [(trial, run) for trial in planned for run in _unknown(trial, studies)]
    runs = {run.id: run for _, run in missing if not is_complete(run)}
    if runs:
        _, gpus = pool.default_jobs(runtime)
        pool.run_all(list(runs.values()), jobs, gpus, Display(len(runs)))
    for trial, run in missing:
        _tell(studies[trial.row.full_name], trial, run)


def _unknown(trial: Trial, studies: Mapping[str, optuna.Study]) -> list[Run]:
    """Return the runs of a trial without a score in the study of its row."""
    known = scores(studies[trial.row.full_name], trial.runs)
    return [run for run in trial.runs if run.id not in known]


def _known(planned: Sequence[Trial], row: Row, studies: Mapping[str, optuna.Study]) -> list[Scored]:
    """Return a row's trials whose runs all have scores, with the mean, in the order of their factors."""
    own = [trial for trial in planned if trial.row is row and not _unknown(trial, studies)]
    known = scores(studies[row.full_name], [run for trial in own for run in trial.runs])
    found = [(trial, [known[run.id] for run in trial.runs]) for trial in sorted(own, key=lambda one: one.factor)]
    return [(trial, (fmean(score for score, _ in runs), sum(n for _, n in runs))) for trial, runs in found]


def scores(study: optuna.Study, runs: Sequence[Run] = ()) -> dict[str, tuple[float, int]]:
    """Return held-out accuracy in percent (0 if not finite) and number of held-out images by run id.

    Trials that ``forget`` has deleted have none.

    Args:
        study: of a row.
        runs: those whose scores count only if today's code of their methods has made them.
    """
    now = {run.id: source for run in runs if (source := method_source(run))}
    found = {}
    for trial in study.get_trials(deepcopy=False)[study.user_attrs.get(FORGOTTEN, 0) :]:
        name, made = _run_of(trial), trial.user_attrs.get("method_sources")
        if not made or name not in now or made == [now[name]]:
            found[name] = float(trial.value or 0.0), int(trial.user_attrs.get("images", 0))
    return found


def choice(scored: Sequence[Scored]) -> dict[str, Any]:
    """Choose a trial: of those ``tied`` with the best, the one nearest to the paper's rates.

    Few images make a noisy score, and noise is no reason to depart from the paper. Of two equally near trials the
    better one is chosen, or the one with lower rates if they are equally good.
    """

    def preference(one: Scored) -> tuple[float, float, float]:
        trial, (score, _) = one
        return round(abs(math.log(trial.factor)), 6), -score, trial.factor

    (chosen, (_, images)), *_ = sorted(tied(scored), key=preference)
    return {
        "options": dict(chosen.options),
        "tried": [{**trial.options, "held_out_accuracy": round(score, 2)} for trial, (score, _) in scored],
        "held_out_images": images,
        "margin": round(margin(scored), 2),
        "seeds": [run.config.seed for run in chosen.runs],
        "rounds": chosen.runs[0].config.rounds,
    }


def margin(scored: Sequence[Scored]) -> float:
    """Return one standard error of the highest accuracy, in points: sqrt(p (1 - p) / n) of its n held-out images."""
    score, images = max(found for _, found in scored)
    return 100 * math.sqrt(score / 100 * (1 - score / 100) / images)


def tied(scored: Sequence[Scored]) -> list[Scored]:
    """Return the best trial, and those at most one standard error (``margin``) below it."""
    least = max(score for _, (score, _) in scored) - margin(scored)
    return [one for one in scored if one[1][0] >= least]


def _tell(study: optuna.Study, trial: Trial, run: Run) -> None:
    """Add one of a trial's runs to its study, with the suite's reported reading.

    A rate with non-finite numbers scores 0. A run that failed otherwise says nothing about its rate: like an unfinished
    run, it is left for the next call.
    """
    path = run.folder
    ended = state(path)
    if ended not in ("complete", "failed"):
        return
    record = read_record(path)
    if ended == "failed" and NOT_FINITE not in record["error"]:
        return
    score = record[READING[run.config.report]]["acc"] if ended == "complete" else 0.0
    study.add_trial(
        optuna.trial.create_trial(
            params={FACTOR: trial.factor},
            distributions={FACTOR: optuna.distributions.CategoricalDistribution([trial.factor])},
            value=score,
            user_attrs={
                "run_id": run.id,
                "seed": run.config.seed,
                "options": dict(trial.options),
                "status": ended,
                "images": record["test_images"],
                "code_version": record["code_version"],
                "method_sources": method_sources(record),
            },
        )
    )
