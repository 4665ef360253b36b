"""The journal of tuning: what outlives a kill, other processes and `--overwrite`, and stays counted."""

import threading
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from benchmark import tuning
from benchmark.runs import folder
from benchmark.runs.lock import run_lock
from benchmark.runs.states import state
from benchmark.tuning import trials, tune
from datamodules.common.errors import ConfigError, RunError
from run_folders import change, completed
from tuned_suites import made_up, toy, with_tuning


def tuned_row(tmp_path, runtime, monkeypatch):
    """A tuned row with its suite, its journal, and the study that Optuna's own tools would open."""
    suite = toy(tmp_path)
    row, journal = suite.rows[0], tuning.journal_of(suite, "quick", Path(runtime.results_dir))
    made_up(monkeypatch, lambda run: 50.0)
    tune(suite, "quick", [row], runtime, jobs=1)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
    return suite, row, journal, optuna.load_study(study_name=row.full_name, storage=storage)


def test_a_journal_outlives_a_kill(tmp_path, runtime, monkeypatch):
    """A torn last line is left out. The lock is a link to the journal, by which Optuna sees that its owner is dead: it
    needs the whole path, also where that of the results is relative.
    """
    monkeypatch.chdir(tmp_path)
    runtime, suite, opened = replace(runtime, results_dir="results"), toy(tmp_path), []

    def spied(path):
        opened.append(Path(path))
        return JournalFileBackend(path)

    monkeypatch.setattr(tuning, "JournalFileBackend", spied)
    made_up(monkeypatch, lambda run: 50.0)
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)
    journal = Path("results/tuning/toy-quick.journal")
    assert opened == [journal.absolute()]
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    for _ in range(2):
        assert tune(suite, "quick", suite.rows, runtime, jobs=1).items() >= made.items()


def test_a_line_that_another_process_is_writing_is_no_torn_one(tmp_path, runtime, monkeypatch):
    suite = toy(tmp_path)
    ran = made_up(monkeypatch, lambda run: 50.0)
    made = tune(suite, "quick", suite.rows[:1], runtime, jobs=1)
    journal = tuning.journal_of(suite, "quick", Path(runtime.results_dir))
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    writing = JournalFileSymlinkLock(str(journal))
    writing.acquire()

    def finish():
        with journal.open("ab") as file:
            file.write(whole[-20:])
        writing.release()

    timer = threading.Timer(0.3, finish)
    timer.start()
    assert tune(suite, "quick", suite.rows[:1], runtime, jobs=1) == made and len(ran) == 3
    timer.join()
    assert journal.read_bytes().startswith(whole)


@pytest.mark.parametrize("lines", ['{"op_co\n{"op_code": 0}\n', '{"op_code": 0}\n', "[]\n", '{"op_code": 99}\n'])
def test_a_damaged_journal_is_named(tmp_path, runtime, lines):
    suite = toy(tmp_path)
    journal = Path(runtime.results_dir) / "tuning" / "toy-quick.journal"
    journal.parent.mkdir(parents=True)
    journal.write_text(lines)
    with pytest.raises(RunError, match=r"toy-quick\.journal: the journal is damaged .*; delete it"):
        tune(suite, "quick", suite.rows[:1], runtime, jobs=1)


def test_a_trial_that_fails_by_accident_says_nothing_of_its_rate(tmp_path, runtime, monkeypatch):
    """It is run again by the next call, and until then nothing is chosen for its row."""
    suite = toy(tmp_path)
    plain, _ = suite.rows
    with monkeypatch.context() as patch:
        made_up(patch, lambda run: None)
        with pytest.raises(RunError, match=r"no score of tune 1/Digits/plain x 0.001 .*, tune .* x 2 .*: nothing is"):
            tune(suite, "quick", [plain], runtime, jobs=1)
    assert yaml.safe_load(suite.tuned.path("quick").read_text()) == {}
    assert list(tune(suite, "quick", [plain], runtime, jobs=1)) == [plain.full_name]


def test_a_trial_that_another_process_runs_is_waited_for(tmp_path, runtime, monkeypatch):
    suite = toy(tmp_path)
    made_up(monkeypatch, lambda run: None if state(run.folder) == "running" else 50.0)
    busy, *_ = trials(suite, "quick", suite.rows[:1], runtime)
    told = r"x 0\.001 \([^ ]+: running\): nothing is chosen .*, wait for what others run"
    with run_lock(busy.runs[0].folder), pytest.raises(RunError, match=told):
        tune(suite, "quick", suite.rows[:1], runtime, jobs=1)


def test_a_trial_that_went_on_with_edited_code_has_no_score(tmp_path, runtime, monkeypatch):
    """Only what today's code has made from beginning to end tells a rate."""
    suite = toy(tmp_path)
    plain, _ = suite.rows

    def continued(run):
        path = completed(run, 50.0, test_images=100)
        change(path, lambda record: record["environment"]["method_sources"].insert(0, "0" * 12))
        return path

    monkeypatch.setattr("benchmark.run.fit", continued)
    with pytest.raises(RunError, match="no score of"):
        tune(suite, "quick", [plain], runtime, jobs=1)
    with pytest.raises(ConfigError, match="made by other code"):
        tune(suite, "quick", [plain], runtime, jobs=1)


def test_overwrite_runs_the_trials_of_a_row_again(tmp_path, runtime, monkeypatch):
    """Of this row alone; the journal keeps counting what was tried before."""
    suite = toy(tmp_path)
    plain, teacher = suite.rows
    accuracy = {plain.full_name: 20.0}
    ran = made_up(
        monkeypatch, lambda run: accuracy.get(next(r.full_name for r in suite.rows if r.name in run.cells[0]), 30.0)
    )
    tune(suite, "quick", suite.rows, runtime, jobs=1)
    first, _ = len(ran), ran.clear()
    accuracy[plain.full_name] = 40.0
    folder.discard(tuning.left(suite, "quick", [plain], runtime))
    tuning.forget(suite, "quick", [plain], runtime)
    made = tune(suite, "quick", suite.rows, runtime, jobs=1)
    assert len(ran) == 3 and first == 6
    assert {one["held_out_accuracy"] for one in made[plain.full_name]["tried"]} == {40.0}
    assert {one["held_out_accuracy"] for one in made[teacher.full_name]["tried"]} == {30.0}


def test_trials_that_somebody_else_has_added_count_as_tried_and_say_nothing(tmp_path, runtime, monkeypatch):
    """Optuna's own tools can add some."""
    suite, row, journal, study = tuned_row(tmp_path, runtime, monkeypatch)
    made = tune(suite, "quick", [row], runtime, jobs=1)
    study.add_trial(optuna.trial.create_trial(value=99.0))
    assert tune(suite, "quick", [row], runtime, jobs=1) == made
    assert tuning.retraced(suite, "quick", row, journal) == (made[row.full_name], [], 4)
    assert len(tuning.left(suite, "quick", [row], runtime)) == 6


def test_a_score_of_other_code_does_not_replace_that_of_todays(tmp_path, runtime, monkeypatch):
    """Although it was added later."""
    suite, row, journal, study = tuned_row(tmp_path, runtime, monkeypatch)
    made = tune(suite, "quick", [row], runtime, jobs=1)
    (run,) = trials(suite, "quick", [row], runtime)[0].runs
    other = {"run_id": run.id, "images": 100, "method_sources": ["0" * 12]}
    study.add_trial(optuna.trial.create_trial(value=99.0, user_attrs=other))
    assert tune(suite, "quick", [row], runtime, jobs=1) == made
    assert tuning.retraced(suite, "quick", row, journal) == (made[row.full_name], [], 3)


def test_what_was_tried_stays_counted(tmp_path, runtime, monkeypatch):
    suite, narrow = with_tuning(tmp_path, factors=[1, 2, 4]), with_tuning(tmp_path, factors=[1, 2])
    made_up(monkeypatch, lambda run: 50.0)
    row = suite.rows[0]
    tune(suite, "quick", [row], runtime, jobs=1)
    folder.discard(tuning.left(suite, "quick", [row], runtime))
    tuning.forget(suite, "quick", [row], runtime)
    journal, own = tuning.journal_of(narrow, "quick", Path(runtime.results_dir)), narrow.rows[0]
    made, missing, tried = tuning.retraced(narrow, "quick", own, journal)
    assert made is None and len(missing) == 2 and tried == 3
    tune(narrow, "quick", [own], runtime, jobs=1)
    _, missing, tried = tuning.retraced(narrow, "quick", own, journal)
    assert not missing and tried == 3
