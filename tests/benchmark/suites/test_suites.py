"""What holds for all suites: their runs can be made, and their reduced scales leave room between the bounds."""

import hashlib
import json
from pathlib import Path

import pytest

from benchmark.config import Run, Runtime, apply, from_dict
from benchmark.launch.run import fit
from benchmark.registry import build
from benchmark.runs.records import read_record
from benchmark.suites import suite
from methods import models
from papers import load

DIGESTS = Path(__file__).parents[2] / "golden" / "suites.json"
"""Of the ids of all runs with seed 0, by suite and scale."""


@pytest.mark.parametrize("paper", ["cbafed", "fl2", "feddb", "feddure"])
def test_scale_small_uses_the_paper_s_data_and_says_that_it_is_not_the_protocol(paper):
    """Real data sets, another network (and its input size) or fewer rounds, no comparison with published values."""
    papers = load(paper)
    scale, plan = papers.scale("small"), papers.plan("small", seeds=[0])
    assert "not the paper's protocol" in scale.note and not scale.compare
    assert not {run.config.data.name for run in plan.runs.values()} & {"digits"}
    networks = {}
    for row in papers.rows:
        if row.full_name in plan.of_row:
            ours, theirs = papers.run(row, "small").config, papers.run(row, "paper").config
            if not row.dataset.startswith("AGNews"):
                mine, its = ({**c.data.init_args, "side": None, "zoom": None} for c in (ours, theirs))
                assert (ours.data.class_path, mine) == (theirs.data.class_path, its)
                assert (ours.model, ours.model_args, ours.rounds) != (theirs.model, theirs.model_args, theirs.rounds)
            shape = {"in_features": 8} if ours.model == "linear" else {}
            networks[ours.model, str(ours.model_args)] = {**shape, **ours.model_args}
    for (name, _), arguments in networks.items():
        models.build(name, 10, **arguments)


@pytest.mark.parametrize("paper", suite.available())
def test_every_run_of_a_suite_can_be_made(monkeypatch, paper):
    """None averages more last rounds than it has, and what only the constructor of a data module refuses shows here,
    not after the first run has been started. Before tuning, all are the runs that they were: what is to change them on
    purpose writes what is ``found`` into the file of digests.
    """
    monkeypatch.setattr(suite.Suite, "choices", lambda self, scale: {})
    papers = suite.load(paper)
    planned = {scale: papers.plan(scale, seeds=[0]).runs for scale in papers.spec.scales}
    runs = [run for of_scale in planned.values() for run in of_scale.values()]
    found = {
        f"{paper} {scale}": hashlib.sha256("".join(sorted(ids)).encode()).hexdigest()[:12]
        for scale, ids in planned.items()
    }
    assert found.items() <= json.loads(DIGESTS.read_text()).items()
    assert [run.cells[0] for run in runs if run.config.last_k > run.config.rounds] == []
    for spec in {str(run.config.data): run.config.data for run in runs}.values():
        build(spec, "data")


@pytest.mark.parametrize(
    ("paper", "row", "all_labels"),
    [
        ("feddb", "1/CIFAR10-4000/FedAvg", {"data.hidden_labels": "pooled", "data.union_mode": "none", "rounds": 12}),
        ("feddure", "1/cifar10/FedAvg*/partition=iid_iid", {"data.hidden_labels": "revealed", "rounds": 6}),
        ("fl2", "labels/CIFAR10-40/server_only", {"data.num_labels": 1000, "rounds": 5}),
        ("common", "clients/Fashion-MNIST/FedAvg", {"data.hidden_labels": "pooled"}),
        ("common", "all/Fashion-MNIST/FedAvg", {"data.hidden_labels": "pooled"}),
    ],
)
def test_bounds_of_quick_leave_room(paper, row, all_labels, tmp_path):
    """The few labels teach something, all labels 15 points more: between them unlabelled images can be of use.

    Only the last round is evaluated. With all labels, half of the rounds or fewer are enough where others are given.
    """
    papers = load(paper)
    runtime = Runtime(results_dir=str(tmp_path), accelerator="cpu")
    accuracy = []
    for options in ({}, all_labels):
        values = apply(papers.values(papers.row(row, "quick"), "quick"), {**options, "eval_every": 1000})
        run = Run.of(from_dict(values)).replace(runtime=runtime)
        accuracy.append(read_record(fit(run))["final"]["acc"])
    lower, upper = accuracy
    assert lower > 40 and upper > 85 and upper - lower > 15
