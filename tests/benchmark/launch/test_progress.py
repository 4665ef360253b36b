"""How fast a run goes, and what it would continue from."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmark.config import Run, RunConfig, Runtime, resolve
from benchmark.launch.progress import Display, continuation, rounds_done
from benchmark.registry import ClassSpec
from benchmark.runs.folder import RunFolder

FACTS = {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": []}


@pytest.fixture
def run(tmp_path):
    config = RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), rounds=100, eval_every=10)
    config = replace(resolve(config), runtime=Runtime(results_dir=str(tmp_path)))
    return Run.of(config, "1/A/low")


def test_a_log_tells_the_pace_of_the_rounds_that_were_seen(run, monkeypatch):
    """Those before an interruption are no measure."""
    now, console = [0.0], Console(file=io.StringIO(), width=200)
    monkeypatch.setattr("benchmark.launch.progress.time.monotonic", lambda: now[0])
    display = Display(1, console, every_s=0.0)
    display.live.get_time = lambda: now[0]
    display.start(run)
    files = RunFolder(run.folder, heartbeat_s=0)
    files.open(run, FACTS)
    for done, now[0] in ((50, 1.0), (51, 4.0), (53, 10.0)):
        files.beat(done)
        display.tick()
    lines = console.file.getvalue().splitlines()
    assert "50 of 100 rounds, for 1.0 s" in lines[0]
    assert "53 of 100 rounds, 3 s per round" in lines[-1] and "2 min left" in lines[-1], lines


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
