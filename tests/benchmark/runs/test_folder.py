"""Run folders: what is on disk after every step, kills, resumes and failures."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.config import Run, Runtime
from benchmark.runs.code_identity import by_other_code, revision
from benchmark.runs.folder import CODE, RunFolder, discard
from benchmark.runs.lock import RunLocked, locked, run_lock
from benchmark.runs.records import read_record, read_rows, revisions
from benchmark.runs.states import CHECKPOINTS, state
from datamodules.common.errors import RunError
from run_folders import FACTS, RUN, change, row, stripped, whole_run


def opened(path, run=RUN):
    folder = RunFolder(path, heartbeat_s=0)
    folder.open(run, FACTS)
    return folder


@pytest.mark.parametrize("torn", ["", '{"round": 2, "acc"', '{"round": 2, "acc": 1.0}', "\x00\x00"])
def test_a_killed_and_resumed_run_equals_the_uninterrupted_one(tmp_path, torn):
    whole_run(tmp_path / "whole")
    first = opened(tmp_path / "cut")
    first.append(row(0))
    first.append(row(1))
    with open(tmp_path / "cut/metrics.jsonl", "a") as file:
        file.write(torn)
    second = opened(tmp_path / "cut")
    second.rewind(1)
    assert [r["round"] for r in read_rows(tmp_path / "cut")] == [0]
    for number in (1, 2, 3):
        second.append(row(number))
    second.finish()
    assert stripped(tmp_path / "cut") == stripped(tmp_path / "whole")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_resume_refuses_other_data_when_there_is_a_checkpoint_but_no_row_yet(tmp_path, name):
    """With ``eval_every`` large, a run may be far on before its first row. It does so however often one tries."""
    RunFolder(tmp_path).open(RUN, FACTS)
    (tmp_path / name).write_bytes(b"state of the method")
    for _ in range(2):
        folder = RunFolder(tmp_path)
        with pytest.raises(RunError, match=r"data_sha256 was \{'f': 'cd'\} and is now \{\}; restore") as refusal:
            folder.open(RUN, {**FACTS, "data_sha256": {}})
        folder.fail(refusal.value, RUN)
    RunFolder(tmp_path).open(RUN, FACTS)


@pytest.mark.parametrize(("every", "lost"), [(1, "0"), (2, "1")])
def test_a_run_without_its_rows_does_not_go_on(tmp_path, every, lost):
    """Its readings would be of the later rows only. Nothing is changed: the file may still be found."""
    run = Run.of(replace(RUN.config, eval_every=every))
    folder = opened(tmp_path, run)
    for number in range(every - 1, 3, every):
        folder.append(row(number))
    folder.rewind(3)
    whole = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text("".join(whole.splitlines(keepends=True)[1:]))
    for _ in range(2):
        folder = opened(tmp_path, run)
        with pytest.raises(RunError, match=rf"round 3, .*metrics\.jsonl .*round {lost}; restore"):
            folder.rewind(3)
    (tmp_path / "metrics.jsonl").write_text(whole)
    folder.rewind(3)
    assert (tmp_path / "metrics.jsonl").read_text() == whole
    folder.rewind(0)
    assert read_rows(tmp_path) == []


def test_a_record_names_all_code_that_took_part(tmp_path):
    """A run that goes on with other code is by other code than either, in part, until no row of that is left."""

    def older(record):  # its code was another; such records did not have the list
        record["code_version"] = "v1"
        del record["environment"]["code_versions"]
        record["environment"]["revisions"] = ["method 0, framework 1"]

    def code():
        recorded = read_record(tmp_path)
        return recorded["environment"]["code_versions"], revisions(recorded), by_other_code(RUN, recorded)

    now, ours = CODE, revision(RUN)
    opened(tmp_path).append(row(0))
    assert code() == ([now], [ours], False)
    change(tmp_path, older)
    for _ in range(2):
        folder = opened(tmp_path)
    assert code() == (["v1", now], ["method 0, framework 1", ours], True)
    folder.rewind(0)
    folder.append(row(0))
    assert code() == ([now], [ours], False)


def test_rows_that_change_while_a_run_goes_on_are_not_sealed(tmp_path):
    folder = opened(tmp_path)
    for number in range(4):
        folder.append(row(number))
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text().replace('"acc": 60.0', '"acc": 99.0'))
    with pytest.raises(RunError, match=r"metrics\.jsonl: the rows are not those that the run wrote; restore the"):
        folder.finish()
    assert state(tmp_path) == "stale"


def test_the_uncommitted_changes_are_kept_beside_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmark.runs.folder.CHANGES", {"uncommitted-1.patch": "a patch\n"})
    folder = opened(tmp_path)
    assert [file.read_text() for file in tmp_path.glob("uncommitted-*.patch")] == ["a patch\n"]
    monkeypatch.setattr("benchmark.runs.folder.CHANGES", {})
    folder.rewind(0)
    assert not [*tmp_path.glob("uncommitted-*.patch")], "all rounds are by clean code"


def test_code_that_is_committed_or_edited_while_a_command_goes_on_is_not_that_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmark.runs.code_identity._git", lambda *command: "another")
    opened(tmp_path)
    assert read_record(tmp_path)["code_version"] == CODE != "another-dirty"


def test_a_run_that_has_not_begun_leaves_no_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        assert locked(folder.path)
    assert not folder.path.exists()
    with folder.lock():
        folder.open(RUN, FACTS)
    assert state(folder.path) == "stale"


def test_the_record_is_not_written_at_every_row(tmp_path):
    folder = RunFolder(tmp_path, heartbeat_s=3600)
    folder.open(RUN, FACTS)
    before = (tmp_path / "record.json").read_bytes()
    folder.append(row(0))
    assert (tmp_path / "record.json").read_bytes() == before
    folder.heartbeat_s = 0
    folder.beat(3)
    record = read_record(tmp_path)
    assert record["rounds"]["done"] == 3 and record["status"] == "running"


def test_a_failure_keeps_its_traceback_without_local_folders(tmp_path):
    folder = opened(tmp_path)
    folder.append(row(0))
    with pytest.raises(ZeroDivisionError) as error:
        raise ZeroDivisionError("by zero \udcff")  # as in the name of a file that is no UTF-8
    folder.fail(error.value, RUN)
    record = read_record(tmp_path)
    assert record["status"] == "failed" and record["rounds"]["done"] == 1
    assert "test_a_failure_keeps_its_traceback" in record["error"] and "by zero" in record["error"]
    assert '  File "runs/test_folder.py", line' in record["error"]
    opened(tmp_path)
    assert read_record(tmp_path)["status"] == "running" and read_record(tmp_path)["error"] is None


def test_a_failure_that_another_process_records_keeps_what_is_known(tmp_path):
    """Facts that nobody has to know, too (tuning reads the number of test images of a failed run), and what it ran on,
    such as its number of threads, which a run that goes on has to have again.
    """
    known = {**FACTS, "test_images": 30, "class_counts": ["1 2"]}
    RunFolder(tmp_path).open(RUN.replace(runtime=Runtime(threads=3)), known)
    before = read_record(tmp_path)["environment"]
    assert before["threads"] == 3
    RunFolder(tmp_path).fail(ValueError("x"), RUN)
    record = read_record(tmp_path)
    assert record["status"] == "failed" and "ValueError: x" in record["error"]
    assert {name: record[name] for name in known} == known and record["environment"] == before


def test_an_error_after_the_end_leaves_the_record_complete(tmp_path):
    """As where one of several processes is killed while it ends."""
    folder = whole_run(tmp_path)
    before = read_record(tmp_path)
    folder.fail(ValueError("a process has ended"), RUN)
    assert read_record(tmp_path) == before


def test_a_failure_that_cannot_be_recorded_is_no_further_error(tmp_path, read_only):
    known = opened(tmp_path)
    before = (tmp_path / "record.json").read_bytes()
    read_only()
    known.fail(ValueError("x"), RUN)
    RunFolder(tmp_path).fail(ValueError("x"), RUN)
    assert (tmp_path / "record.json").read_bytes() == before


def test_records_do_not_tell_the_folders_of_the_machine(tmp_path):
    """Records are shared; where data and results lay is nobody's business."""
    runtime = Runtime(data_dir="/home/secret/data", results_dir="/home/secret/results", devices=1)
    opened(tmp_path, RUN.replace(runtime=runtime))
    text = "".join((tmp_path / name).read_text() for name in ("record.json", "config.yaml"))
    assert '"devices": 1' in text
    assert "secret" not in text


def test_a_discarded_run_leaves_nothing(tmp_path):
    folder = whole_run(tmp_path / "run")
    (folder.path / "more").mkdir()
    (folder.path / "more" / "file").touch()
    discard([folder.path, tmp_path / "never"])
    assert state(folder.path) == "missing" and [file.name for file in folder.path.iterdir()] in ([], ["run.lock"])
    whole_run(folder.path)
    assert not (tmp_path / "never").exists()


def test_a_run_that_goes_on_is_not_discarded(tmp_path):
    """Nor are the others that were to go with it."""
    paths = [whole_run(tmp_path / name).path for name in ("first", "busy", "last")]
    with run_lock(paths[1]), pytest.raises(RunLocked, match="busy"):
        discard(paths)
    assert [state(path) for path in paths] == ["complete"] * 3


@pytest.mark.parametrize("deleted", range(1, 5))
def test_a_run_that_was_discarded_in_part_starts_over(tmp_path, monkeypatch, deleted):
    """It does not continue from what is left, and is not taken for complete or damaged."""
    path = whole_run(tmp_path).path
    for name in CHECKPOINTS:
        (path / name).touch()
    left, delete = [None] * deleted, Path.unlink

    def until(file, *given, **options):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        delete(file, *given, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", until)
        discard([path])
    checkpoints = any((path / name).exists() for name in CHECKPOINTS)
    assert state(path) == ("complete" if deleted < 3 else "missing") and checkpoints == (deleted < 2)
