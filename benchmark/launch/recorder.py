"""What the first process of a run writes while the run goes on: rows, checkpoints, and the record at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning import Fabric

from benchmark.config import Run
from benchmark.federation import checkpoint
from benchmark.federation.checkpoint_files import save_plain
from benchmark.federation.loop import Federation, RoundCallback
from benchmark.launch.signals import check_stopped
from benchmark.runs.exported import WEIGHTS
from benchmark.runs.folder import RunFolder
from benchmark.runs.loggers import Mirror, mirror_run
from benchmark.runs.states import CHECKPOINT
from datamodules.common.errors import BenchError, ConfigError, DataError, Stopped


class Bystander:
    """Stands in for the recorder in all processes but the first, which write nothing."""

    @property
    def callbacks(self) -> list[RoundCallback]:
        """What the federation calls after each round."""
        return []

    def say(self, text: str) -> None:
        """Nothing: the first process speaks for all."""

    def finish(self, federation: Federation) -> None:
        """Nothing."""

    def fail(self, error: Exception, run: Run) -> None:
        """Nothing: the process that has launched the others records their errors."""


class Recorder(Bystander):
    """Writes each evaluated round to the run's folder and to its mirror, and a checkpoint when one is due.

    It holds the state at the end of the last round. Later rounds leave those tensors alone, so it can be saved at any
    moment.

    Args:
        files: the run's folder.
        mirror: the run in W&B.
        every_s: least number of seconds between two checkpoints.
    """

    def __init__(self, files: RunFolder, mirror: Mirror, every_s: float) -> None:
        self.files, self.mirror = files, mirror
        self.checkpoint = checkpoint.Checkpoint(files.path / CHECKPOINT, every_s)
        self.state: dict[str, Any] | None = None

    @property
    def callbacks(self) -> list[RoundCallback]:
        """The recorder itself."""
        return [self]

    def say(self, text: str) -> None:
        """Print a line about the run on stderr."""
        print(f"{self.files.path}: {text}", file=sys.stderr)

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        """Write the row of an evaluated round, and a checkpoint if one is due."""
        if row is not None:
            self.files.append(row)
            self.mirror.row(row)
        self.files.beat(federation.round)
        self.state = {**federation.state_dict(), "rows": self.files.rows_digest}
        if federation.round < federation.rounds and self.checkpoint.due(self.state):
            self.save()
        check_stopped()

    def save(self) -> None:
        """Write a checkpoint of the end of the last round, unless it has been written."""
        if self.state is not None:
            self.files.check_claim()
            self.checkpoint.save({**self.state, "origin": self.files.origin})
            self.files.saved(self.state["round"])
            self.state = None

    def save_before_stop(self) -> None:
        """Save what can be saved before the run stops; an error in saving is reported and not raised."""
        try:
            self.save()
        except (OSError, BenchError) as error:
            self.say(f"the last rounds could not be saved: {error}")

    def finish(self, federation: Federation) -> None:
        """Write the weights and the complete record, which make the checkpoint superfluous."""
        if taken := federation.engine.counts():
            ways = ", ".join(f"{count:,} {way}" for way, count in taken.items())
            self.say(f"steps of clients in slots, in this process: {ways}")
        weights = {name: value.cpu() for name, value in federation.server.items()}
        self.files.check_claim()
        save_plain(self.files.path / WEIGHTS, weights)
        self.state, confusion = None, federation.confusion
        record = self.files.finish(federation.averaged, None if confusion is None else confusion.tolist())
        self.mirror.record(record)
        checkpoint.remove(self.files.path / CHECKPOINT)

    def fail(self, error: Exception, run: Run) -> None:
        """Record an error. Bad input that is refused before the run begins leaves no record."""
        if self.files.opened or not isinstance(error, (ConfigError, DataError)):
            self.files.fail(error, run)


@contextmanager
def recording(fabric: Fabric, run: Run, files: RunFolder) -> Iterator[Bystander]:
    """The recorder of this process. A run that is stopped saves the end of its last round."""
    if not fabric.is_global_zero:
        yield Bystander()
        return
    with mirror_run(run, files.path) as mirror:
        recorder = Recorder(files, mirror, run.config.runtime.checkpoint_every_s)
        try:
            yield recorder
        except (KeyboardInterrupt, Stopped):
            recorder.save_before_stop()
            raise
