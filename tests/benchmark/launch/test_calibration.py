"""Calibrations: what a run's rounds take and its states weigh, without a trace."""

import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmark.config import Run, apply, from_dict
from benchmark.launch.calibration import Calibration, Unmeasured
from datamodules.common.errors import Stopped
from methods.fedavg import FedAvg

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
def idle(machine):
    """Other programs may use the real one while tests run."""


class Clock:
    """A clock that goes on only while ``Timed`` works, and what that has done."""

    def __init__(self):
        self.now, self.warm_up_s, self.round_s, self.evaluation_s = 0.0, 0.0, 0.0, 0.0
        self.visits = []


CLOCK = Clock()


class Timed(FedAvg):
    """A warm-up of three rounds; rounds and evaluations take what the clock says."""

    def is_warmup(self, round):
        return round < 3

    def broadcast(self, server, visit):
        CLOCK.visits.append(visit)
        return super().broadcast(server, visit)

    def aggregate(self, uploads):
        super().aggregate(uploads)
        CLOCK.now += CLOCK.warm_up_s if self.is_warmup(CLOCK.visits[-1].round) else CLOCK.round_s

    def predict(self, x):
        CLOCK.now += CLOCK.evaluation_s * len(x) / 90
        return super().predict(x)


@pytest.fixture
def clock(monkeypatch):
    """The clock, and no other."""
    CLOCK.__init__()
    monkeypatch.setattr(time, "perf_counter", lambda: CLOCK.now)
    return CLOCK


def made(limit_s=60.0, **options):
    return Calibration(Run.of(from_dict(apply({}, {**OPTIONS, **options}))), limit_s)


def timed(**options):
    few = {"method": f"{__name__}.Timed", "data": "federations.FewDigits", "data.labelled_clients": 4}
    return Calibration(Run.of(from_dict(apply({}, {**FEDAVG, **few, **options}))))


def rounds(clock):
    """The rounds that took place, in turn; all clients are in each of them, with all of their images."""
    parts = [clock.visits[start : start + 4] for start in range(0, len(clock.visits), 4)]
    for visits in parts:
        assert {visit.client for visit in visits} == set(range(4)) and sum(visit.size for visit in visits) == 4 * 62
        assert len({visit.round for visit in visits}) == 1
    return [visits[0].round for visits in parts]


def test_a_calibration_runs_rounds_of_the_warm_up_and_of_what_follows(clock, tmp_path, monkeypatch):
    """Each of them counts as often as there are rounds of its kind; nothing is written."""
    monkeypatch.chdir(tmp_path)
    clock.warm_up_s, clock.round_s = 100.0, 10.0
    assert timed().seconds() == 3 * 100.0 + 17 * 10.0
    assert rounds(clock) == [0, 11]
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(("taken", "often"), [(8.0, 1), (4.0, 2)])
def test_evaluations_count_by_how_often_they_happen(clock, taken, often):
    """No round is timed that is evaluated; a short one is run again."""
    clock.warm_up_s = clock.round_s = taken
    clock.evaluation_s = 12.0
    assert timed(eval_every=4).seconds() == pytest.approx(20 * (taken + 12.0 / 4))
    assert rounds(clock) == [0] * often + [10] * often


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
    found = made(limit_s=0.2, eval_every=4)
    for name in ("server_phase", "run_round", "evaluate"):
        taken = 60.0 if name == slow else 0.0
        monkeypatch.setattr(found.federation, name, lambda *_, taken=taken, **__: time.sleep(taken))
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    began = time.monotonic()
    with pytest.raises(Unmeasured, match=told):
        found.seconds()
    assert time.monotonic() - began < 20
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (timer[0] > 0)


class Stops(FedAvg):
    """Somebody asks the program to stop while it trains."""

    def on_train_start(self):
        raise Stopped(signal.SIGTERM)


def test_another_signal_is_no_limit():
    found = timed(method=f"{__name__}.Stops")
    with pytest.raises(Stopped, match="SIGTERM"):
        found.seconds()


@pytest.mark.parametrize(("share", "told"), [(0.2, False), (0.3, True)])
def test_rounds_beside_other_programs_say_nothing(machine, share, told):
    """``share``: of two cores."""
    found = timed(rounds=1)
    with machine.beside_others(share), pytest.raises(Unmeasured, match="other programs") if told else nullcontext():
        found.seconds()


def test_sizes_are_those_of_the_states():
    """Each client keeps its momentum, which is as large as the network."""
    found = Calibration(Run.of(from_dict(apply({}, FEDAVG))))
    network = sum(p.numel() * 4 for p in found.federation.method.model.parameters())
    sizes = found.sizes()
    assert (sizes.clients, sizes.server) == (4 * network, 2 * network)  # the server keeps a velocity, too
    assert sizes.checkpoints == 3 * (sizes.clients + sizes.server)


def test_a_calibration_of_several_processes_has_the_threads_of_all():
    before = torch.get_num_threads()
    found = made(**{"runtime.devices": 3, "runtime.threads": 2})
    assert (found.config.runtime.devices, found.config.runtime.threads) == (1, 6)
    assert found.how == "whole rounds in 1 process instead of 3"
    assert torch.get_num_threads() == before
