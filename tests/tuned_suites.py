"""A toy suite with an entry of tuning, and runs that need not be run."""

from copy import deepcopy

import yaml

from benchmark.suites.suite import Suite
from datamodules.common.errors import RunError
from run_folders import completed

SPEC = yaml.safe_load("""
paper: toy
title: A toy
published: null
report: last
base: {set: {data: few_digits.FewDigits, data.num_clients: 3, rounds: 4, method.batch_size: 16}}
datasets: {Digits: {}}
labels: {plain: {method: fedavg}, teacher: {method: fed_consist}}
tables:
  "1": {title: T, datasets: [Digits], metrics: [acc], rows: [{method: plain}, {method: teacher}]}
scales:
  paper: {seeds: [0]}
  quick:
    seeds: [0, 1]
    tuning:
      rates: [method.lr, method.lr_unlabelled]
      seeds: [1000]
      set: {data.labelled_holdout: 0.5, data.labelled_clients: 3}
      methods: {fed_consist: {method.warmup_rounds: 0}}
""")


def toy(tmp_path, spec=SPEC):
    return Suite(spec, "toy.yaml", tmp_path / "suites")


def made_up(monkeypatch, accuracy):
    """Nothing is run: a run ends with the accuracy that it is given, and fails without one; the runs in order."""
    ran = []

    def fit(run):
        ran.append(run)
        if (given := accuracy(run)) is None:
            raise RunError("lost")
        return completed(run, given, test_images=100)

    monkeypatch.setattr("benchmark.launch.run.fit", fit)
    return ran


def with_tuning(tmp_path, **entries):
    """A copy of the toy with other entries of ``tuning``; ``None`` leaves one out."""
    spec = deepcopy(SPEC)
    quick = spec["scales"]["quick"]
    quick["tuning"] = {name: value for name, value in {**quick["tuning"], **entries}.items() if value is not None}
    return Suite(spec, "toy.yaml", tmp_path / "suites")
