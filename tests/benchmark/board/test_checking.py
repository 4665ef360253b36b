"""``records --check``: runs that follow the rules pass, each planted fault is told, and no stranger's code starts."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmark.cli import main
from benchmark.suites.suite import load
from datamodules.common.errors import DataError
from datamodules.common.yaml import dump_yaml, read_yaml
from methods.fedavg import FedAvg
from run_folders import change
from toy_suite import BOARD

RUN = ["--wandb", "off", "--accelerator", "cpu", "--jobs", "1", "--paper", "board.yaml"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where ``place`` keeps what it has made."""
    return tmp_path_factory.mktemp("checked") / "board"


@pytest.fixture
def place(kept, tmp_path, monkeypatch):
    """A tuned board of one row and its three runs, to spoil, in the working folder; made once and copied."""
    copy = tmp_path / "copy"
    if kept.exists():
        shutil.copytree(kept, copy)
        monkeypatch.chdir(copy)
        return copy
    copy.mkdir()
    monkeypatch.chdir(copy)
    monkeypatch.setattr("benchmark.runs.folder.CODE", "abc123")
    monkeypatch.setattr("benchmark.runs.folder.CHANGES", {})
    Path("board.yaml").write_text(BOARD)
    assert main(["tune", *RUN]) == main(["table", *RUN]) == 0
    shutil.copytree(copy, kept)
    return copy


def run_of(seed):
    (path,) = [
        path
        for path in Path("results/runs").iterdir()
        if json.loads((path / "record.json").read_text())["config"]["seed"] == seed
    ]
    return path


def check(capsys, *more):
    code = main(["records", "--check", "results/runs", "--papers", "board.yaml", *more])
    return code, capsys.readouterr().out


def test_runs_that_follow_the_rules(place, capsys):
    code, told = check(capsys)
    assert code == 0
    assert "board quick one/A/low: 3 of 3 seeds, code abc123\n" in told and "3 runs, 0 problems" in told


def another_choice():
    path = load("board.yaml").tuned.path("quick")
    path.write_text(path.read_text().replace("seeds:\n  - 1000", "seeds:\n  - 1001"))
    assert read_yaml(path)["one/A/low"]["seeds"] == [1001]


def too_many_trials():
    tuned = load("board.yaml").tuned
    (entry,) = tuned.own("quick").values()
    more = {f"another {number}": {"accuracy": 0.0} for number in range(20)}
    tuned.add("quick", {"one/A/low": entry | {"trials": entry["trials"] | more}})


def trials_of_changed_code():
    tuned = load("board.yaml").tuned
    entry = tuned.own("quick")["one/A/low"]
    next(iter(entry["trials"].values()))["code"] = ["abc123-dirty"]
    tuned.add("quick", {"one/A/low": entry})


def another_data_set():
    Path("data").mkdir()
    Path("data/few_digits.FewDigits.npz").write_bytes(b"not what the run has read")
    change(run_of(1), lambda record: record["data_sha256"].update({"few_digits.FewDigits.npz": "0" * 64}))


def another_configuration(**values):
    path = run_of(2)
    change(path, lambda record: (record["config"].update(values), record.update(run_id="0" * 10)))
    (path / "config.yaml").write_text(dump_yaml(json.loads((path / "record.json").read_text())["config"]))


FAULTS = {
    "a file is missing": ("config.yaml", lambda: (run_of(1) / "config.yaml").unlink()),
    "another configuration": (
        "config.yaml differs",
        lambda: (run_of(1) / "config.yaml").write_text(
            (run_of(1) / "config.yaml").read_text().replace("rounds:", "seeds:")
        ),
    ),
    "another revision": (
        "another revision than method 1, framework 1",
        lambda: change(run_of(1), lambda r: r["environment"].update(revisions=["method 7, framework 1"])),
    ),
    "no record": ("record.json", lambda: (run_of(1) / "record.json").unlink()),
    "rows were changed": ("metrics.jsonl", lambda: (run_of(1) / "metrics.jsonl").write_text("{}\n")),
    "it is not over": ("it is running", lambda: change(run_of(1), lambda r: r.update(status="running"))),
    "local changes": (
        "abc123-dirty",
        lambda: change(run_of(1), lambda r: r["environment"].update(code_versions=["abc123", "abc123-dirty"])),
    ),
    "local changes, told once": (
        "abc123-dirty",
        lambda: change(run_of(1), lambda r: r.update(code_version="abc123-dirty")),
    ),
    "trials with local changes": ("trials of abc123-dirty", trials_of_changed_code),
    "a missing seed": ("2 of 3 seeds", lambda: shutil.rmtree(run_of(1))),
    "another network": (
        "model: recorded with mlp",
        lambda: another_configuration(model="mlp"),
    ),
    "another seed": (
        "seed: recorded with 25",
        lambda: another_configuration(seed=25),
    ),
    "another scale": ("at scale paper", lambda: change(run_of(2), lambda r: r.update(scale="paper"))),
    "another partition": ("partition", lambda: change(run_of(0), lambda r: r.update(partition_hash="f" * 64))),
    "other data": ("its few_digits.FewDigits.npz differs", another_data_set),
    "another folder": ("should be named", lambda: run_of(0).rename("results/runs/mine")),
    "another choice": ("seeds is [1001]", another_choice),
    "too many trials": ("configurations were tried", too_many_trials),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(place, capsys, fault):
    word, plant = FAULTS[fault]
    plant()
    code, told = check(capsys)
    assert code == 1 and word in told
    of_its_row = "2 of 3 seeds" not in told
    assert ("1 problems" if of_its_row or fault == "a missing seed" else "2 problems") in told


def test_all_faults_are_told_at_once(place, capsys):
    for fault in ("rows were changed", "another network", "another partition"):
        FAULTS[fault][1]()
    code, told = check(capsys)
    assert code == 1 and "4 problems" in told and "1 of 3 seeds" in told


def test_nothing_that_only_a_record_names_is_imported(place, capsys, monkeypatch):
    """Though it could be, and though its run is otherwise the board's."""
    monkeypatch.syspath_prepend(str(place))
    Path("strange.py").write_text("raise SystemExit('imported')\n")
    for seed in range(3):
        change(run_of(seed), lambda r: r["config"]["method"].update(class_path="strange.Mine"))
    code, told = check(capsys)
    assert code == 1 and "strange.Mine" in told and "--papers" in told
    assert main(["verify", str(run_of(0)), str(run_of(1))]) == 1
    assert "strange" not in sys.modules


def test_labels_that_a_method_sees_are_told_though_its_class_does_not_say_so(place, capsys, monkeypatch):
    monkeypatch.setattr(FedAvg, "uses_oracle", property(lambda self: True))
    code, told = check(capsys)
    assert code == 1 and "uses_oracle" in told and "3 runs, 1 problems" in told


def test_a_row_at_its_papers_rates_needs_no_trial(place, capsys):
    """Nor does a run that also belongs to a row of another suite which nobody has tuned."""
    more = "  beside: {title: Beside, untuned: one}\nscales:"
    Path("board.yaml").write_text(BOARD.replace("scales:", more))
    load("board.yaml").tuned.path("quick").unlink()
    assert check(capsys)[0] == 0
    Path("board.yaml").write_text(BOARD)
    code, told = check(capsys)
    assert code == 1 and "no trial" in told


def test_a_row_that_was_not_tuned_is_told_where_others_were(place, capsys):
    """Though its runs are also those of the row at its paper's rates."""
    more = "  beside: {title: Beside, untuned: one}\nscales:"
    another = BOARD.replace("scales:", more).replace("labels: {", "labels: {mid: {method: fedavg, method.lr: 0.05}, ")
    Path("board.yaml").write_text(another.replace("rows: [", "rows: [{method: mid}, "))
    tuned = load("board.yaml").tuned
    entries = tuned.own("quick")
    mid = {"one/A/mid": entries["one/A/low"] | {"options": {"method.lr": 0.3}}}
    tuned.path("quick").unlink()
    tuned.add("quick", mid)
    code, told = check(capsys)
    assert code == 1 and "one/A/low: no trial" in told
    Path("own.yaml").write_text("extends: board.yaml\npaper: own\ntables: {beside: null}\n")
    tuned.add("quick", entries)
    load("own.yaml").tuned.add("quick", mid)  # a choice of rates that leaves the row out
    assert main(["records", "--check", "results/runs", "--papers", "board.yaml,own.yaml"]) == 0


def test_a_choice_of_the_extended_board_needs_no_trial_of_its_own(place, capsys):
    Path("more.yaml").write_text("extends: board.yaml\npaper: more\ntables: {one: {title: One more}}\n")
    assert main(["records", "--check", "results/runs", "--papers", "more.yaml"]) == 0, capsys.readouterr().out


def test_data_that_are_not_here(place, capsys, monkeypatch):
    """A partition that cannot be drawn is not taken for right."""

    def missing(self):
        raise DataError("there is no file")

    monkeypatch.setattr("few_digits.FewDigits.read", missing)
    code, told = check(capsys)
    assert code == 1 and "cannot be made here: there is no file" in told


def test_no_run(place, capsys):
    assert main(["records", "--check", "tuned", "--papers", "board.yaml"]) == 2
    assert "no run" in capsys.readouterr().err
    assert main(["records"]) == 2
