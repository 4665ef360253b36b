"""Which code made a run: the version of the checkout, and the revision of its numbers."""

import json
import os
import subprocess

import pytest

from benchmark import ROOT
from benchmark.config import Run, from_dict
from benchmark.federation import REVISION
from benchmark.runs import code_identity
from benchmark.runs.code_identity import by_other_code, by_other_revision, revision
from benchmark.runs.records import revisions
from methods.fedavg import FedAvg


def checkout(monkeypatch, folder, *names):
    """A repository with these files, committed and tagged v1."""

    def git(*command):
        who = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        subprocess.run(["git", *who, *command], cwd=folder, check=True, capture_output=True, env=plain)

    monkeypatch.setattr(code_identity, "ROOT", folder)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("first\n")
    for command in (("init",), ("add", "."), ("commit", "-m", "First"), ("tag", "v1")):
        git(*command)


def test_the_record_says_that_there_was_no_git(monkeypatch, tmp_path):
    """A checkout without git on the PATH must not pass for the released version."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    released = code_identity.package_version()
    assert code_identity.code_version() == f"{released}-unknown (a checkout, and no git to ask)"
    (tmp_path / ".git").rmdir()
    assert code_identity.code_version() == released


def test_a_checkout_is_described_and_marked_if_its_code_differs_and_the_changes_are_told_as_a_patch(
    monkeypatch, tmp_path
):
    """New files too; neither other files nor another repository that the environment names count."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    checkout(monkeypatch, tmp_path, "benchmark/run.py", "README.md")
    beside = tmp_path / "benchmark" / "suites" / "tuned" / "news-board.yaml"
    beside.parent.mkdir(parents=True)
    beside.write_text("a rate\n")
    (tmp_path / "README.md").write_text("second\n")
    assert (code_identity.code_version(), code_identity.uncommitted()) == ("v1", "")
    (tmp_path / "benchmark" / "run.py").write_text("second\n")
    (tmp_path / "benchmark" / "new.py").write_text("third\n")
    patch = code_identity.uncommitted()
    assert code_identity.code_version() == "v1-dirty"
    assert "-first\n+second\n" in patch and "+third\n" in patch and "README" not in patch and "rate" not in patch


def test_a_new_file_is_part_of_the_patch_whatever_its_name_and_encoding(monkeypatch, tmp_path):
    checkout(monkeypatch, tmp_path, "benchmark/run.py")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "Müller.txt").write_bytes(b"M\xfcller\n")
    assert "+M\ufffdller\n" in code_identity.uncommitted()


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
    values = {"method": "fedavg", "data": "digits", "model": "mlp"}
    assert revision(Run.of(from_dict(values))) == f"method {FedAvg.revision}, framework {REVISION}"
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "from torch import nn\n\n\ndef flat(num_classes, image_size=32):\n    return nn.Identity()\n" + MINE
    (tmp_path / "own_parts.py").write_text(own)
    run = Run.of(from_dict(values | {slot: name}))
    made = {"environment": {"revisions": [revision(run)]}}
    assert not by_other_code(run, made)
    (tmp_path / "own_parts.py").write_text(own.replace("0.1", "0.2"))
    assert by_other_code(run, made) and not by_other_revision(run, made)
    monkeypatch.setattr(FedAvg, "revision", FedAvg.revision + 1)
    assert by_other_revision(run, made)


@pytest.mark.parametrize("network", ["gone_pkg.nets.Net", "gone.Net"])
def test_a_run_whose_network_is_gone_has_a_revision_without_its_source(network):
    run = Run.of(from_dict({"method": "fedavg", "data": "digits", "model": "mlp"}))
    run = run.replace(model=network)
    assert revision(run) == f"method {FedAvg.revision}, framework {REVISION}"


def test_records_without_a_revision_are_of_the_first(monkeypatch):
    run, old = Run.of(from_dict({"method": "fedavg", "data": "digits", "model": "mlp"})), {"environment": {}}
    assert not by_other_code(run, old)
    monkeypatch.setattr(FedAvg, "revision", 2)
    assert by_other_code(run, old)


def test_no_committed_record_is_of_other_code():
    paths = sorted((ROOT / "results" / "runs").iterdir())
    records = [json.loads((path / "record.json").read_text()) for path in paths]
    assert len(records) > 600
    assert {made for record in records for made in revisions(record)} == {"method 1, framework 1"}
