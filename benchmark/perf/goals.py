"""Rows of the papers' tables at full size, with random images, against limits in seconds."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmark.arguments import typed_args
from benchmark.config import Run, RunConfig, apply, from_dict
from benchmark.files import read_value
from benchmark.perf.federations import NOISE, Noise, federation_of, synchronize
from benchmark.perf.measure import seconds
from benchmark.registry import KINDS, ClassSpec, find_class
from benchmark.suites import suite
from datamodules.common.errors import ConfigError

COLD, STEADY = 2, 8
HEADERS = ["row", "rounds", "precision", "slots", "measured", "first rounds, s", "further, s/round", "all, s"]
HEADERS += ["limit, s", "goal", "memory, GiB"]
NOTE = (
    "Federations of the papers' sizes and schedules with random images of 32 x 32 pixels, by replay, from the first "
    f"round that is no warm-up, evaluation included. The first {COLD} rounds, with all that comes before them, record "
    f"the steps; of up to {STEADY} more the median is taken. All rounds are EXTRAPOLATED: first rounds + median x the "
    "others. For a limit on one round, the median stands alone. Memory: what torch has reserved on the GPU at most."
)


@dataclass(frozen=True)
class Goal:
    """A row of a paper's suite with a time limit.

    Args:
        paper: key of the suite.
        row: ``table/dataset/method``; the first such row counts.
        rounds: number of rounds for the limit.
        limit: limit in seconds.
        options: changes to the row's configuration, as on the command line.
        tiny: use few images, a small network and one epoch, for a trial of this code.
    """

    paper: str
    row: str
    rounds: int
    limit: float
    options: Mapping[str, Any]
    tiny: bool = False

    @property
    def name(self) -> str:
        """Name in tables."""
        changed = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.paper} {self.row}{f' ({changed})' if changed else ''}"

    def config(self) -> RunConfig:
        """Return the row's configuration, with random images instead of its data set.

        Raises:
            ConfigError: there is no such row, or an option is unknown.
        """
        chosen = suite.load(self.paper)
        rows = [row for row in chosen.rows if row.name == self.row and row.minus is None and not row.pending]
        if not rows:
            raise ConfigError(f"suite {self.paper} has no row {self.row}; it has {', '.join(chosen.names())}")
        values = apply(asdict(chosen.run(rows[0], "paper").config), self.options)
        config = Run.of(from_dict(shrunk(values) if self.tiny else values)).config
        cls: Any = find_class(config.data.class_path, KINDS["data"])
        clients = config.data.init_args["num_clients"]
        noise = {"images": 20 * clients if self.tiny else cls.train_size, "classes": cls.num_classes}
        known = typed_args(Noise, noise, "data", KINDS["data"].supplied)
        noise |= {name: value for name, value in config.data.init_args.items() if name in known}
        return replace(config, data=ClassSpec(NOISE, noise))


def shrunk(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shrink a configuration so that it takes moments."""
    given = values["data"]["init_args"]
    small: dict[str, Any] = {"model": "small_cnn", "model_args": {}, "data.partition": "iid"}
    if (given.get("num_labels") or 0) > 2 * given["num_clients"]:
        small["data.num_labels"] = 2 * given["num_clients"]
    if (values["method"]["init_args"].get("local_epochs") or 0) > 1:
        small["method.local_epochs"] = 1
    return apply(values, small)


def parsed(words: Sequence[str]) -> Goal:
    """Parse a goal from ``PAPER ROW ROUNDS SECONDS [OPTION=VALUE ...]``.

    Raises:
        ConfigError: the words do not have this form.
    """
    try:
        paper, row, rounds, limit, *options = words
        pairs = [option.split("=", 1) for option in options]
        changed = {name: read_value(value) for name, value in pairs}
        return Goal(paper, row, int(rounds), float(limit), changed)
    except ValueError:
        raise ConfigError(f"goal {' '.join(words)}: give PAPER ROW ROUNDS SECONDS [OPTION=VALUE ...]") from None


def extrapolated(goal: Goal, taken: Sequence[float]) -> tuple[float, float]:
    """Seconds of a further round, and of the whole goal, from the seconds of ``COLD`` rounds or more."""
    further = statistics.median(taken[COLD:] or taken[-1:])
    if goal.rounds == 1:
        return further, further
    return further, sum(taken[: min(COLD, goal.rounds)]) + max(goal.rounds - COLD, 0) * further


def measured(goal: Goal, precision: str, slots: int, device: str, allowed: float, steady: int = STEADY) -> list[Any]:
    """Measure a line of the table; up to ``steady`` further rounds, none of them after ``allowed`` seconds."""
    config = goal.config()
    slots = min(slots, config.roster.get("participants") or config.data.init_args["num_clients"])
    made = federation_of(replace(config, precision=precision), device, slots=slots)
    deadline = time.monotonic() + allowed

    def work(number: int) -> None:
        made.run_round(number)
        synchronize(device)

    began = seconds(partial(made.server_phase, 0, first=True))
    first = next((number for number in range(made.rounds) if not made.method.is_warmup(number)), 0)
    taken: list[float] = []
    while len(taken) < COLD + steady and (len(taken) < COLD or time.monotonic() < deadline):
        taken.append(seconds(partial(work, first + len(taken))))
    taken[0] += began
    further, whole = extrapolated(goal, taken)
    verdict = "met" if whole <= goal.limit else "missed"
    held = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else "-"
    row = [goal.name, goal.rounds, precision, slots, len(taken), sum(taken[:COLD]), further, whole]
    return [*row, goal.limit, verdict, held]
