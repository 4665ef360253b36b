"""The runs of a plan."""

from copy import deepcopy

from benchmark.config import Runtime, run_id
from benchmark.suites.suite import load


def test_a_planned_run_knows_its_id_and_its_folder(tmp_path):
    """Of every seed, below the plan's own results; planned twice, they are the same."""
    suite, runtime = load("rscfed"), Runtime(results_dir=str(tmp_path))
    plan, again = (suite.plan("paper", seeds=[1, 2], runtime=runtime) for _ in range(2))
    assert {run.config.seed for run in plan.runs.values()} == {1, 2}
    for key, run in plan.runs.items():
        assert key == run.id == run_id(run.config)
        assert run.folder == again.runs[key].folder == tmp_path / "runs" / run.folder.name and key in run.folder.name


def test_a_row_is_known_by_its_name():
    """The same rows of a suite that was loaded twice, and copies of them."""
    suite = load("rscfed")
    plan = suite.plan("paper", seeds=[1])
    for row, again in zip(suite.rows, load("rscfed").rows, strict=True):
        if row.full_name in plan.of_row:
            assert plan.run(row, 1) is plan.run(again, 1) is plan.run(deepcopy(row), 1)
