"""The wheel: what is in it, and that it works away from the checkout, beside folders with the names of our packages."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmark", "methods", "datamodules")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IN_A_CHILD = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import benchmark
import methods

if __name__ == "__main__":
    asked = "(__import__('benchmark'), __import__('methods').__file__)[1]"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(methods.__file__, pool.submit(eval, asked).result(), sep="\\n")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is in the wheel; it is made of a copy, so that nothing is left in the checkout."""
    source, out, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "site"))
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    make = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", make, str(out)], cwd=source, check=True, capture_output=True)
    (path,) = out.glob("fssl_bench-*-py3-none-any.whl")
    zipfile.ZipFile(path).extractall(site)
    return site


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working directory with modules of our names, and of a library's."""
    for name in ("methods", "datamodules"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    (tmp_path / "yaml.py").write_text("raise SystemExit('the wrong one')\n")
    return tmp_path


def python(site: Path, here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *arguments], cwd=here, env=environment, capture_output=True, text=True)


def test_the_wheel_has_all_that_runs_need_and_no_tests(installed: Path) -> None:
    names = {str(file.relative_to(installed)) for file in installed.rglob("*") if file.is_file()}
    assert not [name for name in names if name.startswith("benchmark/perf/")]
    files = {file for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file() and file.suffix != ".pyc"}
    info = f"fssl_bench-{PROJECT['version']}.dist-info"
    needed = {str(file.relative_to(ROOT)) for file in files if "perf" not in file.parts} | {f"{info}/licenses/LICENSE"}
    assert needed <= names and "benchmark/suites/tuned/news-board.yaml" in names
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}
    points = (installed / info / "entry_points.txt").read_text()
    assert "fssl-bench = benchmark.__main__:run" in points


def test_the_working_directory_hides_nothing(installed: Path, hostile: Path) -> None:
    """Neither from the command, nor from a script there, nor from processes that they start."""
    done = python(installed, hostile, "-m", "benchmark", "status", "--paper", "rscfet")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown suite 'rscfet'; did you mean 'rscfed'?")
    (hostile / "script.py").write_text(IN_A_CHILD)
    done = python(installed, hostile, "script.py")
    ours = str(installed / "methods" / "__init__.py")
    assert done.stdout.split() == [ours, ours], done.stderr


def test_another_package_that_was_first_is_named(installed: Path, hostile: Path) -> None:
    (hostile / "methods" / "__init__.py").write_text("")
    done = python(installed, hostile, "-c", "import methods, benchmark")
    assert done.returncode == 1
    assert f"another package named 'methods' ({hostile}/methods/__init__.py) was imported before" in done.stderr


def test_modules_of_the_working_directory_are_found_last(installed: Path, hostile: Path) -> None:
    """Also by the console script, which Python starts without it."""
    code = (
        "import sys; sys.path.pop(0); sys.argv = ['fssl-bench', 'status', '--paper', 'x']\n"
        "from benchmark.__main__ import run\nrun()\nimport mine; print(sys.path[-1] == mine.__file__[:-8])"
    )
    (hostile / "mine.py").write_text("")
    assert python(installed, hostile, "-c", code).stdout == "True\n"


def test_citation_and_licence_say_what_the_package_says() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_oldest_versions_are_those_of_the_project() -> None:
    """Each requirement has a lower bound, and the constraints for pip are these."""
    done = subprocess.run([sys.executable, ROOT / ".ci/oldest"], capture_output=True, text=True, check=True)
    found = dict(line.split("==") for line in done.stdout.splitlines())
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["docs"], *(one for one in extras["dev"] if one != "fssl-bench[docs]")]
    assert len(found) == len(asked)
    for text in asked:
        requirement = Requirement(text)
        assert found[requirement.name] in requirement.specifier, text
