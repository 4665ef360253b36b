"""The contract over every method here, and what the methods of this repository owe beside it."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmark.contract.checks import CHECKS, Check, parametrize_with_checks
from benchmark.contract.federations import Subject
from benchmark.registry import KINDS, find_class, known_names
from datamodules.common.errors import ConfigError
from methods.base import FedMethod
from planted_faults.training import Idle

ROOT = Path(__file__).resolve().parents[2]
METHOD = KINDS["method"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every check meets every method that ``--method`` names, or all; a name that is none ends the collection."""
    if {"method", "check"} <= set(metafunc.fixturenames):
        methods = metafunc.config.getoption("method") or known_names(METHOD)
        for name in methods:
            find_class(name, METHOD)
        mark = parametrize_with_checks(*methods)
        metafunc.parametrize(*mark.args, **mark.kwargs)


def test_contract(method: str, check: Check) -> None:
    """A method keeps what it owes."""
    check(method)


def test_a_misspelt_method_is_one_error() -> None:
    config = SimpleNamespace(getoption=lambda name: ["fedvag"])
    with pytest.raises(ConfigError, match="unknown method 'fedvag'; did you mean 'fedavg'"):
        pytest_generate_tests(cast(Any, SimpleNamespace(fixturenames=["method", "check"], config=config)))


@pytest.mark.parametrize("name", known_names(METHOD))
def test_docstring_names_its_sources(name: str) -> None:
    """It holds the table hyperparameter | paper | released code | here; published values have a paper with its year."""
    doc = inspect.getdoc(find_class(name, METHOD)) or ""
    rows = [line.strip("| ").split(" | ") for line in doc.splitlines() if line.startswith("| ")]
    assert rows, "there is no table of hyperparameters"
    assert [rows[0][0], rows[0][-1]] == ["hyperparameter", "here"]
    published = [cell for row in rows[1:] for cell in row[1:-1] if cell.strip(" -")]
    assert not published or re.search(r"\b(19|20)\d\d\b", doc), "name the paper with its year"


class Told(Idle):
    """Says with which arguments its pseudo-labels flow, and what data it wants."""

    contract_args = {"threshold": 0.6}
    contract_data = {"pipeline": "randaugment_uniform"}


def test_a_method_may_say_how_it_is_checked() -> None:
    """With other arguments and data than usual."""
    with pytest.raises(AssertionError, match="in `contract_args`, name arguments with which it does"):
        CHECKS["pseudo_labels_flow"](Idle)
    CHECKS["pseudo_labels_flow"](Told)
    assert Subject(Told).data().hparams.pipeline == "randaugment_uniform"


def test_shared_code_names_no_method() -> None:
    """Framework and data code never mention a method by name, but in docstrings and comments."""
    names = known_names(METHOD)
    classes = [find_class(n, METHOD).__name__ for n in names]
    pattern = re.compile(r"\b(" + "|".join([*names, *classes]) + r")\b")
    for file in [*ROOT.glob("benchmark/**/*.py"), *ROOT.glob("datamodules/**/*.py"), *ROOT.glob("methods/parts/*.py")]:
        code = re.sub(r"#.*", "", re.sub(r'""".*?"""', "", file.read_text(), flags=re.S))
        assert not pattern.search(code), f"{file.name} names a method: {pattern.search(code)}"


def test_base_class_alone_is_no_method() -> None:
    """Forgetting ``training_step`` says so."""
    with pytest.raises(NotImplementedError, match="must define training_step"):
        FedMethod(torch.nn.Identity()).training_step({}, 0)
