"""Which code made a run: the version of the checkout, and the digest of what a method calculates with."""

import importlib
import subprocess
import sys

import pytest

from benchmark.config import Run, from_dict
from benchmark.runs import code_identity
from benchmark.runs.code_identity import method_files, method_source, own_files, source_digest
from benchmark.submission.folder import importable
from methods.base import FedMethod
from methods.fedavg import FedAvg


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
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
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


HELPED = """
from methods.fedavg import FedAvg
from rates import HALF
from {package}losses import scaled


class Mine(FedAvg):
    def training_step(self, batch, batch_idx):
        import late

        return scaled(super().training_step(batch, batch_idx)) * HALF * late.ONE
"""


@pytest.mark.parametrize("package", ["", "."])
@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("rates", "HALF = 1 / 2", False),
        ("rates", "HALF = 0.5  # of the whole", True),
        ("losses", "from deeper import scaled", True),
        ("deeper", "def scaled(loss):\n    return 2 * loss", False),
        ("late", "ONE = 1.0", False),
        ("unrelated", "HALF = 0.25", True),
    ],
)
def test_the_users_modules_that_a_method_imports_count_too(tmp_path, package, name, text, same):
    """Also what those import, relative imports, and imports inside functions."""
    files = {
        "mine": HELPED.format(package=package),
        "rates": "HALF = 0.5",
        "losses": "from deeper import scaled",
        "deeper": "def scaled(loss):\n    return loss",
        "late": "ONE = 1",
        "unrelated": "HALF = 0.5",
    }
    if package:
        files["__init__"] = ""
    inside = ("__init__", "mine", "losses") if package else ()

    def digest(folder, files):
        for module, source in files.items():
            path = folder / ("pack" if module in inside else "") / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        with importable(folder):
            cls = importlib.import_module("pack.mine" if package else "mine").Mine
            return source_digest(cls, FedMethod)

    before, after = digest(tmp_path / "a", files), digest(tmp_path / "b", files | {name: text})
    assert (before == after) is same


def test_installed_packages_do_not_count(tmp_path, monkeypatch):
    """Nor does this repository: the version of the code stands for it."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "uses_others.py").write_text("import lightning, installed_helper, lies_beside, not_there\n" + PLUGIN)
    (tmp_path / "lies_beside.py").write_text("")
    (installed / "installed_helper.py").write_text("")
    (tmp_path / "not_there.py").write_text("")
    cls = importlib.import_module("uses_others").Mine
    (tmp_path / "not_there.py").unlink()
    importlib.invalidate_caches()
    del sys.modules["not_there"]
    own = {name for name in own_files(cls, FedMethod) if not name.startswith("methods.")}
    assert own == {"uses_others", "lies_beside"}


NETWORK = """
from torch import nn


def flat(num_classes, image_size=32):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, num_classes))
"""


@pytest.mark.parametrize(("slot", "name"), [("model", "own_parts.flat"), ("data", "own_parts.Mine")])
def test_an_own_network_or_data_module_counts(tmp_path, monkeypatch, slot, name):
    """For a method of this repository too; where all parts are the repository's, the digest is the method's alone."""
    values = {"method": "fedavg", "data": "digits", "model": "mlp"}
    alone = method_source(Run.of(from_dict(values)))
    assert alone == source_digest(FedAvg, FedMethod)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "from datamodules.digits import Digits\n\n\nclass Mine(Digits):\n    pass\n" + NETWORK
    (tmp_path / "own_parts.py").write_text(own)
    run = Run.of(from_dict(values | {slot: name}))
    assert method_source(run) != alone
    assert "own_parts" not in method_files(run)
