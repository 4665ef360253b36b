"""What ``status`` says about the runs of a plan: the accuracy that tables report, and what is left and costs."""

from dataclasses import replace

import pytest

from benchmark.config import Run, RunConfig, Runtime, identity
from benchmark.registry import ClassSpec
from benchmark.report.status import measured_here, parts, rounds_left, show, summary
from benchmark.runs.environment import cores, cpu_model
from benchmark.runs.folder import RunFolder
from benchmark.suites.plan import Plan
from run_folders import FACTS, change, completed

ACCURACY = (10.0, 60.0, 50.0, 30.0)


def planned(results="results", clients=10, method="fedavg", lr=0.1, **changes):
    """A run of four rounds."""
    parts = ClassSpec(method, {"lr": lr}), ClassSpec("digits", {"num_clients": clients})
    given = {"rounds": 4, "seed": 1, "last_k": 2, "runtime": Runtime(results_dir=str(results))}
    return Run.of(RunConfig(*parts, **{**given, **changes}), "4/A/low")


def begun(run, rounds):
    """The folder of a run that has ended so many rounds."""
    folder = RunFolder(run.folder, heartbeat_s=0)
    folder.open(run, FACTS)
    for number in range(rounds):
        folder.append({"round": number, "acc": ACCURACY[number]})
    return folder


def plan_of(runs):
    """Every name of a row that runs stand in."""
    names = dict.fromkeys(cell for run in runs for cell in run.cells)
    of_row = {name: {number: run.id for number, run in enumerate(runs) if name in run.cells} for name in names}
    return Plan("quick", {run.id: run for run in runs}, of_row, (1,))


@pytest.fixture
def said(capsys):
    def said(*runs, every_run=True):
        show(plan_of(runs), every_run)
        return capsys.readouterr().out.splitlines()

    return said


def test_a_row_has_one_line_and_runs_that_have_begun_one_more_each(tmp_path, said):
    """The accuracy is the mean of the complete ones."""
    seeds = [planned(tmp_path, seed=seed) for seed in (1, 2, 3, 4)]
    elsewhere = replace(planned(tmp_path, clients=5), cells=("5/A/low",))
    begun(seeds[1], 2)
    for run in (seeds[0], seeds[2], elsewhere):
        completed(run, *ACCURACY)
    head, *lines = said(*seeds, elsewhere, every_run=False)
    assert head.split() == ["row", "seeds", "acc", "(best)"]
    assert [line.split() for line in lines[:2]] == [
        ["4/A/low", "2", "complete,", "1", "stale,", "1", "missing", "60.00"],
        ["5/A/low", "1", "complete", "60.00"],
    ]
    assert lines[2].split()[:3] == ["state", "run", "seed"]
    assert lines[3].split()[:5] == ["stale", seeds[1].folder.name, "2", "2/4", "60.00"]
    assert lines[4:6] == ["3 complete, 1 stale, 1 missing", "5 runs, 20 rounds; 8 rounds are left"]


def test_the_accuracy_is_the_reading_that_tables_report_and_is_named(tmp_path, said):
    """Of the rounds so far; the averaged model has one at the end only."""
    one = planned(tmp_path, report="last_k_mean")
    completed(one, *ACCURACY)
    head, line, counts, totals = said(one)
    assert "acc (last_k_mean)" in head and line.split()[:5] == ["complete", one.folder.name, "1", "4/4", "40.00"]
    assert (counts, totals) == ("1 complete", "1 run, 4 rounds; 0 rounds are left")
    one, half = (planned(tmp_path, report="averaged", seed=seed, average_last=2) for seed in (1, 2))
    completed(one, *ACCURACY, averaged={"rounds": 2, "acc": 71.0})
    begun(half, 3)
    _, first, second, *_ = said(one, half)
    assert first.split()[3:5] == ["4/4", "71.00"] and second.split()[3:5] == ["3/4", "4/A/low"]


def test_a_damaged_run_does_not_hide_the_others(tmp_path, said):
    one, damaged = planned(tmp_path), planned(tmp_path, seed=2)
    for run in (one, damaged):
        completed(run, *ACCURACY)
    (damaged.folder / "metrics.jsonl").write_text('{"rou\n' * 3)
    lines = said(damaged, one)
    assert lines[1].split()[3] == "?/4" and "60.00" in lines[2]
    assert "metrics.jsonl: line 1" in " ".join(lines)


def test_a_plan_without_runs_says_so(said):
    for every_run in (False, True):
        assert said(every_run=every_run) == ["nothing is run at scale quick: every row is left out"]


def measured(run, rounds, seconds):
    return {"config": identity(run.config), "rounds": {"done": rounds}, "timing": {"seconds": seconds}}


OTHERS = [{"lr": 0.5}, {"method": "fixmatch"}, {"model_args": {"head_dropout": 0.5}}, {"roster": {"participants": 2}}]


@pytest.mark.parametrize("other", OTHERS)
def test_only_runs_of_the_same_configuration_count(other):
    """Whatever their seeds and rounds; other options may change everything."""
    same, another = measured(planned(seed=2, rounds=8), 8, 16.0), measured(planned(**other), 1, 1000.0)
    run = planned()
    assert [part.per_round for part in parts([run], {run.id: "missing"}, [same, another])] == [2.0]
    run = planned(**other)
    assert [part.per_round for part in parts([run], {run.id: "missing"}, [same])] == [None]


@pytest.mark.parametrize(("another", "count"), [({}, 1), ({"gpu": "a GPU"}, 0)])
def test_only_records_of_this_machine_count(tmp_path, another, count):
    folder = begun(planned(tmp_path), 0)
    runtime = Runtime(results_dir=str(tmp_path), accelerator="cpu")
    assert measured_here(runtime) == []
    folder.append({"round": 0, "acc": 1.0})
    machine = {"cpu": cpu_model(), "cores": cores(), "gpu": None} | another
    change(folder.path, lambda record: record["environment"].update(machine))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "record.json").write_text("{")
    assert [one["rounds"]["done"] for one in measured_here(runtime)] == [1] * count


def test_parts_are_runs_that_differ_in_their_seeds():
    first, second, other = planned(), planned(seed=2), planned(lr=0.5)
    states = {first.id: "complete", second.id: "missing", other.id: "missing"}
    found = parts([first, second, other], states, [measured(first, 1, 900.0)])
    assert [(len(part.runs), part.left, part.seconds) for part in found] == [(2, 4, 3600.0), (1, 4, 0.0)]
    assert summary(found, jobs=4) == [
        "3 runs, 12 rounds; 8 rounds are left",
        "about 60 min, 60 min with 4 at once for 4 of them, as measured on this machine",
        "how long the other 4 take on this machine is unknown",
    ]
    assert "about 60 min, 60 min with 4 at once" in summary(found[:1], jobs=4)[1]  # one run is left of these two


def test_a_run_in_progress_has_its_remaining_rounds_left(tmp_path):
    run = planned(tmp_path, rounds=10)
    folder = begun(run, 3)
    assert rounds_left(run, "running") == 7
    assert rounds_left(run, "stale") == 10  # it has no checkpoint
    (folder.path / "checkpoint.pt").write_bytes(b"")
    folder.saved(2)
    assert rounds_left(run, "stale") == 8
