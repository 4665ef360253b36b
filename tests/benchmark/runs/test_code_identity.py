"""Which code made a run: the version of the checkout, and the digest of what a method calculates with."""

import importlib
import sys

import pytest

from benchmark.runs import code_identity
from benchmark.runs.code_identity import source_digest
from methods.base import FedMethod


def test_the_record_says_that_there_was_no_git(monkeypatch, tmp_path):
    """A checkout without git on the PATH must not pass for the released version."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(code_identity, "version", lambda name: "0.1.0")
    assert code_identity.code_version() == "0.1.0-unknown (a checkout, and no git to ask)"
    (tmp_path / ".git").rmdir()
    assert code_identity.code_version() == "0.1.0"


def test_a_checkout_is_described_and_marked_if_it_differs(monkeypatch, tmp_path):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(code_identity, "ROOT", tmp_path)
    for changes, expected in (("", "v1-3-gabc"), (" M benchmark/run.py", "v1-3-gabc-dirty")):
        answers = {"describe": "v1-3-gabc", "status": changes}
        monkeypatch.setattr(code_identity, "_git", lambda *command, answers=answers: answers[command[0]])
        assert code_identity.code_version() == expected


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
    for name in ("plugin_before", "plugin_after"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "plugin_before.py").write_text(PLUGIN)
    (tmp_path / "plugin_after.py").write_text(PLUGIN.replace(*change))
    before, after = (importlib.import_module(f"plugin_{name}").Mine for name in ("before", "after"))
    assert (source_digest(before, FedMethod) == source_digest(after, FedMethod)) is same
    assert source_digest(before, FedMethod) != source_digest(before.__base__, FedMethod)
