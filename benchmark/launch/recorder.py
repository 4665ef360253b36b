"""What a run leaves in its folder while it goes on, and where it stands when it starts again.

The first process of a run writes: rows, checkpoints, the record, and the weights at the end.
"""

import sys
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from lightning import Fabric

from benchmark.config import Run, differences
from benchmark.federation import checkpoint
from benchmark.federation.collectives import on_first, wait_for_all
from benchmark.federation.loop import Federation
from benchmark.federation.store import discard_states
from benchmark.launch.signals import check_stopped
from benchmark.runs.code_identity import by_other_code, revision
from benchmark.runs.exported import WEIGHTS
from benchmark.runs.folder import CODE, RunFolder
from benchmark.runs.loggers import Mirror, mirror_run
from benchmark.runs.records import code_versions, read_record, revisions
from benchmark.runs.states import CHECKPOINT, other_data
from datamodules.common.errors import BenchError, ConfigError, RunError, Stopped
from datamodules.common.files import replacing

REMEDY = "bring this run's own checkpoint back, or delete the folder to start over"


class Recorder:
    """Writes each evaluated round to the run's folder and to its mirror, and a checkpoint when one is due.

    It holds the state at the end of the last round. Later rounds leave those tensors alone, so it can be saved at any
    moment.

    Args:
        run: the run.
        files: its folder.
    """

    def __init__(self, run: Run, files: RunFolder) -> None:
        self.run, self.files = run, files
        self.checkpoint = checkpoint.Checkpoint(files.path / CHECKPOINT, run.config.runtime.checkpoint_every_s)
        self.state: dict[str, Any] | None = None

    @cached_property
    def mirror(self) -> Mirror:
        """The mirror of the run, once its record is open."""
        return mirror_run(self.run, self.files.path, self.files.record)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        """Save the end of the last round if the run is stopped."""
        if kind in (KeyboardInterrupt, Stopped):
            try:
                self.save()
            except (OSError, BenchError) as error:
                self.say(f"the last rounds could not be saved: {error}")
        if "mirror" in vars(self):
            self.mirror.__exit__(kind, *more)

    def say(self, text: str) -> None:
        """Print a line about the run on stderr."""
        print(f"{self.files.path}: {text}", file=sys.stderr)

    def on_round_end(self, federation: Federation, row: dict[str, Any] | None) -> None:
        """Write the row of an evaluated round, and a checkpoint if one is due."""
        if row is not None:
            self.files.append(row)
            self.mirror.row(row, federation.data.class_names)
        self.files.beat(federation.round)
        self.state = {**federation.state_dict(), "rows": self.files.rows_digest}
        if federation.round < federation.rounds and self.checkpoint.due():
            self.save()
        check_stopped()

    def save(self) -> None:
        """Write a checkpoint of the end of the last round, unless it has been written."""
        if self.state is not None:
            self.files.check_claim()
            self.checkpoint.save({**self.state, "origin": self.files.origin})
            self.files.saved(self.state["round"])
            self.state = None

    def finish(self, federation: Federation) -> None:
        """Write the weights and the complete record."""
        weights = {**federation.server, **federation.method.tensors("frozen")}
        self.files.check_claim()
        with replacing(self.files.path / WEIGHTS) as file:
            file.write(checkpoint.dumped({name: weight.cpu() for name, weight in weights.items()}))
        self.state, confusion = None, federation.confusion
        self.files.finish(federation.averaged, None if confusion is None else confusion.tolist())
        self.mirror.record(self.files.record, federation.data.class_names)
        checkpoint.remove(self.files.path / CHECKPOINT)


def is_complete(run: Run) -> bool:
    """Whether the run has its complete record; then a checkpoint that a kill has left is deleted.

    Raises:
        ConfigError: the record was made under other defaults, from other data, or by another revision of the code.
        RunError: the record is damaged.
    """
    config, path = run.config, run.folder
    if not (path / "record.json").exists():
        return False
    record = read_record(path)
    if changed := differences(record["config"], config):
        raise ConfigError(f"{path}: {'; '.join(changed)}. Delete the folder to run it again")
    if record["status"] != "complete":
        return False
    if file := other_data(run, record):
        raise ConfigError(f"{file} has changed since {path} was made; delete that folder or give --overwrite")
    if by_other_code(run, record):
        message = (
            f"{path} was made by other code of {config.method.name}, {' and '.join(revisions(record))} "
            f"(code {', '.join(code_versions(record))}), than is there now, {revision(run)} (code {CODE}); "
            "delete the folder or give --overwrite to run it again, or give another --results_dir to keep both"
        )
        if by_other_code(run, record, source=False):
            raise ConfigError(message)
        warnings.warn(message, stacklevel=2)
    checkpoint.remove(path / CHECKPOINT)  # a kill may have come between the record and this
    discard_states(path)
    return True


def resume(fabric: Fabric, federation: Federation, recorder: Recorder | None) -> None:
    """Continue from the run's checkpoint, in every process, or start at the first round if there is none.

    Args:
        fabric: launched.
        federation: of the run, at its beginning.
        recorder: that of the first process, which has the checkpoint.

    Raises:
        RunError: no checkpoint is intact, it is not this run's, or rows that were written before it are missing or
            changed.
    """
    saved = checkpoint.sent_to_all(fabric, on_first(fabric, lambda: _load(recorder, federation)))
    if saved is not None:
        federation.load_state_dict(saved)
    wait_for_all(fabric)
    on_first(fabric, lambda: _take_up(recorder, federation, saved))


def _load(recorder: Recorder | None, federation: Federation) -> dict[str, Any] | None:
    """The checkpoint that the run continues from.

    Raises:
        RunError: none is intact, or it is of another run or partition, or lacks something of the run.
    """
    assert recorder is not None
    saved = recorder.checkpoint.load()
    if saved is not None and (mismatch := _mismatch(saved, recorder.files.origin, federation)):
        raise RunError(f"{recorder.checkpoint.path}: {mismatch}; {REMEDY}")
    return saved


def _take_up(recorder: Recorder | None, federation: Federation, saved: Mapping[str, Any] | None) -> None:
    """Bring what the first process writes back to the round that the run continues with."""
    assert recorder is not None
    files, rows = recorder.files, None if saved is None else saved["rows"]
    files.rewind(federation.round, rows)
    files.saved(federation.round)
    if saved is not None:
        recorder.say(f"continues after {federation.round} of {federation.rounds} rounds")


def _mismatch(saved: Mapping[str, Any], ours: Mapping[str, Any], federation: Federation) -> str:
    """What of a checkpoint is not of this run, whose origin is ``ours``; empty if nothing.

    It may be its origin, its round, or tensors of the server or a client.
    """
    origin = saved["origin"]
    for key in ("run_id", "partition_hash"):
        if origin[key] != ours[key]:
            return f"its {key} is {origin[key]} (code {origin['code_version']}), not {ours[key]}"
    if saved["round"] > federation.rounds:
        return f"round is {saved['round']}, after the last of {federation.rounds}"
    personal = federation.method.tensors("personal")
    floating = {name: value for name, value in federation.server.items() if value.is_floating_point()}
    averaging = saved["round"] > federation.rounds - federation.average_last
    parts = [("server", saved["server"], federation.server)]
    parts += [("summed", saved.get("summed", {}), floating if averaging else {})]
    parts += [(f"clients.{client}", tensors, personal) for client, (tensors, _) in saved["clients"].items()]
    for where, tensors, expected in parts:
        for name in {**expected, **tensors}:
            if name not in expected or name not in tensors or tensors[name].shape != expected[name].shape:
                return f"{where}.{name} is missing, unknown, or of another shape"
    return ""
