"""Which code made a run: the version of the checkout, and the digest of what a method calculates with."""

import importlib
import subprocess

import pytest

from benchmark.runs import code_identity
from benchmark.runs.code_identity import source_digest
from methods.base import FedMethod


def test_the_record_says_that_there_was_no_git(monkeypatch, tmp_path):
    """A checkout without git on the PATH must not pass for the released version."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    released = code_identity.package_version()
    assert code_identity.code_version() == f"{released}-unknown (a checkout, and no git to ask)"
    (tmp_path / ".git").rmdir()
    assert code_identity.code_version() == released


def test_a_checkout_is_described_and_marked_if_its_code_differs(monkeypatch, tmp_path):
    def git(*command):
        who = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    code, page = tmp_path / "benchmark" / "run.py", tmp_path / "README.md"
    code.parent.mkdir()
    for file in (code, page):
        file.write_text("first\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "First")
    git("tag", "v1")
    page.write_text("second\n")
    assert code_identity.code_version() == "v1"
    code.write_text("second\n")
    assert code_identity.code_version() == "v1-dirty"


PLUGIN = """
from methods.fedavg import FedAvg


class Mine(FedAvg):
    \"\"\"First words.\"\"\"

    def training_step(self, batch, batch_idx):
        return STEP
"""


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (("First", "Other"), True),
        (("return", "# why\n        return"), True),
        (("    def", '    uploads_needed = "mean"\n\n    def'), True),
        (("    def", "    uses_oracle = True\n\n    def"), False),
        (("STEP", "2 * STEP"), False),
    ],
)
def test_the_digest_of_a_methods_code_knows_what_runs(tmp_path, monkeypatch, change, same):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plugin_before.py").write_text(PLUGIN)
    (tmp_path / "plugin_after.py").write_text(PLUGIN.replace(*change))
    before, after = (importlib.import_module(f"plugin_{name}").Mine for name in ("before", "after"))
    assert (source_digest(before, FedMethod) == source_digest(after, FedMethod)) is same
    assert source_digest(before, FedMethod) != source_digest(before.__base__, FedMethod)
