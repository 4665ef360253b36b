"""Rows of the papers' tables at full size, with random images, against limits in seconds."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from benchmark.arguments import typed_args
from benchmark.config import Run, RunConfig, apply, from_dict
from benchmark.federation.loop import Federation
from benchmark.files import read_value
from benchmark.perf.federations import Noise, arithmetic, federation_of, synchronize
from benchmark.perf.measure import seconds
from benchmark.registry import KINDS, ClassSpec, find_class
from benchmark.suites import suite
from datamodules.common.errors import ConfigError

COLD, STEADY = 2, 8
HEADERS = [
    "row", "rounds", "precision", "slots", "measured", "before round 0, s", "first rounds, s", "recorded in",
    "further, s/round", "all, s", "limit, s", "goal", "memory, GiB",
]  # fmt: skip
NOTE = (
    "Federations of the papers' sizes and schedules with random images of 32 x 32 pixels, by the engine `slots` with "
    f"replay, from the first round that is no warm-up; a round is all of it, evaluation too. The first {COLD} rounds "
    f"record the steps; the next ones, up to {STEADY}, are averaged: those in which no step was recorded, or all where "
    "there are none (if there was no time for any, the last of the first stands for them). All rounds are EXTRAPOLATED "
    "from that mean: before round 0 + first rounds + mean x the remaining rounds. For a limit on one round, the mean "
    "stands alone. Recorded in: rounds after the first ones in which new shapes were met; until all are known, the run "
    "takes longer than its extrapolation. "
    "Memory: what torch has reserved on the GPU at most."
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
        config = Run.of(from_dict(self.shrunk(values) if self.tiny else values)).config
        cls: Any = find_class(config.data.class_path, KINDS["data"])
        clients = config.data.init_args["num_clients"]
        noise = {"images": 20 * clients if self.tiny else cls.train_size, "classes": cls.num_classes}
        known = typed_args(Noise, noise, "data", KINDS["data"].supplied)
        noise |= {name: value for name, value in config.data.init_args.items() if name in known}
        return replace(config, data=ClassSpec(f"{Noise.__module__}.{Noise.__qualname__}", noise))

    def shrunk(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Shrink a configuration so that it takes moments."""
        given, clients = values["data"]["init_args"], values["data"]["init_args"]["num_clients"]
        small: dict[str, Any] = {"model": "small_cnn", "model_args": {}, "data.partition": "iid"}
        if (given.get("num_labels") or 0) > 2 * clients:
            small["data.num_labels"] = 2 * clients
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


def federation(goal: Goal, precision: Any, slots: int, device: str) -> Federation:
    """Create the federation of a goal, with at most as many slots as participants."""
    config = goal.config()
    active = config.roster.get("participants") or config.data.init_args["num_clients"]
    return federation_of(Run.of(replace(config, precision=precision)), device, slots=min(slots, active))


def first_round(made: Federation) -> int:
    """The first round that is no warm-up."""
    return next((number for number in range(made.rounds) if not made.method.is_warmup(number)), 0)


def next_round(made: Federation, device: str) -> float:
    """Run the next round and return its seconds."""

    def work() -> None:
        made.run_round(made.round)
        synchronize(device)

    taken = seconds(work)
    made.round += 1
    return taken


def recordings(made: Federation) -> int:
    """Number of steps recorded by the slots so far."""
    return made.engine.counts().get("captured", 0)


def steady(taken: Sequence[float], recorded: Sequence[bool]) -> float:
    """Mean seconds of rounds without recording; of all rounds if there are none; 0 without rounds."""
    replayed = [seconds for seconds, new in zip(taken, recorded, strict=True) if not new]
    return fmean(replayed or taken or [0.0])


def extrapolated(goal: Goal, began: float, taken: Sequence[float], recorded: Sequence[bool]) -> tuple[float, float]:
    """Extrapolate from the rounds that were measured.

    Args:
        goal: the row.
        began: seconds before round 0.
        taken: seconds of each round, of ``COLD`` at least.
        recorded: whether steps were recorded in it.

    Returns:
        seconds of a further round, and of all rounds of the goal (of one further round if the goal is one round).
    """
    further = steady(taken[COLD:], recorded[COLD:]) or taken[-1]
    if goal.rounds == 1:
        return further, further
    return further, began + sum(taken[: min(COLD, goal.rounds)]) + max(goal.rounds - COLD, 0) * further


def measured(goal: Goal, precision: str, slots: int, device: str, allowed: float, averaged: int = STEADY) -> list[Any]:
    """Measure a line of the table; up to ``averaged`` further rounds, none of them after ``allowed`` seconds."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with arithmetic(precision) as known:
        made = federation(goal, known, slots, device)
        deadline = time.monotonic() + allowed
        began = seconds(partial(made.server_phase, 0, first=True))
        synchronize(device)
        made.round = first_round(made)
        taken, recorded = [next_round(made, device)], [True]
        while len(taken) < COLD + averaged and (len(taken) < COLD or time.monotonic() < deadline):
            before = recordings(made)
            taken.append(next_round(made, device))
            recorded.append(recordings(made) != before)
    further, whole = extrapolated(goal, began, taken, recorded)
    verdict = "met" if whole <= goal.limit else "missed"
    used = len(getattr(made.engine, "slots", [None]))
    held = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else "-"
    return [
        goal.name,
        goal.rounds,
        precision,
        used,
        len(taken),
        began,
        sum(taken[:COLD]),
        sum(recorded[COLD:]),
        further,
        whole,
        goal.limit,
        verdict,
        held,
    ]
