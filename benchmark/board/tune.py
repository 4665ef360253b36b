"""Tune the learning rates of a suite's rows: whole runs, scored on held-out examples, until the best rate is interior.

A trial multiplies a row's rates by a power of three. What was tried is kept in the file of choices beside the suite. No
test example and no reported seed is used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark.config import Run, Runtime, apply, from_dict
from benchmark.launch import pool
from benchmark.launch.recorder import is_complete
from benchmark.runs.code_identity import by_other_code, revision
from benchmark.runs.records import READING, code_versions, read_record
from benchmark.runs.states import look, state
from benchmark.suites.plan import Row
from benchmark.suites.schema import Tuning
from benchmark.suites.suite import Suite
from datamodules.common.errors import NOT_FINITE, ConfigError, RunError
from datamodules.common.options import HOLDOUTS

FOLDER = "tuning"
STEP = 3
FIRST = (-3, -2, -1, 0, 1, 2, 3)
"""Powers of ``STEP`` that every row tries. Held-out accuracy may have two maxima, so an interior one is not enough."""
MOST = 9
"""Most powers that a row tries."""


@dataclass(frozen=True)
class Trial:
    """One value of a row's learning rates.

    Args:
        row: the tuned row.
        power: of ``STEP``, by which its rates are multiplied; 0 leaves the paper's.
        options: the resulting rates, e.g. ``{"method.lr": 0.03}``.
        runs: the runs that score it, one per seed.
        accuracy: mean held-out accuracy of its runs in percent, once they are complete.
        held_out: their total number of held-out examples.
    """

    row: Row
    power: int
    options: Mapping[str, float]
    runs: tuple[Run, ...]
    accuracy: float = 0.0
    held_out: int = 0


def rule(suite: Suite, scale: str) -> Tuning:
    """The entry ``tuning`` of a scale.

    Raises:
        ConfigError: the scale has none.
    """
    tuning = suite.scale(scale).tuning
    if tuning is None:
        raise ConfigError(f"{suite.where}: scale {scale} has no entry `tuning`, so there is nothing to tune")
    return tuning


def trial_of(suite: Suite, scale: str, row: Row, power: int, runtime: Runtime) -> Trial:
    """Return a trial of a row, as the entry ``tuning`` of the suite's scale has it.

    The entry has ``rates`` (names of options to multiply, if the method has them), ``seeds``, and layers of options
    on top, which hold out examples.

    Raises:
        ConfigError: the scale has no such entry, the row has no learning rate to multiply, or nothing is held out, so
            that test examples would be used.
    """
    tuning = rule(suite, scale)
    values = suite.values(row, scale, tuned=False, last=tuning)
    config = Run.of(from_dict(values)).config
    arguments = {f"method.{name}": value for name, value in config.method.init_args.items()}
    rates = {name: arguments[name] for name in tuning.rates if arguments.get(name) is not None}
    if not rates:
        raise ConfigError(
            f"{suite.where}, {row.name}: none of {', '.join(tuning.rates)} has a value to start from; set one "
            f"in scale {scale}"
        )
    if not any(config.data.init_args.get(name) for name in HOLDOUTS):
        raise ConfigError(
            f"{suite.where}, {row.name}: tuning would be scored on test examples: set "
            f"{' or '.join(f'data.{name}' for name in HOLDOUTS)}"
        )
    options = {name: float(f"{rate * STEP**power:.2g}") if power else rate for name, rate in rates.items()}
    runtime = replace(runtime, results_dir=str(Path(runtime.results_dir) / FOLDER))
    run = Run.of(from_dict(apply(values, options)), f"tune {row.full_name} x {STEP**power:.3g}")
    return Trial(row, power, options, tuple(run.replace(seed=seed, runtime=runtime) for seed in tuning.seeds))


def next_power(scored: Sequence[Trial]) -> int | None:
    """Return the next power: one beyond the lowest or highest, if that is the best or ``tied`` with it.

    If both are, it is beyond the better of them, and beyond the highest if they are equally good. ``None`` if the best
    and its ties have a neighbour on both sides.
    """
    powers = [trial.power for trial in scored]
    ends = [trial for trial in tied(scored) if trial.power in (min(powers), max(powers))]
    if not ends:
        return None
    end = max(ends, key=lambda trial: (trial.accuracy, trial.power)).power
    return end + 1 if end == max(powers) else end - 1


def trials_of(
    suite: Suite, scale: str, row: Row, runtime: Runtime, kept: Mapping[str, Any]
) -> tuple[list[Trial], list[Trial]]:
    """Return a row's trials with scores, by their power, and those that the rule asks for next; none if it has ended.

    Both follow from what is ``kept`` of the row's trials (``all_kept``), so that tuning continues where it was left.
    """
    planned = [trial_of(suite, scale, row, power, runtime) for power in FIRST]
    while True:
        scored, missing = [], []
        for trial in sorted(planned, key=lambda trial: trial.power):
            scores = [score for run in trial.runs if (score := score_of(run, kept))]
            if len(scores) < len(trial.runs):
                missing.append(trial)
            else:
                accuracy, held_out = fmean(acc for acc, _ in scores), sum(number for _, number in scores)
                scored.append(replace(trial, accuracy=accuracy, held_out=held_out))
        power = None if missing else next_power(scored)
        if power is None or len(planned) == MOST:
            return scored, missing
        planned.append(trial_of(suite, scale, row, power, runtime))


def tune(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime, jobs: int) -> dict[str, Any]:
    """Run the trials that the rows ask for until they have ended, choose, and write both beside the suite.

    A trial that is kept there is not run again.

    Returns:
        The choices by row, see ``choice``.

    Raises:
        ConfigError: the suite is part of an installed package, or a complete trial was made by other code of its method
            (``is_done``); or see ``trial_of``.
        RunError: a trial failed for a reason other than its rate, or did not end; there is no choice for its row, but
            for all others.
    """
    suite.check_writable("choices", "tune")
    remaining = [row for row in rows if not suite.spec.tables[row.table].untuned]
    choices: dict[str, dict[str, Any]] = {}
    lost: list[tuple[Trial, Run]] = []
    while remaining:
        kept = all_kept(suite, scale, remaining)
        steps = {row.full_name: trials_of(suite, scale, row, runtime, kept[row.full_name]) for row in remaining}
        ended = {name: choice(scored) for name, (scored, missing) in steps.items() if not missing}
        choices |= ended
        suite.tuned.add(scale, {name: entry | {"trials": kept[name]} for name, entry in ended.items()})
        lost += _run(suite, scale, [trial for _, missing in steps.values() for trial in missing], kept, jobs)
        over = choices.keys() | {trial.row.full_name for trial, _ in lost}
        remaining = [row for row in remaining if row.full_name not in over]
    if lost:
        names = ", ".join(f"{run.name} ({run.folder}: {state(run.folder)})" for _, run in lost)
        raise RunError(
            f"no score of {names}: nothing is chosen for these rows. Fix what failed, wait for runs of other "
            "processes, and run tune again"
        )
    return choices


def _run(
    suite: Suite, scale: str, planned: Sequence[Trial], kept: Mapping[str, dict[str, Any]], jobs: int
) -> list[tuple[Trial, Run]]:
    """Run trials and keep their scores; returns what has none in the end."""
    missing = [(trial, run) for trial in planned for run in trial.runs if not score_of(run, kept[trial.row.full_name])]
    if runs := {run.id: run for _, run in missing if not is_done(run)}:
        pool.run_all(list(runs.values()), jobs)
    ended = [(trial, run, entry) for trial, run in missing if (entry := _entry(trial, run))]
    for trial, run, entry in ended:
        kept[trial.row.full_name][run.id] = entry
    _keep(suite, scale, {trial.row.full_name: kept[trial.row.full_name] for trial, _, _ in ended})
    return [(trial, run) for trial, run in missing if not score_of(run, kept[trial.row.full_name])]


def _keep(suite: Suite, scale: str, trials: Mapping[str, Any]) -> None:
    """Write what is kept of rows' trials; what was chosen for a row stays until ``tune`` chooses anew."""
    entries = suite.tuned.own(scale)
    suite.tuned.add(scale, {name: entries.get(name, {}) | {"trials": of_row} for name, of_row in trials.items()})


def is_done(run: Run) -> bool:
    """Whether a run is complete, for a board: one by other code is refused, though its numbers may be the same.

    Raises:
        ConfigError: the run was made by other code, or see ``is_complete``.
    """
    if (record := look(run.folder).record) and by_other_code(run, record):
        raise ConfigError(
            f"{run.folder} was made by other code of {run.config.method.name} than is there now; delete the folder to "
            "run it again"
        )
    return is_complete(run)


def _entry(trial: Trial, run: Run) -> dict[str, Any] | None:
    """Return what is kept of a trial's run: its score in the reported reading, and what identifies it.

    A rate with non-finite numbers scores 0. A run that failed otherwise says nothing about its rate: like an unfinished
    one, and one that went on with other code, it has no entry.
    """
    ended = state(run.folder)
    if ended not in ("complete", "failed"):
        return None
    record = read_record(run.folder)
    if (ended == "failed" and NOT_FINITE not in record["error"]) or by_other_code(run, record):
        return None
    return {
        "factor": float(f"{STEP**trial.power:.3g}"),
        "seed": run.config.seed,
        "accuracy": record[READING[run.config.report]]["acc"] if ended == "complete" else 0.0,
        "held_out": record["test_images"],
        "code": code_versions(record),
        "revision": revision(run),
    }


def all_kept(suite: Suite, scale: str, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return what is kept of the rows' trials: entries by the ids of their runs, by ``Row.full_name``.

    A different rate, seed, held-out part or setting is a different run.
    """
    entries = suite.tuned.own(scale)
    return {row.full_name: dict(entries.get(row.full_name, {}).get("trials", {})) for row in rows}


def score_of(run: Run, kept: Mapping[str, Any]) -> tuple[float, int] | None:
    """Return accuracy in percent and number of held-out examples of a run; ``None`` if today's code made no score."""
    entry = kept.get(run.id)
    if entry is None or entry["accuracy"] is None or entry["revision"] != revision(run):
        return None
    return entry["accuracy"], entry["held_out"]


def choice(scored: Sequence[Trial]) -> dict[str, Any]:
    """Choose a trial: of those ``tied`` with the best, the one nearest to the paper's rates.

    Few examples make a noisy score, and noise is no reason to depart from the paper. Of two equally near trials the
    better one is chosen, or the one with lower rates if they are equally good.

    Returns:
        The chosen ``options``; whether the best is ``interior``, and the ``reason`` if not; all that was ``tried``; and
        ``held_out_images``, ``margin``, ``seeds`` and ``rounds``.
    """
    chosen = min(tied(scored), key=lambda trial: (abs(trial.power), -trial.accuracy, trial.power))
    beyond = next_power(scored)
    end = "highest" if beyond is not None and beyond > 0 else "lowest"
    reason = {} if beyond is None else {"reason": f"the {end} of {len(scored)} values is the best or tied with it"}
    return {
        "options": dict(chosen.options),
        "interior": beyond is None,
        **reason,
        "tried": [{**trial.options, "held_out_accuracy": round(trial.accuracy, 2)} for trial in scored],
        "held_out_images": chosen.held_out,
        "margin": round(margin(scored), 2),
        "seeds": [run.config.seed for run in chosen.runs],
        "rounds": chosen.runs[0].config.rounds,
    }


def margin(scored: Sequence[Trial]) -> float:
    """Return one standard error of the highest accuracy, in points: sqrt(p (1 - p) / n) of its n held-out examples."""
    best = max(scored, key=lambda trial: (trial.accuracy, trial.held_out))
    share = best.accuracy / 100
    return 100 * math.sqrt(share * (1 - share) / best.held_out)


def tied(scored: Sequence[Trial]) -> list[Trial]:
    """Return the best trial, and those at most one standard error (``margin``) below it."""
    least = max(trial.accuracy for trial in scored) - margin(scored)
    return [trial for trial in scored if trial.accuracy >= least]


def retraced(suite: Suite, scale: str, row: Row) -> tuple[dict[str, Any] | None, list[str], int]:
    """Return ``tune``'s choice for a row from what is kept of its trials, without running or writing anything.

    Returns:
        The choice, ``None`` if a run is missing; what is missing; and the number of configurations, tried or missing,
        including those outside the rule.
    """
    kept = all_kept(suite, scale, [row])[row.full_name]
    scored, missing = trials_of(suite, scale, row, Runtime(), kept)
    lacking = []
    for trial in missing:
        options = ", ".join(f"{name} {value:g}" for name, value in trial.options.items())
        lacking += [f"{options}, seed {run.config.seed}" for run in trial.runs if not score_of(run, kept)]
    of_rule = {run.id for trial in [*scored, *missing] for run in trial.runs}
    outside = math.ceil(len(kept.keys() - of_rule) / len(rule(suite, scale).seeds))
    return (None if missing else choice(scored)), lacking, len(scored) + len(missing) + outside


def left(suite: Suite, scale: str, rows: Sequence[Row], runtime: Runtime) -> list[Path]:
    """Return the folders of all runs of earlier trials of the rows, whether or not they exist."""
    first = [trial_of(suite, scale, row, power, runtime) for row in rows for power in FIRST]
    folders = [run.folder for trial in first for run in trial.runs]
    keys = [key for trials in all_kept(suite, scale, rows).values() for key in trials]
    return folders + [path for key in keys for path in (Path(runtime.results_dir) / FOLDER / "runs").glob(f"*-{key}")]


def forget(suite: Suite, scale: str, rows: Sequence[Row]) -> None:
    """Let no earlier trial of the rows count; what has been tried stays there, and ``retraced`` counts it.

    ``tune`` runs everything again whose folder (``left``) has been deleted.
    """
    kept = all_kept(suite, scale, rows)
    for trials in kept.values():
        trials.update({key: entry | {"accuracy": None} for key, entry in trials.items()})
    _keep(suite, scale, {name: trials for name, trials in kept.items() if trials})
