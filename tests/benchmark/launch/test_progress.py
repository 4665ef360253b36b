"""How fast a run goes, and what it would continue from."""

from dataclasses import replace

import pytest

from benchmark.config import Run, RunConfig, Runtime, resolve
from benchmark.launch.progress import Pace, continuation, rounds_done
from benchmark.registry import ClassSpec
from benchmark.runs.folder import RunFolder

FACTS = {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": []}


@pytest.fixture
def run(tmp_path):
    config = RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), rounds=100, eval_every=10)
    config = replace(resolve(config), runtime=Runtime(results_dir=str(tmp_path)))
    return Run.of(config, "1/A/low")


def test_pace_is_that_of_the_rounds_seen(run):
    pace = Pace(run, begun=0.0, said=0.0)
    assert pace.note(None, 5.0) == ""
    pace.see(1, 10.0)  # what came before it, and the first round, are no measure
    assert (pace.seconds_per_round(), pace.left(10.0)) == (None, None)
    pace.see(1, 11.0)
    pace.see(3, 14.0)
    assert pace.seconds_per_round() == 2.0
    assert pace.left(14.0) == 2.0 * 97 and pace.left(15.0) == 2.0 * 97 - 1
    assert pace.note(12.5, 14.0) == "acc 12.50, 2 s per round, 3 min left"


def test_a_run_that_continues_is_measured_from_where_it_continues(run):
    pace = Pace(run, begun=0.0, said=0.0)
    for done, now in ((50, 1.0), (40, 2.0), (41, 6.0)):  # ten rounds have to be done again
        pace.see(done, now)
    assert pace.seconds_per_round() == 4.0 and pace.done == 41


def test_rounds_between_evaluations_count(run):
    files = RunFolder(run.folder, heartbeat_s=0)
    assert rounds_done(run, None) is None
    files.open(run, FACTS)
    files.append({"round": 9, "acc": 10.0})
    files.beat(13)
    assert rounds_done(run, {"round": 9}) == 13


def test_what_the_same_command_does_with_an_interrupted_run(run):
    files = RunFolder(run.folder)
    name = run.folder.name
    assert continuation(run) == f"starts {name} from its first round: there is no checkpoint yet"
    files.open(run, FACTS)
    files.append({"round": 99, "acc": 10.0})
    assert "from its first round" in continuation(run)
    (files.path / "checkpoint.pt").write_bytes(b"")
    assert continuation(run) == f"continues {name} from its last checkpoint"  # of a version that did not note the round
    files.saved(60)
    assert continuation(run) == f"continues {name} from round 61 of 100, after its last checkpoint"
    files.finish()
    assert continuation(run) == f"finds {name} complete"
