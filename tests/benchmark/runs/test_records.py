"""Run folders: what is on disk after every step, kills and resumes, readings, byte equality, locks."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch

from benchmark.config import Run, RunConfig, Runtime, from_yaml, identity
from benchmark.federation import checkpoint
from benchmark.files import write_atomic
from benchmark.launch.worker import CHECKPOINT
from benchmark.registry import ClassSpec
from benchmark.runs import lock, records
from benchmark.runs.environment import ROOT, environment
from benchmark.runs.lock import RunLocked, holder, locked, run_lock
from benchmark.runs.records import RunFolder, last_row, read_record, readings, state, validate, without_clock
from datamodules.common.errors import RunError

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


def stripped(path):
    rows = "\n".join(json.dumps(without_clock(r)) for r in records.read_rows(path))
    return json.dumps(without_clock(read_record(path))) + rows


def test_a_complete_run(tmp_path):
    record = whole_run(tmp_path / "a" / "b").record()
    assert record["status"] == "complete" and record["run_id"] == RUN.id
    assert (record["method"], record["dataset"], record["scale"]) == ("fedavg", "digits", "custom")
    assert record["seeds"] == {"run": 1, "partition": 7}
    assert record["rounds"] == {"done": 4, "total": 4}
    assert record["final"] == {"round": 3, "acc": 50.0, "auc": 93.0}
    assert record["best"] == {"round": 1, "acc": 60.0, "auc": 91.0}
    assert record["last_k_mean"] == {"rounds": 2, "acc": 55.0, "auc": 92.5}
    assert (record["bytes_up"], record["bytes_down"]) == (400, 800)
    assert record["labelled_histogram"] == [[3, 0], [0, 0]]
    assert record["environment"]["torch"] and record["environment"]["precision"] == "32-true"
    saved = from_yaml((tmp_path / "a" / "b" / "config.yaml").read_text())
    assert identity(saved) == identity(RUN.config) == record["config"]
    assert not list(tmp_path.rglob("*.tmp"))


def averaged_run(path, reading):
    folder = RunFolder(path)
    folder.open(Run.of(replace(RUN.config, average_last=3)), FACTS)
    for number in range(4):
        folder.append(row(number))
    return folder.finish(reading)


def test_the_averaged_reading_is_sealed_by_the_digest_and_kept_from_runs_without_it(tmp_path):
    reading = {"rounds": 3, "acc": 62.5, "loss": float("nan")}
    record = averaged_run(tmp_path / "with", reading)
    assert read_record(tmp_path / "with")["averaged"] == {"rounds": 3, "acc": 62.5, "loss": None}
    file = tmp_path / "with" / "record.json"
    file.write_text(json.dumps({**record, "averaged": {**record["averaged"], "acc": 99.0}}))
    with pytest.raises(RunError, match="the digest differs"):
        read_record(tmp_path / "with")
    file.write_text(json.dumps({**record, "averaged": 99.0}))
    with pytest.raises(RunError, match="averaged is float"):
        read_record(tmp_path / "with")
    with pytest.raises(RunError, match="averaged is empty"):
        averaged_run(tmp_path / "without", None)
    assert "averaged" not in whole_run(tmp_path / "plain").record()


def test_two_runs_are_equal_byte_for_byte_but_for_clock_and_environment(tmp_path):
    whole_run(tmp_path / "a")
    whole_run(tmp_path / "b")
    assert stripped(tmp_path / "a") == stripped(tmp_path / "b")
    assert (tmp_path / "a/metrics.jsonl").read_bytes() != (tmp_path / "b/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("torn", ["", '{"round": 2, "acc"', '{"round": 2, "acc": 1.0}', "\x00\x00"])
def test_a_killed_and_resumed_run_equals_the_uninterrupted_one(tmp_path, torn):
    whole_run(tmp_path / "whole")
    first = RunFolder(tmp_path / "cut")
    first.open(RUN, FACTS)
    first.append(row(0))
    first.append(row(1))
    with open(tmp_path / "cut/metrics.jsonl", "a") as file:
        file.write(torn)
    second = RunFolder(tmp_path / "cut")
    second.open(RUN, FACTS)
    second.rewind(1)
    assert [r["round"] for r in second.rows()] == [0]
    for number in (1, 2, 3):
        second.append(row(number))
    second.finish()
    assert stripped(tmp_path / "cut") == stripped(tmp_path / "whole")


def test_opening_again_keeps_rows_and_the_time_spent(tmp_path):
    first = RunFolder(tmp_path, heartbeat_s=0)
    first.open(RUN, FACTS)
    first.append(row(0))
    (tmp_path / "record.json").write_text(
        (tmp_path / "record.json").read_text().replace('"seconds": 0', '"seconds": 50')
    )
    started = first.record()["timing"]["started"]
    second = RunFolder(tmp_path)
    second.open(RUN, FACTS)
    second.append(row(1))
    timing = second.record()["timing"]
    assert timing["started"] == started and timing["seconds"] >= 50
    assert [r["round"] for r in second.rows()] == [0, 1]


def test_resume_refuses_another_run_and_other_data(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open(RUN, FACTS)
    folder.open(RUN, {**FACTS, "partition_hash": "other"})
    folder.append(row(0))
    with pytest.raises(RunError, match="cannot resume, partition_hash was other and is now ab"):
        RunFolder(tmp_path).open(RUN, FACTS)
    other = Run.of(RunConfig(RUN.config.method, RUN.config.data, rounds=5))
    with pytest.raises(RunError, match=f"holds run {RUN.id}, not {other.id}"):
        RunFolder(tmp_path).open(other, FACTS)


@pytest.mark.parametrize("name", records.CHECKPOINTS)
def test_resume_refuses_other_data_when_there_is_a_checkpoint_but_no_row_yet(tmp_path, name):
    """With ``eval_every`` large, a run may be far on before its first row."""
    RunFolder(tmp_path).open(RUN, FACTS)
    (tmp_path / name).write_bytes(b"state of the method")
    with pytest.raises(RunError, match=r"cannot resume, data_sha256 was \{'f': 'cd'\} and is now \{\}; bring the old"):
        RunFolder(tmp_path).open(RUN, {**FACTS, "data_sha256": {}})
    RunFolder(tmp_path).open(RUN, FACTS)


@pytest.mark.parametrize(("every", "lost"), [(1, "0"), (2, "1")])
def test_a_run_without_its_rows_does_not_go_on(tmp_path, every, lost):
    """Its readings would be of the later rows only. Nothing is changed: the file may still be found."""
    run = Run.of(replace(RUN.config, eval_every=every))
    folder = RunFolder(tmp_path)
    folder.open(run, FACTS)
    for number in range(every - 1, 3, every):
        folder.append(row(number))
    folder.rewind(3)
    whole = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text("".join(whole.splitlines(keepends=True)[1:]))
    for _ in range(2):
        folder = RunFolder(tmp_path)
        folder.open(run, FACTS)
        with pytest.raises(RunError, match=f"was at round 3, but metrics.jsonl has no row of round {lost}; bring the"):
            folder.rewind(3)
    (tmp_path / "metrics.jsonl").write_text(whole)
    folder.rewind(3)
    assert (tmp_path / "metrics.jsonl").read_text() == whole
    folder.rewind(0)
    assert folder.rows() == []


def test_a_record_names_all_code_that_took_part(tmp_path, monkeypatch):
    def opened(version):
        monkeypatch.setattr(records, "code_version", lambda: version)
        folder = RunFolder(tmp_path, heartbeat_s=0)
        folder.open(RUN, FACTS)
        return folder

    first = opened("v1")
    assert first.record()["environment"]["code_versions"] == ["v1"]
    record = first.record()
    del record["environment"]["code_versions"]  # as older records
    (tmp_path / "record.json").write_text(json.dumps(record))
    for version in ("v2", "v3", "v2"):
        folder = opened(version)
    record = folder.record()
    assert record["code_version"] == "v2" and record["environment"]["code_versions"] == ["v1", "v2", "v3"]
    assert folder.origin == {"run_id": RUN.id, "partition_hash": "ab", "code_version": "v2"}
    folder.rewind(0)
    folder.append(row(0))
    assert folder.record()["environment"]["code_versions"] == ["v2"], "nothing of the others is left"


def test_the_checkpoints_are_those_that_a_run_resumes_from(tmp_path):
    path = tmp_path / CHECKPOINT
    assert (path.name, checkpoint.previous(path).name) == records.CHECKPOINTS


def test_equal_runs_have_equal_digests(tmp_path):
    """Wall-clock and hardware are not part of it; everything else is."""
    first, second = (whole_run(tmp_path / name).record() for name in ("a", "b"))
    assert first["schema_version"] == 2 and len(first["digest"]) == 64
    assert first["digest"] == second["digest"]
    rows = records.read_rows(tmp_path / "a")
    assert records.digest(first, rows) == first["digest"]
    assert records.digest({**first, "timing": {}, "environment": {}}, rows) == first["digest"]
    assert records.digest({**first, "seeds": {"run": 2}}, rows) != first["digest"]
    assert records.digest(first, rows[1:]) != first["digest"]


def test_a_record_of_an_older_version_stays_valid(tmp_path):
    """It has no digest; its readings still have to follow from its rows."""
    record = whole_run(tmp_path).record()
    del record["digest"], record["skipped"]
    record["schema_version"] = 1
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert read_record(tmp_path) == record and state(tmp_path) == "complete"
    record["best"]["acc"] = 60.1
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(
        RunError, match=r"record\.json has best\.acc = 60\.1, but the rows of metrics\.jsonl give 60\.0"
    ):
        read_record(tmp_path)
    assert state(tmp_path) == "damaged"


def test_all_committed_records_are_what_their_rows_say():
    every = sorted((ROOT / "results" / "runs").glob("*/record.json"))
    paths = [path for path in every if "-digits-" not in path.parent.name]  # those of quick runs are nobody's business
    assert len(paths) >= 16
    assert {state(path.parent) for path in paths} <= {"complete", "failed"}


def test_skipped_updates_are_counted_in_the_record(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open(RUN, FACTS)
    for number in range(4):
        folder.append(row(number, **({"skipped": number} if number else {})))
    assert folder.finish()["skipped"] == 3
    assert whole_run(tmp_path / "none").record()["skipped"] == 0


def test_a_folder_without_a_run_is_forgotten(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        assert not folder.opened
        folder.forget()
    assert not (tmp_path / "run").exists()
    begun = whole_run(tmp_path / "run")
    assert begun.opened
    begun.forget()
    assert state(tmp_path / "run") == "complete"


def test_rows_only_go_forward(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open(RUN, FACTS)
    folder.append(row(1))
    with pytest.raises(RunError, match="round 1 after 1; rewind before resuming"):
        folder.append(row(1))
    with pytest.raises(RunError, match="the last of 4 rounds has no row"):
        folder.finish()


@pytest.mark.parametrize("line", ['{"rou', "5", '{"acc": 1.0}'])
def test_a_damaged_line_in_the_middle_is_an_error(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": 0, "acc": 1.0}}\n{line}\n{{"round": 2}}\n')
    with pytest.raises(RunError, match="line 2 is damaged"):
        RunFolder(tmp_path).rows()


def test_numbers_that_are_not_finite_become_null(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open(RUN, FACTS)
    folder.append(row(0, auc=float("nan"), loss=float("inf")))
    assert folder.rows()[0]["auc"] is None and folder.rows()[0]["loss"] is None


def test_readings_take_each_metric_over_the_rows_that_have_it():
    rows = [
        {"round": 0, "acc": None, "visits": 5},
        {"round": 2, "acc": 20.0, "loss": 4.0},
        {"round": 4, "acc": 40.0, "auc": None},
    ]
    found = readings(rows, last_k=3)
    assert found["last_k_mean"] == {"rounds": 2, "acc": 30.0, "loss": 4.0, "auc": None}
    assert found["best"] == found["final"] == {"round": 4, "acc": 40.0, "auc": None}
    assert readings(rows[:1], 1)["best"] == {"round": 0, "acc": None}


def test_accuracies_by_class_are_a_metric_of_every_reading():
    """Entry by entry; a class that the test set lacks stays unknown."""
    rows = [{"round": n, "acc": acc, "acc_by_class": [acc, None, 2 * acc]} for n, acc in enumerate((10.0, 40.0, 20.0))]
    found = readings(rows, last_k=2)
    assert found["final"]["acc_by_class"] == [20.0, None, 40.0]
    assert found["best"]["acc_by_class"] == [40.0, None, 80.0]
    assert found["last_k_mean"]["acc_by_class"] == [30.0, None, 60.0]


def test_heartbeat_is_written_but_not_at_every_row(tmp_path):
    folder = RunFolder(tmp_path, heartbeat_s=3600)
    folder.open(RUN, FACTS)
    before = (tmp_path / "record.json").read_bytes()
    folder.append(row(0))
    assert (tmp_path / "record.json").read_bytes() == before
    time.sleep(0.005)
    folder.heartbeat_s = 0
    folder.beat(3)
    record = folder.record()
    assert record["rounds"]["done"] == 3 and record["status"] == "running"
    assert record["timing"]["updated"] > json.loads(before)["timing"]["updated"]


def test_the_heart_beats_during_a_long_round_while_the_lock_is_held(tmp_path):
    folder = RunFolder(tmp_path, heartbeat_s=0.01)
    with folder.lock():
        time.sleep(0.05)
        assert not (tmp_path / "record.json").exists()
        folder.open(RUN, FACTS)
        before = folder.record()["timing"]
        deadline = time.monotonic() + 20
        while folder.record()["timing"]["updated"] == before["updated"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert folder.record()["timing"]["updated"] > before["updated"]
        for number in range(4):
            folder.append(row(number))
        folder.finish()
    record = folder.record()
    time.sleep(0.05)
    assert folder.record() == record and record["status"] == "complete"


def test_a_failure_keeps_its_traceback(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open(RUN, FACTS)
    folder.append(row(0))
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        folder.fail(error)
    record = folder.record()
    assert record["status"] == "failed" and record["rounds"]["done"] == 1
    assert (record["bytes_up"], record["bytes_down"]) == (100, 200)
    assert "test_a_failure_keeps_its_traceback" in record["error"] and "by zero" in record["error"]
    whole = RunFolder(tmp_path)
    whole.open(RUN, FACTS)
    assert whole.record()["status"] == "running" and whole.record()["error"] is None


def test_a_failure_before_the_record_was_opened(tmp_path):
    RunFolder(tmp_path / "none").fail(ValueError("x"))
    assert not (tmp_path / "none").exists()
    RunFolder(tmp_path / "some").fail(ValueError("x"), RUN)
    assert read_record(tmp_path / "some")["status"] == "failed"


def test_validate_names_everything_that_is_wrong(tmp_path):
    good = whole_run(tmp_path).record()
    validate(good, "here")
    bad = {**good, "run_id": 5, "rounds": None, "final": None}
    del bad["config"]
    with pytest.raises(RunError, match="config is missing; run_id is int; rounds is NoneType; final is empty"):
        validate(bad, "here")
    with pytest.raises(RunError, match="status is 'done'"):
        validate({**good, "status": "done"}, "here")
    with pytest.raises(RunError, match="error is empty"):
        validate({**good, "status": "failed"}, "here")
    with pytest.raises(RunError, match="schema 9 is newer than 2; update fssl-bench"):
        validate({**good, "schema_version": 9}, "here")


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_an_unreadable_record(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(RunError, match=r"record\.json"):
        read_record(tmp_path)


HOLD = """
import pathlib, sys, time
from benchmark.runs.lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_keeps_others_out_and_survives_no_kill(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    assert locked(tmp_path) and holder(tmp_path)["pid"] == process.pid
    message = f"process {process.pid} on .* is working on this run"
    with pytest.raises(RunLocked, match=message), run_lock(tmp_path):
        pass
    process.kill()
    process.communicate()
    assert not locked(tmp_path) and holder(tmp_path)["pid"] == process.pid
    with RunFolder(tmp_path).lock():
        assert locked(tmp_path) and holder(tmp_path)["pid"] == os.getpid()
    assert not locked(tmp_path) and holder(tmp_path) == {}


def test_a_lock_that_its_last_holder_has_removed_is_none(tmp_path, monkeypatch):
    """Another process has made a new one since, and may hold it."""
    waiting, take = [], lock._try

    def late(handle, kind):
        taken = take(handle, kind)
        if not waiting:
            waiting.append(handle)
            (tmp_path / "run.lock").unlink()
        return taken

    monkeypatch.setattr(lock, "_try", late)
    with run_lock(tmp_path):
        assert locked(tmp_path) and holder(tmp_path)["pid"] == os.getpid()


def test_an_error_releases_the_lock_in_good_order(tmp_path):
    with pytest.raises(KeyboardInterrupt), run_lock(tmp_path):
        raise KeyboardInterrupt
    assert holder(tmp_path) == {}


def test_a_run_that_is_alive_on_another_machine_is_left_alone(tmp_path):
    """Locks may not reach from one machine to another; the record's heartbeat does, and the time of the lock."""
    folder = RunFolder(tmp_path)
    folder.open(RUN, FACTS)

    def held_elsewhere(since):
        (tmp_path / "run.lock").write_text(elsewhere)
        os.utime(tmp_path / "run.lock", (since, since))

    elsewhere = '{"pid": 4711, "host": "another-machine"}'
    held_elsewhere(0)
    with pytest.raises(RunLocked, match="process 4711 on another-machine is working on this run"), run_lock(tmp_path):
        pass
    assert (tmp_path / "run.lock").read_text() == elsewhere
    record = folder.record()
    past, future = ({**record["timing"], "updated": f"{year}-01-01T00:00:00.000+00:00"} for year in (2020, 2120))
    for changes in ({"timing": past}, {"timing": future}, {"timing": {}}):
        (tmp_path / "record.json").write_text(json.dumps({**record, **changes}))
        held_elsewhere(0)
        with run_lock(tmp_path):
            assert holder(tmp_path)["pid"] == os.getpid()
    folder.fail(ValueError("x"))
    held_elsewhere(0)
    with run_lock(tmp_path):
        assert holder(tmp_path)["pid"] == os.getpid()


@pytest.mark.parametrize("ago, alive", [(1, True), (600, False), (-1e6, False)])
def test_a_run_that_begins_on_another_machine_has_no_record_yet(tmp_path, ago, alive):
    (tmp_path / "run.lock").write_text('{"pid": 4711, "host": "another-machine"}')
    then = time.time() - ago
    os.utime(tmp_path / "run.lock", (then, then))
    assert state(tmp_path) == ("running" if alive else "missing")
    refused = pytest.raises(RunLocked, match="process 4711 on another-machine")
    with refused if alive else nullcontext(), run_lock(tmp_path):
        assert holder(tmp_path)["pid"] == os.getpid()


def test_state(tmp_path):
    assert state(tmp_path) == "missing"
    folder = RunFolder(tmp_path)
    with folder.lock():
        assert state(tmp_path) == "running"
        folder.open(RUN, FACTS)
        assert state(tmp_path) == "running"
    assert state(tmp_path) == "stale"
    (tmp_path / "run.lock").write_text('{"pid": 1, "host": "another-machine"}')
    assert state(tmp_path) == "running"
    record = json.loads((tmp_path / "record.json").read_text())
    record["timing"]["updated"] = "2020-01-01T00:00:00.000+00:00"
    (tmp_path / "record.json").write_text(json.dumps(record))
    os.utime(tmp_path / "run.lock", (0, 0))
    assert state(tmp_path) == "stale"
    folder.fail(ValueError("x"))
    assert state(tmp_path) == "failed"
    whole_run(tmp_path / "whole")
    assert state(tmp_path / "whole") == "complete"


@contextmanager
def flocked(folder, kind):
    """Someone else's lock: of a run (exclusive) or of one who only looks (shared)."""
    handle = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)


def test_those_who_only_look_do_not_see_each_other(tmp_path):
    with flocked(tmp_path, fcntl.LOCK_SH):
        assert not locked(tmp_path)
    with flocked(tmp_path, fcntl.LOCK_EX):
        assert locked(tmp_path)


def test_a_complete_record_is_complete_whoever_has_the_lock(tmp_path):
    whole_run(tmp_path)
    with flocked(tmp_path, fcntl.LOCK_EX):
        assert state(tmp_path) == "complete"


def test_a_run_that_ends_while_one_asks_is_not_stale(tmp_path, monkeypatch):
    run_ = RunFolder(tmp_path)
    run_.open(RUN, FACTS)
    run_.append(row(3))
    monkeypatch.setattr(records, "locked", lambda path: bool(run_.finish()) and False)
    assert state(tmp_path) == "complete"


def test_one_who_looks_does_not_keep_a_run_from_starting(tmp_path):
    looking = flocked(tmp_path, fcntl.LOCK_SH)
    looking.__enter__()
    timer = threading.Timer(0.05, looking.__exit__, (None, None, None))
    timer.start()
    with run_lock(tmp_path):
        assert locked(tmp_path)
    timer.join()


@pytest.fixture
def read_only(monkeypatch):
    """As on a read-only file system; permissions would not do, the tests may run as root."""
    real = os.open

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def opened(path, flags, *more, **kwargs):
        return refuse() if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else real(path, flags, *more, **kwargs)

    def set_up():
        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(records, "write_atomic", refuse)

    return set_up


def test_a_read_only_folder_can_be_looked_at(tmp_path, read_only):
    RunFolder(tmp_path).open(RUN, FACTS)
    (tmp_path / "run.lock").touch()
    with flocked(tmp_path, fcntl.LOCK_EX):
        read_only()
        assert state(tmp_path) == "running"
    assert state(tmp_path) == "stale" and holder(tmp_path) == {}
    with pytest.raises(RunError, match=r"a run cannot write there.*Read-only.*give another --results_dir"):
        run_lock(tmp_path).__enter__()


def test_a_lock_that_may_not_be_read_counts_as_free(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "run.lock").touch()
    monkeypatch.setattr(os, "open", denied)
    assert not locked(tmp_path)


def test_a_failure_that_cannot_be_recorded_is_no_further_error(tmp_path, read_only):
    known = RunFolder(tmp_path)
    known.open(RUN, FACTS)
    before = (tmp_path / "record.json").read_bytes()
    read_only()
    known.fail(ValueError("x"))
    RunFolder(tmp_path).fail(ValueError("x"), RUN)
    assert (tmp_path / "record.json").read_bytes() == before


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomic(tmp_path / "record.json", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "record.json", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("record.json", "old")]


def test_an_unlocked_folder(tmp_path):
    assert not locked(tmp_path / "nowhere") and holder(tmp_path / "nowhere") == {}


def test_records_do_not_tell_the_folders_of_the_machine(tmp_path):
    """Records are shared; where data and results lay is nobody's business."""
    runtime = Runtime(data_dir="/home/secret/data", results_dir="/home/secret/results", devices=1)
    folder = RunFolder(tmp_path)
    folder.open(RUN.replace(runtime=runtime), FACTS)
    text = "".join(file.read_text() for file in tmp_path.iterdir())
    assert '"devices": 1' in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (None, None),
        ("", None),
        ('{"round": 0', None),
        ('{"round": 0}\n', 0),
        ('{"round": 0}\n{"round": 1}\n{"round": 2', 1),
        ("damaged\n" * 20_000 + '{"round": 7}\n', 7),
        ('{"round": 7}\ndamaged\n', None),
        ("[]\n", None),
    ],
)
def test_the_last_row_alone(tmp_path, text, number):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    assert last_row(tmp_path) == (None if number is None else {"round": number})


def test_a_run_on_the_cpu_does_not_wake_the_gpu(monkeypatch):
    def waken(*_):
        raise AssertionError("asked a GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for name in ("get_device_name", "device_count"):
        monkeypatch.setattr(torch.cuda, name, waken)
    found = environment()
    assert (found["gpu"], found["gpus"], found["tf32"]) == (None, 0, False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = environment()
    assert (found["gpu"], found["gpus"]) == ("H200", 2)


def test_a_discarded_run_leaves_nothing(tmp_path):
    folder = whole_run(tmp_path / "run")
    (folder.path / "more").mkdir()
    (folder.path / "more" / "file").touch()
    folder.discard()
    assert state(folder.path) == "missing" and [file.name for file in folder.path.iterdir()] in ([], ["run.lock"])
    whole_run(folder.path)
    RunFolder(tmp_path / "never").discard()
    assert not (tmp_path / "never").exists()


def test_a_run_that_goes_on_is_not_discarded(tmp_path):
    folder = whole_run(tmp_path / "run")
    with run_lock(folder.path), pytest.raises(RunLocked):
        folder.discard()
    assert state(folder.path) == "complete"


def test_a_mean_has_the_same_bits_on_every_python() -> None:
    """Since 3.12 ``sum`` makes up for rounding: 1.0 here. A record would be damaged to whoever reads it there."""
    rows = [{"round": number, "acc": 0.1} for number in range(10)]
    assert readings(rows, 10)["last_k_mean"]["acc"] == 0.9999999999999999 / 10
