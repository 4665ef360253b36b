"""Names and classes, entry points of other packages among them."""

import sys

import pytest

from benchmark.config import from_dict, resolve
from benchmark.registry import KINDS, find_class, known_names, own_names
from datamodules.common.errors import ConfigError

METHOD = KINDS["method"]
CODE = """
from methods.fedavg import FedAvg

class Theirs(FedAvg):
    '''FedAvg by another name.'''
"""
POINTS = """
[fssl_bench.methods]
theirs = {package}:Theirs
"""


def test_a_method_of_another_package_has_a_short_name(install):
    """It is listed and found; a run is identified by its dotted path."""
    install("other_package", CODE, POINTS)
    assert "theirs" in known_names(METHOD) and "theirs" not in own_names(METHOD)
    assert find_class("theirs", METHOD).__qualname__ == "Theirs"
    config = resolve(from_dict({"method": "theirs", "data": "digits"}))
    assert config.method.class_path == "other_package.Theirs"
    with pytest.raises(ConfigError, match="unknown method 'theirz'; did you mean 'theirs'"):
        find_class("theirz", METHOD)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "method 'theirs' of the package 'broken_one' cannot be imported: ZeroDivisionError"),
        ("", "cannot be imported: module 'broken_one' has no attribute 'Theirs'"),
        ("class Theirs: ...", "'theirs' of the package 'broken_one' is not a subclass of methods.base.FedMethod"),
    ],
)
def test_a_broken_one_is_an_error_where_it_is_meant(install, code, message, monkeypatch):
    monkeypatch.delitem(sys.modules, "broken_one", raising=False)
    install("broken_one", code, POINTS)
    assert "theirs" in known_names(METHOD)
    with pytest.raises(ConfigError, match=message):
        find_class("theirs", METHOD)


def test_names_that_two_have(install):
    """Ours come first, others are told apart by their paths."""
    install("one_package", CODE, POINTS + "fedavg = {package}:Theirs\n")
    install("two_package", CODE, POINTS)
    assert find_class("fedavg", METHOD).__module__ == "methods.fedavg"
    with pytest.raises(ConfigError, match=r"'theirs' is ambiguous; name one of (one|two)_package\.Theirs, "):
        find_class("theirs", METHOD)


def test_bases_and_ablations_are_no_methods() -> None:
    """Neither is offered by a short name; an ablation is found by its path, under which records know it."""
    names = known_names(METHOD)
    assert {"fixmatch", "fl2", "semifl", "server_only"} <= set(names)
    assert not {"ablations", "pseudo_labels", "server_momentum", "labels_at_server", "static_norms"} & set(names)
    path = "methods.ablations.fl2.CATWithSAM"
    assert find_class(path, METHOD).__name__ == "CATWithSAM"
    assert from_dict({"method": path, "data": "digits"}).method.name == path
