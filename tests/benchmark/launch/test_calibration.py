"""Calibrations: what a run's rounds take and its states weigh, without a trace."""

import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmark.config import Run, Runtime, apply, from_dict
from benchmark.launch import calibration
from benchmark.launch.calibration import Calibration, Unmeasured
from datamodules.common.errors import Stopped

OPTIONS = {
    "method": "fed_consist",
    "method.warmup_rounds": 3,
    "data": "digits",
    "data.num_clients": 4,
    "data.partition": "iid",
    "rounds": 20,
    "runtime.accelerator": "cpu",
    "runtime.devices": 1,
    "runtime.threads": 1,
}
FEDAVG = {name: value for name, value in OPTIONS.items() if name != "method.warmup_rounds"} | {"method": "fedavg"}


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Other programs may use the machine while tests run."""
    monkeypatch.setattr(calibration, "others", lambda: lambda: 0.0)


def made(**options):
    return Calibration(Run.of(from_dict(apply({}, {**OPTIONS, **options}))))


def test_a_calibration_runs_rounds_of_the_warm_up_and_of_what_follows(tmp_path, monkeypatch):
    """Each of them counts as often as there are rounds of its kind; nothing is written."""
    monkeypatch.chdir(tmp_path)
    found, rounds = made(), []
    monkeypatch.setattr(found, "_round", lambda number: rounds.append(number) or 100.0)
    assert 2000.0 < found.seconds() < 2060.0
    assert rounds == [0, 11]
    assert not list(Path(tmp_path).iterdir())


def test_evaluations_count_by_how_often_they_happen(monkeypatch):
    found, done = made(eval_every=4), []
    monkeypatch.setattr(found.federation, "run_round", lambda number: done.append(number))
    monkeypatch.setattr(found.federation, "evaluate", lambda: done.append("evaluated"))
    monkeypatch.setattr(found, "_timed", lambda work, *_: work() or 8.0)
    assert found._round(11) == 8.0 + 8.0 / 4
    assert done == [10, "evaluated"]
    monkeypatch.setattr(calibration, "SHORT_S", 9.0)
    found._round(5)
    assert done[2:] == [5, 5, "evaluated"]


def test_the_rounds_are_the_runs_own(monkeypatch):
    """On all images of all its clients: what a part of them takes says little where the steps of a visit are fixed."""
    found, met = made(rounds=4), []
    visits = found.federation.run_round
    monkeypatch.setattr(found.federation, "run_round", lambda number: met.append(visits(number)))
    sizes = [found.federation.data.client(k).size for k in range(4)]
    assert found.seconds() > found.preparation
    assert len(met) == 4 and sum(sizes) == 4 * 359


@pytest.mark.parametrize(
    ("slow", "told"),
    [
        ("server_phase", "the server's work before the rounds takes more than 0.2 s"),
        ("run_round", "a round takes more than 0.2 s"),
        ("evaluate", "an evaluation takes more than 0.2 s"),
    ],
)
def test_what_takes_too_long_is_given_up(monkeypatch, slow, told):
    """An alarm of somebody else's is still there."""
    found = made(eval_every=4)
    for name in ("server_phase", "run_round", "evaluate"):
        taken = 60.0 if name == slow else 0.0
        monkeypatch.setattr(found.federation, name, lambda *_, taken=taken, **__: time.sleep(taken))
    monkeypatch.setattr(calibration, "LIMIT_S", 0.2)
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    began = time.monotonic()
    with pytest.raises(Unmeasured, match=told):
        found.seconds()
    assert time.monotonic() - began < 20
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (timer[0] > 0)


def test_another_signal_is_no_limit(monkeypatch):
    found = made()

    def stopped(*_, **__):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(found.federation, "run_round", stopped)
    with pytest.raises(Stopped, match="SIGTERM"):
        found.seconds()


@pytest.mark.parametrize(("used", "told"), [(0.4, False), (0.6, True)])
def test_rounds_beside_other_programs_say_nothing(monkeypatch, used, told):
    monkeypatch.setattr(calibration, "others", lambda: lambda: used)
    found = made(rounds=1)
    with pytest.raises(Unmeasured, match="other programs are using the machine") if told else nullcontext():
        found.seconds()


def test_sizes_are_those_of_the_states():
    """Each client keeps its momentum, which is as large as the network."""
    found = Calibration(Run.of(from_dict(apply({}, FEDAVG))))
    network = sum(p.numel() * 4 for p in found.federation.method.model.parameters())
    sizes = found.sizes()
    assert (sizes.clients, sizes.server) == (4 * network, 2 * network)  # the server keeps a velocity, too
    assert sizes.checkpoints == 3 * (sizes.clients + sizes.server)


def test_a_calibration_of_several_processes_has_the_threads_of_all(monkeypatch):
    there = Runtime(devices=3, threads=2, accelerator="cpu")
    monkeypatch.setattr(calibration, "placed", lambda run: run.replace(runtime=there))
    before = torch.get_num_threads()
    found = made()
    assert (found.config.runtime.devices, found.config.runtime.threads) == (1, 6)
    assert found.how == "whole rounds in 1 process instead of 3"
    assert torch.get_num_threads() == before
