"""What holds for all suites: their runs can be made, and are those that they were."""

import hashlib
import json
from pathlib import Path

import pytest

from benchmark.registry import build
from benchmark.suites import suite

DIGESTS = Path(__file__).parents[2] / "golden" / "suites.json"
"""Of the ids of all runs with seed 0, by suite and scale."""


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
