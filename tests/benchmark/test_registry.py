"""Names and classes."""

import sys

import pytest

from benchmark.config import from_dict
from benchmark.registry import KINDS, find_class, known_names
from datamodules.common.errors import ConfigError

METHOD = KINDS["method"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "method 'broken_one.Theirs' cannot be imported: ZeroDivisionError"),
        ("", "cannot be imported: module 'broken_one' has no attribute 'Theirs'"),
        ("class Theirs: ...", "'broken_one.Theirs' is not a subclass of methods.base.FedMethod"),
    ],
)
def test_a_broken_class_is_an_error_where_it_is_meant(tmp_path, monkeypatch, code, message):
    monkeypatch.delitem(sys.modules, "broken_one", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_one.py").write_text(code)
    with pytest.raises(ConfigError, match=message):
        find_class("broken_one.Theirs", METHOD)


def test_bases_and_ablations_are_no_methods() -> None:
    """Neither is offered by a short name; an ablation is found by its path, under which records know it."""
    names = known_names(METHOD)
    assert {"fixmatch", "fl2", "semifl", "server_only"} <= set(names)
    assert not {"ablations", "pseudo_labels", "server_momentum", "labels_at_server", "static_norms"} & set(names)
    path = "methods.ablations.fl2.CATWithSAM"
    assert find_class(path, METHOD).__name__ == "CATWithSAM"
    assert from_dict({"method": path, "data": "digits"}).method.name == path
