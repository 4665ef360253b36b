"""Calibrations: what a run's rounds take and its states weigh, without a trace."""

from pathlib import Path

import pytest
import torch

from benchmark.config import Runtime, apply, from_dict, resolve
from benchmark.launch import calibration
from benchmark.launch.calibration import Calibration, extrapolated
from datamodules.common.errors import RunError

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


def made(**options):
    return Calibration(resolve(from_dict(apply({}, {**OPTIONS, **options}))))


def test_a_calibration_runs_rounds_of_the_warm_up_and_of_what_follows(tmp_path, monkeypatch):
    """Each of them counts as often as there are rounds of its kind; nothing is written."""
    monkeypatch.chdir(tmp_path)
    found, rounds = made(), []
    monkeypatch.setattr(found, "_round", lambda number: rounds.append(number) or 100.0)
    assert 2000.0 < found.duration().seconds < 2060.0
    assert rounds == [0, 11] * len(calibration.THINNINGS)
    assert not list(Path(tmp_path).iterdir())


def test_evaluations_count_by_how_often_they_happen(monkeypatch):
    found, done = made(eval_every=4), []
    monkeypatch.setattr(found.federation, "run_round", lambda number: done.append(number))
    monkeypatch.setattr(found.federation, "evaluate", lambda: done.append("evaluated"))
    monkeypatch.setattr(found, "_timed", lambda work: work() or 8.0)
    assert found._round(11) == 8.0 + 8.0 / 4
    assert done == [10, "evaluated"]
    monkeypatch.setattr(calibration, "SHORT_S", 9.0)
    found._round(5)
    assert done[2:] == [5, 5, "evaluated"]


def test_short_rounds_are_run_on_all_images():
    """The last rounds are those that count, and they are the run's own."""
    found = made()
    duration = found.duration()
    assert duration.thinning == 1 and duration.seconds > 0
    assert found.federation.data is found.data


class Clock:
    """A clock that only measurements move; they take ``fixed`` seconds, and ``each`` on all images."""

    def __init__(self, monkeypatch, fixed, each):
        self.now, self.met = 0.0, []
        monkeypatch.setattr(calibration.time, "perf_counter", lambda: self.now)

        def rounds(thinning):
            self.met.append(thinning)
            taken = fixed + each / thinning
            self.now += taken
            return 100 * taken

        self.rounds = rounds


@pytest.mark.parametrize(
    ("fixed", "each", "thinnings"),
    [
        (0.5, 20.0, [64, 16, 4, 1]),
        (1.0, 640.0, [64, 16]),  # the next one would take longer than a minute
        (1.0, 60_000.0, [64]),
        (14.0, 32.0, [64, 16]),  # what does not grow with the images counts once
    ],
)
def test_long_rounds_are_judged_by_a_part_of_the_images(fixed, each, thinnings, monkeypatch):
    """What does not grow with the images is told apart as soon as there are two measurements."""
    found = made()
    found.preparation = 7.0
    clock = Clock(monkeypatch, fixed, each)
    monkeypatch.setattr(found, "_rounds", clock.rounds)
    duration = found.duration()
    assert clock.met == thinnings and duration.thinning == thinnings[-1]
    whole = fixed + each if len(thinnings) > 1 else 64 * fixed + each
    assert duration.seconds == pytest.approx(7.0 + 100 * whole)


def test_images_never_save_time():
    assert extrapolated((0.25, 3.0), (0.5, 2.0)) == 2.0
    assert extrapolated((0.0, 0.0), (0.25, 2.0)) == 8.0
    assert extrapolated((0.25, 2.0), (1.0, 9.0)) == 9.0


def test_a_method_may_need_more_images_than_a_part_has(monkeypatch):
    """Where it fails on all of them, that is the error."""
    found, met = made(), []

    def rounds(thinning):
        met.append(thinning)
        if thinning > least:
            raise RunError("too few images")
        return 3.0

    monkeypatch.setattr(found, "_rounds", rounds)
    least = 4
    assert found.duration().thinning == 1 and met == [64, 16, 4, 1]
    least = 0
    with pytest.raises(RunError, match="too few images"):
        found.duration()


def test_sizes_are_those_of_the_states():
    """Each client keeps its momentum, which is as large as the network."""
    found = Calibration(resolve(from_dict(apply({}, FEDAVG))))
    network = sum(p.numel() * 4 for p in found.federation.method.model.parameters())
    sizes = found.sizes()
    assert (sizes.clients, sizes.server) == (4 * network, 2 * network)  # the server keeps a velocity, too
    assert sizes.checkpoints == 3 * (sizes.clients + sizes.server)


def test_a_calibration_of_several_processes_has_the_threads_of_all(monkeypatch):
    monkeypatch.setattr(calibration, "placed", lambda config: Runtime(devices=3, threads=2, accelerator="cpu"))
    before = torch.get_num_threads()
    found = made()
    assert (found.config.runtime.devices, found.config.runtime.threads) == (1, 6)
    assert torch.get_num_threads() == before
