"""How fast a run goes, and what it would continue from."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmark.launch.progress import Display, continuation, rounds_done
from benchmark.runs.folder import RunFolder
from run_folders import FACTS
from runs import configuration


@pytest.fixture
def run(tmp_path):
    return replace(configuration(tmp_path, method="fedavg", rounds=100, eval_every=10), cells=("1/A/low", "2/A/low"))


def told(run, *steps):
    """The lines of a log for rounds that had ended at some times: ``(rounds, seconds, warm-up)``."""
    now = [0.0]
    console = Console(file=io.StringIO(), width=200, get_time=lambda: now[0])
    display = Display(1, console, every_s=0.0)
    display.start(run)
    files = RunFolder(run.folder, heartbeat_s=0)
    files.open(run, FACTS)
    for done, now[0], warmup in steps:
        files.append({"round": done - 1, "acc": 10.0, "warmup": warmup})
        display.tick()
    return console.file.getvalue().splitlines()


def test_a_log_tells_the_pace_of_the_rounds_that_were_seen(run):
    """Those before an interruption are no measure."""
    first, *_, last = told(run, (50, 1.0, False), (51, 4.0, False), (53, 10.0, False))
    assert "50 of 100 rounds, acc 10.00" in first and "left" not in first
    assert "53 of 100 rounds, acc 10.00, 3 s per round, 2 min left" in last


def test_rounds_of_the_warm_up_say_nothing_of_those_after_it(run):
    warm_up, after = [(1, 1.0, True), (10, 10.0, True)], [(11, 40.0, False), (12, 70.0, False), (13, 100.0, False)]
    _, warm, *_, last = told(run, *warm_up, *after)
    assert "1 s per round, 90 s left" in warm
    assert "30 s per round, 44 min left" in last


def test_a_run_whose_rounds_are_over_is_finishing(run):
    """Writing weights and the record may take minutes; and nothing has no time left before that."""
    *_, near, last = told(run, (98, 1.0, False), (99, 1.1, False), (100, 1.2, False))
    assert "1.0 s left" in near
    assert "100 of 100 rounds, acc 10.00, finishing" in last


def test_a_terminal_shows_a_line_per_run(run):
    files = RunFolder(run.folder)
    files.open(run, FACTS)
    files.append({"round": 0, "acc": 33.0})
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with Display(1, console) as display:
        display.start(run)
        display.tick()
        display.live.refresh()
        display.finish(run, "complete", "")
    text = console.file.getvalue()
    assert "1/100" in text and "acc 33.00" in text and "1/A/low +1 seed 3" in text


def test_a_run_counts_rounds_between_evaluations_and_a_complete_one_does_not_continue(run):
    files = RunFolder(run.folder, heartbeat_s=0)
    assert rounds_done(run, None) is None
    files.open(run, FACTS)
    files.append({"round": 9, "acc": 10.0})
    files.beat(13)
    assert rounds_done(run, {"round": 9}) == 13
    files.saved(12)
    assert "continues after 12 of 100 rounds" in continuation(run)
    files.append({"round": 99, "acc": 10.0})
    files.finish()
    assert "is complete" in continuation(run)
