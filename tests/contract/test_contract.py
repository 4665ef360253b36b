"""The contract over every method here, and what the methods of this repository owe beside it."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.contract import runs
from benchmark.contract.checks import CHECKS, parametrize_with_checks
from benchmark.contract.federations import contract_data
from benchmark.contract.test_contract import pytest_generate_tests, test_contract
from benchmark.registry import KINDS, find_class, own_names
from methods.base import Batch, FedMethod, LocalWork, Site

__all__ = ["pytest_generate_tests", "test_contract"]

ROOT = Path(__file__).resolve().parents[2]
METHOD = KINDS["method"]


@pytest.mark.parametrize("name", own_names(METHOD))
def test_docstring_names_its_sources(name: str) -> None:
    """It holds the table hyperparameter | paper | released code | here; published values have a paper with its year."""
    doc = inspect.getdoc(find_class(name, METHOD)) or ""
    rows = [line.strip("| ").split(" | ") for line in doc.splitlines() if line.startswith("| ")]
    assert rows, "there is no table of hyperparameters"
    assert [rows[0][0], rows[0][-1]] == ["hyperparameter", "here"]
    published = [cell for row in rows[1:] for cell in row[1:-1] if cell.strip(" -")]
    assert not published or re.search(r"\b(19|20)\d\d\b", doc), "name the paper with its year"


class Forgetful(FedMethod):
    """What it learnt from lies in an attribute that nobody keeps."""

    steps = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later steps count less."""
        self.steps += 1
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"]) / self.steps


class Shy(FedMethod):
    """Never certain enough, unless it is told to be."""

    views = {"labelled": {"x": "weak"}, "unlabelled": {"x": "weak"}}

    def __init__(self, model: nn.Module, certainty: float = 1.0, **base: Any) -> None:
        super().__init__(model, **base)

    def local_work(self, client: Site) -> LocalWork:
        """Counts the images that it would take."""
        index = client.data.unlabelled
        if len(index):
            keep = torch.full((len(index),), self.hparams.certainty < 1.0)
            client.report_pseudo_labels(index, torch.zeros_like(index), keep)
        return super().local_work(client)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of what is labelled."""
        x = batch["labelled"]["x"] if "labelled" in batch else batch["unlabelled"]["x"]
        y = batch["labelled"]["y"] if "labelled" in batch else self(x).argmax(dim=1)
        return F.cross_entropy(self(x), y)


class Told(Shy):
    """Says with which arguments its pseudo-labels flow, and what data it wants."""

    contract_args = {"certainty": 0.5}
    contract_data = {"pipeline": "pad_crop_flip"}


def test_checks_find_what_is_wrong() -> None:
    """State that is not registered breaks resuming; a method that selects nothing is told how to be checked."""
    with pytest.raises(AssertionError):
        runs.check_resume_is_exact(Forgetful)
    with pytest.raises(AssertionError, match="in `contract_args`, name arguments with which it does"):
        runs.check_pseudo_labels_flow(Shy)
    runs.check_pseudo_labels_flow(Told)
    assert contract_data(Told).hparams.pipeline == "pad_crop_flip"


def test_other_packages_loop_over_the_same_checks() -> None:
    """``parametrize_with_checks`` pairs every method with every check, under readable names."""
    mark = parametrize_with_checks("fedavg", Told)
    assert mark.args == (("method", "check"), [(m, c) for m in ("fedavg", Told) for c in CHECKS])
    assert {"fedavg-resume_is_exact", "Told-a_visit_is_a_fit"} <= set(mark.kwargs["ids"])
    assert len(CHECKS) == len(set(CHECKS))


def test_shared_code_names_no_method() -> None:
    """Framework and data code never mention a method by name."""
    names = own_names(METHOD)
    classes = [find_class(n, METHOD).__name__ for n in names]
    pattern = re.compile(r"\b(" + "|".join([*names, *classes]) + r")\b")
    for file in [*ROOT.glob("benchmark/**/*.py"), *ROOT.glob("datamodules/**/*.py"), *ROOT.glob("methods/parts/*.py")]:
        code = strip_prose(file.read_text())
        assert not pattern.search(code), f"{file.name} names a method: {pattern.search(code)}"


def test_base_class_alone_is_no_method() -> None:
    """Forgetting ``training_step`` says so."""
    with pytest.raises(NotImplementedError, match="must define training_step"):
        FedMethod(torch.nn.Identity()).training_step({}, 0)


def strip_prose(source: str) -> str:
    """Source without docstrings and comments."""
    return re.sub(r"#.*", "", re.sub(r'""".*?"""', "", source, flags=re.S))
