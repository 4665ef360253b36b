"""Which code made a run: the version of the checkout, and the revision of its numbers."""

import subprocess

import pytest

from benchmark.config import Run, from_dict
from benchmark.runs import code_identity
from benchmark.runs.code_identity import REVISION, by_other_code, revision
from methods.fedavg import FedAvg

VALUES = {"method": "fedavg", "data": "digits", "model": "mlp"}


def write(file, text, encoding="utf-8"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding)


def test_the_record_says_that_there_was_no_git(monkeypatch, tmp_path):
    """A checkout without git on the PATH must not pass for the released version."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    released = code_identity.package_version()
    assert code_identity.code_version() == f"{released}-unknown (a checkout, and no git to ask)"
    (tmp_path / ".git").rmdir()
    assert code_identity.code_version() == released


def test_a_checkout_is_marked_if_its_code_differs_and_the_changes_are_told_as_a_patch(monkeypatch, tmp_path):
    """New files of any name and encoding, too.

    Neither other files nor another repository that the environment names count.
    """
    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    for variable in code_identity.OTHER_REPOSITORY:
        monkeypatch.delenv(variable, raising=False)
    for name in ("benchmark/run.py", "README.md"):
        write(tmp_path / name, "first\n")
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
    for command in (["init"], ["add", "."], [*who, "commit", "-m", "First"], ["tag", "v1"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    for variable in code_identity.OTHER_REPOSITORY:
        monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    write(tmp_path / "benchmark/suites/tuned/news-board.yaml", "a rate\n")
    write(tmp_path / "README.md", "second\n")
    assert (code_identity.code_version(), code_identity.uncommitted()) == ("v1", {})
    write(tmp_path / "benchmark/run.py", "second\n")
    write(tmp_path / "methods/Müller.py", "Müller\n", "latin-1")
    (patch,) = code_identity.uncommitted().values()
    assert code_identity.code_version() == "v1-dirty"
    assert "-first\n+second\n" in patch and "+M\ufffdller\n" in patch and "README" not in patch and "rate" not in patch


MINE = """
from methods.fedavg import FedAvg


class Mine(FedAvg):
    rate = 0.1
"""


PIPELINE = {"class_path": "digits", "init_args": {"pipeline": "own_parts.views"}}


@pytest.mark.parametrize(
    ("slot", "name"), [("method", "own_parts.Mine"), ("model", "own_parts.flat"), ("data", PIPELINE)]
)
def test_the_source_of_a_users_class_is_told_beside_the_revision(tmp_path, monkeypatch, slot, name):
    assert revision(Run.of(from_dict(VALUES))) == f"method {FedAvg.revision}, framework {REVISION}"
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "from torch import nn\n\n\ndef flat(num_classes, image_size=32):\n    return nn.Identity()\n" + MINE
    (tmp_path / "own_parts.py").write_text(own)
    run = Run.of(from_dict(VALUES | {slot: name}))
    made = {"environment": {"revisions": [revision(run)]}}
    assert not by_other_code(run, made)
    (tmp_path / "own_parts.py").write_text(own.replace("0.1", "0.2"))
    assert by_other_code(run, made) and not by_other_code(run, made, source=False)
    monkeypatch.setattr(FedAvg, "revision", FedAvg.revision + 1)
    assert by_other_code(run, made, source=False)


@pytest.mark.parametrize("network", ["gone_pkg.nets.Net", "gone.Net"])
def test_a_run_whose_network_is_gone_has_a_revision_without_its_source(network):
    run = Run.of(from_dict(VALUES)).replace(model=network)
    assert revision(run) == f"method {FedAvg.revision}, framework {REVISION}"


def test_records_without_a_revision_are_of_the_first(monkeypatch):
    run, old = Run.of(from_dict(VALUES)), {"environment": {}}
    assert not by_other_code(run, old)
    monkeypatch.setattr(FedAvg, "revision", 2)
    assert by_other_code(run, old)


TRIED = """
try:
    from . import beside_it
except ImportError:
    import beside_it
"""


def test_what_a_users_file_imports_from_its_folder_or_package_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = tmp_path / "own_package/deep/helper.py"
    write(tmp_path / "own_package/__init__.py", "")
    write(tmp_path / "own_package/mine.py", f"import os\nimport beside_it\nfrom .deep import helper\n{MINE}")
    write(tmp_path / "own_package/deep/__init__.py", "")
    write(tmp_path / "own_flat.py", f"import torch\nfrom beside_it import RATE\n{TRIED}{MINE}")
    for file in (helper, tmp_path / "beside_it.py", tmp_path / "unrelated.py"):
        write(file, "RATE = 1\n")
    runs = {name: Run.of(from_dict(VALUES | {"method": f"{name}.Mine"})) for name in ("own_package.mine", "own_flat")}
    before = {name: revision(run) for name, run in runs.items()}
    write(tmp_path / "unrelated.py", "RATE = 2\n")
    assert {name: revision(run) for name, run in runs.items()} == before
    write(helper, "RATE = 2\n")
    assert [revision(run) == before[name] for name, run in runs.items()] == [False, True]
    write(tmp_path / "beside_it.py", "RATE = 2\n")
    assert revision(runs["own_flat"]) != before["own_flat"]


def test_a_users_base_of_a_data_set_counts(tmp_path, monkeypatch):
    """Whatever folder it lies in."""
    base = tmp_path / "elsewhere/own_base_data.py"
    write(base, "from datamodules.digits import Digits\n\n\nclass Base(Digits):\n    pass\n")
    write(tmp_path / "own_data.py", "import own_base_data\n\n\nclass Mine(own_base_data.Base):\n    pass\n")
    for folder in (tmp_path, base.parent):
        monkeypatch.syspath_prepend(str(folder))
    run = Run.of(from_dict(VALUES | {"data": "own_data.Mine"}))
    before = revision(run)
    write(base, base.read_text() + "# changed\n")
    assert revision(run) != before
