"""Folders of runs for tests: complete ones, records that somebody has changed, and locks held by others."""

import fcntl
import json
import os
from contextlib import contextmanager

from benchmark.config import Run, RunConfig
from benchmark.registry import ClassSpec
from benchmark.runs import records
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import read_record, without_clock

FACTS = {"partition_hash": "ab", "data_sha256": {"f": "cd"}, "labelled_histogram": [[3, 0], [0, 0]]}


RUN = Run.of(
    RunConfig(
        ClassSpec("methods.fedavg.FedAvg", {"lr": 0.1}),
        ClassSpec("datamodules.digits.Digits", {"partition_seed": 7}),
        rounds=4,
        seed=1,
        last_k=2,
    )
)


ACCURACY = [10.0, 60.0, 60.0, 50.0]


def row(number, **more):
    return {
        "round": number,
        "acc": ACCURACY[number],
        "auc": 90.0 + number,
        "visits": 10,
        "bytes_up": 100 * (number + 1),
        "bytes_down": 200 * (number + 1),
        "timing": {"seconds": int.from_bytes(os.urandom(2), "big") / 1000},
        **more,
    }


def whole_run(path):
    folder = RunFolder(path)
    folder.open(RUN, FACTS)
    for number in range(4):
        folder.append(row(number))
    folder.finish()
    return folder


def completed(run, *curve, averaged=None, **facts):
    """The folder of a run that ended with these accuracies, or rows, one of each of its last rounds; nothing is run."""
    folder = RunFolder(run.folder)
    folder.open(run, FACTS | facts)
    for number, found in enumerate(curve, run.config.rounds - len(curve)):
        folder.append({"round": number, **(found if isinstance(found, dict) else {"acc": found})})
    folder.finish(averaged)
    return folder.path


def change(path, edit):
    """Change a record as somebody would who knows how its digest is made."""
    record = json.loads((path / "record.json").read_text())
    edit(record)
    if "digest" in record:
        record["digest"] = records.digest(record, records.read_rows(path))
    (path / "record.json").write_text(json.dumps(record))


def stripped(path):
    rows = "\n".join(json.dumps(without_clock(r)) for r in records.read_rows(path))
    return json.dumps(without_clock(read_record(path))) + rows


@contextmanager
def flocked(folder, kind):
    """Hold another process's lock: that of a run (exclusive) or of a reader (shared)."""
    handle = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)
