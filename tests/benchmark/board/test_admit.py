"""Admission: which runs a setting needs, and which figures let it in."""

from copy import deepcopy

import pytest
import yaml

from benchmark.board.admit import admit, candidates, judged
from benchmark.cli import main
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from run_folders import change, completed
from tuned_suites import made_up

SPEC = yaml.safe_load("""
paper: toy
title: A toy
published: null
report: last
ranked: true
base: {set: {data: few_digits.FewDigits, data.num_clients: 3, data.pipeline: randaugment_levels_cutout, rounds: 2}}
datasets: {Digits: {}}
labels:
  bound: {method: fedavg, data.hidden_labels: pooled}
  base: {method: fedavg}
  supervised: {method: local_ssl, method.unsup_weight: 0}
  consistent: {method: local_ssl}
tables:
  clients:
    title: Labels at some clients
    datasets: [Digits]
    metrics: [acc]
    reference: base
    bounds: [bound]
    rows: [{method: bound}, {method: base}]
scales:
  quick:
    seeds: [0]
    admission:
      seeds: [1000, 1001]
      central:
        labels: [supervised, consistent]
        set: {data.scenario: all_clients, data.num_clients: 1}
        tables: {clients: {set: {data.num_labels: 40}}}
""")

BOTH = ("base", "bound")


@pytest.fixture
def suite(tmp_path):
    return Suite(SPEC, "toy.yaml", tmp_path / "suites")


def test_bounds_and_central_rows_run_with_seeds_of_their_own(suite, runtime):
    ((name, one),) = candidates(suite, "quick", runtime).items()
    assert (name, list(one)) == ("clients/Digits", ["base", "bound", "supervised", "consistent"])
    for runs in one.values():
        assert [run.config.seed for run in runs] == [1000, 1001]
    reference, central = one["base"][0].config, one["consistent"][0].config
    assert reference.data.init_args["num_clients"] == 3
    asked = {"scenario": "all_clients", "num_clients": 1, "num_labels": 40}
    assert asked.items() <= central.data.init_args.items()
    assert one["supervised"][0].config.method.init_args["unsup_weight"] == 0


def test_what_tuning_has_chosen_does_not_count(suite, runtime):
    before = candidates(suite, "quick", runtime)
    suite.tuned.path("quick").parent.mkdir(parents=True)
    suite.tuned.path("quick").write_text("clients/Digits/base: {options: {method.lr: 0.5}}\n")
    assert suite.plan("quick").runs and candidates(suite, "quick", runtime) == before


@pytest.mark.parametrize(
    ("seeds", "central", "told"),
    [
        ([0, 1001], ["supervised", "consistent"], r"scales\.quick.*seed 1001 is reported"),
        ([0], ["supervised", "consistnt"], r"scales\.quick.*'consistnt'.*'consistent'"),
        ([0], ["base", "consistent"], "clients.*base"),  # its run in one place would stand for the reference
    ],
)
def test_admission_has_seeds_and_central_rows_of_its_own(runtime, seeds, central, told):
    spec = deepcopy(SPEC)
    spec["scales"]["quick"]["seeds"] = seeds
    spec["scales"]["quick"]["admission"]["central"]["labels"] = central
    with pytest.raises(ConfigError, match=told):
        candidates(Suite(spec, "toy.yaml"), "quick", runtime)


@pytest.mark.parametrize(
    ("bound", "consistent", "rising", "admitted"),
    [(75, 53, "consistent", True), (74, 53, "", False), (75, 52, "", False), *((75, 53, w, False) for w in BOTH)],
)
def test_three_figures_decide(tmp_path, runtime, bound, consistent, rising, admitted):
    """Accuracy of the reference 60 and of the central supervised row 50; curves are flat, but one rises by 2."""
    longer = {"set": {**SPEC["base"]["set"], "rounds": 8}}
    (one,) = candidates(Suite({**SPEC, "base": longer}, "toy.yaml", tmp_path), "quick", runtime).values()
    accuracy = {"base": 60, "bound": bound, "supervised": 50, "consistent": consistent}
    for label, runs in one.items():
        for run in runs:
            completed(run, *(accuracy[label] + (label == rising) * (n - 7.0) for n in range(8)))
    found = judged(one, "last")
    assert found["admitted"] is admitted
    assert (found["gap"], found["premise"]) == (bound - 60, consistent - 50)
    assert found["rise"] == pytest.approx({label: 2.0 * (label == rising) for label in BOTH})
    assert found["seeds"] == [1000, 1001]


def test_the_command_tells_the_verdict(tmp_path, monkeypatch, capsys):
    made_up(monkeypatch, lambda run: 50.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(SPEC))
    assert main(["admit", "--paper", "toy.yaml", "--jobs", "1"]) == 0
    assert "clients/Digits: not admitted; all labels are worth 0.0" in capsys.readouterr().out


def test_admit_runs_what_is_missing_and_writes_beside_the_suite(suite, runtime, monkeypatch):
    ran = made_up(monkeypatch, lambda run: 50.0)
    made = admit(suite, "quick", runtime, 1)
    written = yaml.safe_load(suite.admitted.path("quick").read_text())
    assert written == made == suite.admitted.own("quick")
    assert set(written["clients/Digits"]["accuracy"]) == {"base", "bound", "supervised", "consistent"}
    (one,) = candidates(suite, "quick", runtime).values()
    paths = [run.folder for runs in one.values() for run in runs]
    assert [run.folder for run in ran] == paths and all("admission" in path.parts for path in paths)
    assert admit(suite, "quick", runtime, 1) == made and len(ran) == len(paths)
    change(paths[-1], lambda record: record["environment"].update(revisions=["method 0, framework 1"]))
    with pytest.raises(ConfigError, match="other code"):
        admit(suite, "quick", runtime, 1)
