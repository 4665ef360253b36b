"""A run of more rounds goes on where a complete one of fewer, equal otherwise and by the same code, has ended."""

import json
import sys
from pathlib import Path

from benchmark.config import Run, apart, identity
from benchmark.federation import checkpoint
from benchmark.runs.code_identity import by_other_code, code_version, uncommitted
from benchmark.runs.folder import RunFolder, digest_of, line_of
from benchmark.runs.records import READINGS, Record, code_versions, read_rows
from benchmark.runs.states import CHECKPOINT, LAST_STATE, look, other_data
from datamodules.common.files import write_atomic

FREE = {"rounds", "scale"}  # what may differ: the second is a label


def go_on(run: Run, files: RunFolder) -> None:
    """Make the folder of a new run that of one interrupted after the last round of a shorter one, if there is one.

    The longest one counts. It has kept its state only where its training never asked for the number of rounds
    (``Visit.rounds``), so both runs would have trained alike up to there. It stays as it is.
    """
    if (run.folder / "record.json").exists() or not (shorter := _shorter(run)):
        return
    path = max(shorter, key=lambda path: shorter[path]["rounds"]["total"])
    with files.lock():
        _copy(path, shorter[path], run)
    print(f"{run.folder}: goes on from the last round of {path}", file=sys.stderr)


def _shorter(run: Run) -> dict[Path, Record]:
    """Folders and records of complete runs that differ in the number of rounds alone and have kept their state."""
    config, found = run.config, {}
    for path in run.folder.parent.glob(f"{run.folder.name.removesuffix(run.id)}*"):
        record = look(path).record if (path / LAST_STATE).exists() else None
        if record and record["rounds"]["total"] < config.rounds and not config.average_last:
            other = apart(record["config"], identity(config)).keys() - FREE
            if not (other or by_other_code(run, record) or other_data(run, record) or _edited(path, record)):
                found[path] = record
    return found


def _edited(path: Path, record: Record) -> bool:
    """Whether the code is not the very code of a run, though its revision may be the same; asks git."""
    patches = {file.name for file in path.glob("uncommitted-*.patch")}
    return code_versions(record) != [code_version()] or patches != uncommitted().keys()


def _copy(source: Path, record: Record, run: Run) -> None:
    """Write rows, checkpoint and, at last, the record. The last row goes if only the end of the run asked for it."""
    path, done = run.folder, record["rounds"]["total"]
    rows = [row for row in read_rows(source) if (row["round"] + 1) % run.config.eval_every == 0]
    state = checkpoint.load(source / LAST_STATE)
    assert state is not None
    origin = {**state["origin"], "run_id": run.id}
    checkpoint.save(path / CHECKPOINT, {**state, "rows": digest_of(rows), "origin": origin})
    write_atomic(path / "metrics.jsonl", "".join(map(line_of, rows)))
    begun = {key: value for key, value in record.items() if key not in ("digest", "confusion", "skipped")}
    begun |= {"run_id": run.id, "status": "running", "scale": run.config.scale, **dict.fromkeys(READINGS)}
    begun |= {"config": identity(run.config), "rounds": {"done": done, "total": run.config.rounds}}
    begun["timing"] = {**record["timing"], "saved_rounds": done}
    write_atomic(path / "record.json", json.dumps(begun, indent=1) + "\n")
