"""Verifying a submission: a maintainer reruns one of its seeds."""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmark.config import Runtime
from benchmark.report.compare import code, compare
from benchmark.run import fit
from benchmark.runs.environment import hardware, uses_gpu
from benchmark.runs.records import READING, read_record
from benchmark.submission.folder import Submission, importable, opened
from datamodules.common.errors import ConfigError

FOLDER = "verification"
SAME_MACHINE = ("cpu", "threads", "devices", "torch")  # entries of the environment that affect rounding, on a CPU


@dataclass(frozen=True)
class Verified:
    """Result of rerunning a seed.

    Args:
        lines: differences between the two runs, as printed by ``compare``.
        counts: whether the run confirms the submitted one.
        reason: why.
    """

    lines: tuple[str, ...]
    counts: bool
    reason: str


def verify(place: Path, seed: int, runtime: Runtime) -> Verified:
    """Rerun a seed of a submission, and mark it as verified in its folder if the results agree.

    On a machine with the same rounding all rounds and readings must be equal; elsewhere, and on a GPU, every reading
    must lie within its prediction interval of the row's seeds, which together have 95 %.

    Raises:
        ConfigError: see ``opened``; or the submission has no such seed.
        RunError: the run fails.
    """
    with importable(place):
        return _verified(opened(place), seed, runtime)


def _verified(one: Submission, seed: int, runtime: Runtime) -> Verified:
    if seed not in one.records:
        there = ", ".join(map(str, one.records)) or "none"
        raise ConfigError(f"{one.folder}: no run with seed {seed}; there are {there}")
    own = replace(runtime, results_dir=str(Path(runtime.results_dir) / FOLDER))
    again = fit(one.runs[seed].replace(runtime=own))
    submitted, ours = one.records[seed], read_record(again)
    found = compare(one.runs[seed].folder, again)
    places = submitted["environment"], ours["environment"]
    on_gpu = any(uses_gpu(place) for place in places)
    alike = not on_gpu and all(len({place.get(name) for place in places}) == 1 for name in SAME_MACHINE)
    if found.equal:
        counts, reason = True, "equal in all rounds"
    elif alike:
        counts, reason = False, "a different result on a machine with the same rounding, where it must be equal"
    elif found.within is None:
        counts, reason = False, "fewer than three seeds of the row, so that there is no prediction interval"
    else:
        counts = found.within
        where = "a GPU" if on_gpu else "another machine"
        reason = f"on {where}, {'within' if counts else 'outside'} the prediction interval of the row's seeds"
    if counts:
        reading = READING[one.suite.report]
        entry = {
            "seed": seed,
            "equal": found.equal,
            "submitted": submitted[reading]["acc"] if submitted[reading] else None,
            "again": ours[reading]["acc"],
            "code": code(ours),
            "hardware": hardware(ours["environment"]),
        }
        one.suite.verified.add(one.scale, {one.row.full_name: entry})
    return Verified(found.lines, counts, reason)
