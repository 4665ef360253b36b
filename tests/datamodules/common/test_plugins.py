"""Where other people's code is broken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from datamodules.common.plugins import users_place

LAYER, IMAGES = nn.Linear(2, 2), torch.zeros(1, 3)


def function(module: str, source: str) -> Callable[..., Any]:
    """A user's function ``run`` in the second line of a module."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(f"def run(*args):\n    {source}", f"{module}.py", "exec"), names)
    run: Callable[..., Any] = names["run"]
    return run


def error_of(function: Any, *args: Any) -> Exception:
    """Its traceback begins in the function."""
    with pytest.raises(Exception) as caught:
        function(*args)
    traceback = caught.value.__traceback__
    assert traceback is not None
    return caught.value.with_traceback(traceback.tb_next)


def test_the_innermost_line_of_a_users_code_counts() -> None:
    theirs, helpers = function("theirs", "return args[0](*args[1:])"), function("helpers", "return args[0]['labeled']")
    assert users_place(error_of(theirs, helpers, {})) == "helpers.py:2"
    assert users_place(error_of(theirs, LAYER, IMAGES)) == "theirs.py:2"


def test_without_any_a_method_of_ours_is_named_and_a_library_never() -> None:
    error = error_of(function("methods.mine", "return args[0](*args[1:])"), LAYER, IMAGES)
    assert users_place(error) == ""
    assert users_place(error, {"methods.mine"}) == "methods.mine.py:2"
