"""What runs cost, judged by others on the same machine."""

from dataclasses import replace

import pytest

from benchmark.config import Run, RunConfig, Runtime, identity, resolve
from benchmark.registry import ClassSpec
from benchmark.report.status import measured_here, parts, rounds_left, summary
from benchmark.runs.environment import machine
from benchmark.runs.folder import RunFolder
from run_folders import change

FACTS = {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": []}


def config(seed=1, rounds=4, clients=10, **method):
    made = RunConfig(
        ClassSpec("fedavg", method), ClassSpec("digits", {"num_clients": clients}), rounds=rounds, seed=seed
    )
    return resolve(made)


def planned(made):
    return Run.of(made, "1/A/low")


def measured(made, rounds, seconds):
    return {"config": identity(made), "rounds": {"done": rounds}, "timing": {"seconds": seconds}}


def test_only_runs_of_the_same_configuration_count():
    """Whatever their seeds and rounds; other options of the method may change everything."""
    same = measured(config(seed=2, rounds=8), 8, 16.0)
    others = [measured(config(lr=0.5), 1, 100.0), measured(config(clients=50), 1, 1000.0)]

    def per_round(made, *records):
        run = planned(made)
        (part,) = parts([run], {run.id: "missing"}, records)
        return part.per_round

    assert per_round(config(), same, same, *others) == per_round(config(), same, *others) == 2.0
    assert per_round(config(), *others) is None
    assert per_round(replace(config(), method=ClassSpec("methods.fixmatch.FixMatch")), same) is None


@pytest.mark.parametrize(("another", "count"), [({}, 1), ({"cpu": "another"}, 0), ({"gpu": "a GPU"}, 0)])
def test_only_records_of_this_machine_count(tmp_path, another, count):
    made = planned(replace(config(), runtime=Runtime(results_dir=str(tmp_path))))
    run = RunFolder(made.folder, heartbeat_s=0)
    run.open(made, FACTS)
    assert measured_here(tmp_path) == []
    run.append({"round": 0, "acc": 1.0})
    change(run.path, lambda record: record["environment"].update(machine() | another))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "record.json").write_text("{")
    assert [one["rounds"]["done"] for one in measured_here(tmp_path)] == [1] * count


def test_parts_are_runs_that_differ_in_their_seeds(tmp_path):
    first, second, other = (planned(one) for one in (config(seed=1), config(seed=2), config(lr=0.5)))
    states = {first.id: "complete", second.id: "missing", other.id: "missing"}
    found = parts([first, second, other], states, [measured(config(), 1, 900.0)])
    assert [(len(part.runs), part.left, part.seconds) for part in found] == [(2, 4, 3600.0), (1, 4, 0.0)]
    assert summary(found, jobs=4) == [
        "3 runs, 12 rounds; 8 rounds are left",
        "about 60 min, 60 min with 4 at once for 4 of them, as measured on this machine",
        "how long the other 4 take on this machine is unknown",
    ]
    assert "about 60 min, 60 min with 4 at once" in summary(found[:1], jobs=4)[1]  # one run is left of these two


def test_a_run_in_progress_has_its_remaining_rounds_left(tmp_path):
    made = planned(replace(config(rounds=10), runtime=Runtime(results_dir=str(tmp_path))))
    run = RunFolder(made.folder, heartbeat_s=0)
    run.open(made, FACTS)
    for number in range(3):
        run.append({"round": number, "acc": 1.0})
    assert rounds_left(made, "running") == 7
    assert rounds_left(made, "stale") == 10  # it has no checkpoint
    (run.path / "checkpoint.pt").write_bytes(b"")
    run.saved(2)
    assert rounds_left(made, "stale") == 8
