"""Where other people's code is broken."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from datamodules.common.plugins import users_place

SOURCES = {
    "theirs": """
        def run(function, *args):
            return function(*args)
        """,
    "helpers": """
        def pick(batch):
            return batch["labeled"]
        """,
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two modules of a user's own."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in SOURCES.items():
        (tmp_path / f"{name}.py").write_text("\n".join(line[8:] for line in source.splitlines()))
    return {name: importlib.import_module(name) for name in SOURCES}


def error_of(function: Any, *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


def test_the_innermost_line_of_a_users_code_counts(modules: dict[str, Any]) -> None:
    theirs, helpers = modules["theirs"], modules["helpers"]
    assert users_place(error_of(theirs.run, helpers.pick, {})) == f"{helpers.__file__}:3"
    shapes = error_of(theirs.run, nn.Linear(2, 2), torch.zeros(1, 3))
    assert users_place(shapes) == f"{theirs.__file__}:3"


def test_without_any_a_method_of_ours_is_named_and_a_library_never(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, images = nn.Linear(2, 2), torch.zeros(1, 3)
    monkeypatch.setitem(globals(), "__name__", "methods.mine")
    error = error_of(layer, images)
    assert users_place(error) == ""
    place, _, line = users_place(error, {"methods.mine"}).rpartition(":")
    assert (place, line.isdigit()) == (__file__, True)
