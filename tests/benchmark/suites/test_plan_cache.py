"""A cached plan is the plan, and is made anew after any change that could give another one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.config import Runtime
from benchmark.suites import plan_cache, suite
from benchmark.suites.plan import Plan
from toy_suite import SUITE

RUNTIME = Runtime(results_dir="elsewhere")


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "toy.yaml").write_text(SUITE)
    return tmp_path / "toy.yaml"


def files(toy: Path) -> list[Path]:
    return sorted((toy.parent / "cache").rglob("*.json"))


def said(plan: Plan) -> object:
    """All that a plan says."""
    return plan.scale, plan.seeds, list(plan.runs.items()), plan.of_row


@pytest.mark.parametrize("paper", ["rscfed", "text"])
@pytest.mark.parametrize("seeds", [[], [7, 3]])
def test_what_is_kept_is_the_plan(toy, paper, seeds):
    loaded = suite.load(paper)
    scale = next(iter(loaded.spec["scales"]))
    made = loaded.plan(scale, seeds, RUNTIME)
    assert said(plan_cache.plan(loaded, scale, seeds, RUNTIME)) == said(made)
    again = suite.load(paper)
    assert said(plan_cache.plan(again, scale, seeds, RUNTIME)) == said(made)
    (file,) = files(toy)
    file.write_text(json.dumps({**json.loads(file.read_text()), "seeds": [99]}))
    assert plan_cache.plan(again, scale, seeds, RUNTIME).seeds == (99,), "it was planned again"


def test_a_changed_suite_and_other_seeds_are_planned_anew_and_the_old_plan_goes(toy):
    plan_cache.plan(suite.load(str(toy)), "quick", [], RUNTIME)
    (before,) = files(toy)
    toy.write_text(SUITE.replace("rounds: 2", "rounds: 3"))
    assert {run.config.rounds for run in plan_cache.plan(suite.load(str(toy)), "quick", [], RUNTIME).runs.values()} == {
        3
    }
    (now,) = files(toy)
    assert before != now
    assert plan_cache.plan(suite.load(str(toy)), "quick", [5], RUNTIME).seeds == (5,)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": [["a", {}, []]], "of_row": {}, "seeds": []}'])
def test_a_damaged_file_is_made_anew(toy, text):
    loaded = suite.load(str(toy))
    made = plan_cache.plan(loaded, "quick", [], RUNTIME)
    (file,) = files(toy)
    whole = json.loads(file.read_text())
    file.write_text(text)
    assert said(plan_cache.plan(loaded, "quick", [], RUNTIME)) == said(made)
    assert json.loads(files(toy)[0].read_text()) == whole


@pytest.mark.parametrize("package", ["torch", "statsmodels", "pydantic", "numpy"])
def test_another_version_of_a_dependency_is_another_digest(toy, tmp_path, monkeypatch, package):
    """All that pyproject.toml names count, and nothing that the user may have beside them."""
    loaded = suite.load(str(toy))
    before = plan_cache.digest(loaded, "quick")
    for name, same in (("pytest", True), (package, False)):
        installed = tmp_path / name / f"{name}-999.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 999\n")
        monkeypatch.syspath_prepend(installed.parent)
        assert (plan_cache.digest(loaded, "quick") == before) is same


def test_plans_with_classes_of_other_packages_are_not_kept(toy, tmp_path, monkeypatch):
    """Their sources may change unseen."""
    (tmp_path / "another_package.py").write_text("from methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    toy.write_text(SUITE.replace("{method: fedavg}", "{method: another_package.Mine}"))
    assert len(plan_cache.plan(suite.load(str(toy)), "quick", [], RUNTIME).runs) == 4
    assert not files(toy)


def test_a_home_that_cannot_be_written_is_no_error(toy, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert plan_cache.plan(suite.load(str(toy)), "quick", [], replace(RUNTIME, threads=1)).runs


def test_a_user_without_a_home_gets_the_plan(toy, monkeypatch):
    """In a container that runs under the number of nobody it knows."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    loaded = suite.load(str(toy))
    assert said(plan_cache.plan(loaded, "quick", [], RUNTIME)) == said(loaded.plan("quick", [], RUNTIME))
