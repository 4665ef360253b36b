"""Calibrations: what a run's rounds take and its states weigh, without a trace."""

from pathlib import Path

import torch

from benchmark.config import Runtime, apply, from_dict, resolve
from benchmark.launch import calibration
from benchmark.launch.calibration import Calibration

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


def test_a_calibration_runs_rounds_of_the_warm_up_and_of_what_follows(tmp_path, monkeypatch):
    """Each of them counts as often as there are rounds of its kind; nothing is written."""
    monkeypatch.chdir(tmp_path)
    made = Calibration(resolve(from_dict(apply({}, OPTIONS))))
    rounds = []
    monkeypatch.setattr(made, "_round", lambda number: rounds.append(number) or 100.0)
    assert 2000.0 < made.seconds() < 2060.0
    assert rounds == [0, 11]
    assert not list(Path(tmp_path).iterdir())


def test_evaluations_count_by_how_often_they_happen(monkeypatch):
    made = Calibration(resolve(from_dict(apply({}, {**OPTIONS, "eval_every": 4}))))
    done = []
    monkeypatch.setattr(made.federation, "run_round", lambda number: done.append(number))
    monkeypatch.setattr(made.federation, "evaluate", lambda: done.append("evaluated"))
    monkeypatch.setattr(made, "_timed", lambda work: work() or 8.0)
    assert made._round(11) == 8.0 + 8.0 / 4
    assert done == [10, "evaluated"]
    monkeypatch.setattr(calibration, "SHORT_S", 9.0)
    made._round(5)
    assert done[2:] == [5, 5, "evaluated"]


def test_sizes_are_those_of_the_states():
    """Each client keeps its momentum, which is as large as the network."""
    made = Calibration(resolve(from_dict(apply({}, FEDAVG))))
    network = sum(p.numel() * 4 for p in made.federation.method.model.parameters())
    sizes = made.sizes()
    assert (sizes.clients, sizes.server) == (4 * network, 2 * network)  # the server keeps a velocity, too
    assert sizes.checkpoints == 3 * (sizes.clients + sizes.server)


def test_a_calibration_of_several_processes_has_the_threads_of_all(monkeypatch):
    monkeypatch.setattr(calibration, "placed", lambda config: Runtime(devices=3, threads=2, accelerator="cpu"))
    before = torch.get_num_threads()
    made = Calibration(resolve(from_dict(apply({}, OPTIONS))))
    assert (made.runtime.devices, made.runtime.threads) == (1, 6)
    assert torch.get_num_threads() == before
