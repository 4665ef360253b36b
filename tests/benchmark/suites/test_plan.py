"""The runs of a plan, and published values."""

from copy import deepcopy

import pytest

from benchmark.config import Runtime, run_id
from benchmark.suites.plan import read_published
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError


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


def test_a_bad_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("table,dataset,method,value\n1,A,low,50.10\n")
    with pytest.raises(ConfigError, match=r"toy\.csv.*\bmetric\b"):
        read_published(path)
    for line, told in (
        ("acc,much", "'much'"),
        ("acc,inf", "'inf'"),
        ("acc,", "''"),
        ("acc", "None"),
        ("acc,1,2", "more values"),
    ):
        path.write_text(f"table,dataset,method,metric,value\n1,A,low,auc,1\n1,A,low,{line}\n")
        with pytest.raises(ConfigError, match=rf"toy\.csv, line 3: .*{told}"):
            read_published(path)
    path.write_text("table,dataset,method,metric,value\n" + "1,A,low,acc,1\n" * 2)
    with pytest.raises(ConfigError, match=r"line 3: .* 1/A/low, acc: .* twice"):
        read_published(path)


def test_published_spreads(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("table,dataset,method,M,metric,value,std\n1,A,low,1,acc,50.1,2.0\n1,A,low,2,acc,51.0,\n")
    where = "1", "A", "low", (("M", "1"),)
    values = read_published(path)
    assert (values[*where, "acc"], values[*where, "acc std"]) == ("50.1", "2.0")
    assert len(values) == 3
