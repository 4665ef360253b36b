"""Arguments of classes: types, values converted to them, meanings, and errors that name what does not fit."""

from pathlib import Path
from typing import Any, Literal

import pytest

from benchmark.arguments import accepts, converted, described, parameters, type_in_words, typed_args
from datamodules.common.errors import ConfigError


class Base:
    """A base.

    | hyperparameter | paper | here |
    |---|---|---|
    | ``lr``, ``decay`` of the teacher | 0.1, 0.9 | as the paper |
    | ``sizes`` | silent | 3, 5 |
    """

    def __init__(self, model, lr: float = 0.1, sizes: tuple[int, int] = (3, 5)) -> None:
        pass


class Mine(Base):
    """A class with a base.

    Args:
        rule: how it
            goes.
    """

    def __init__(
        self,
        *,
        rule: Literal["a", "b"] | None = None,
        where: Path = Path("x"),
        rates: list[float] = [],  # noqa: B006
        **base: Any,
    ) -> None:
        super().__init__(**base)


def test_arguments_of_a_class_are_those_of_its_bases_too():
    known = parameters(Mine)
    assert list(known) == ["rule", "where", "rates", "model", "lr", "sizes"]
    assert known["model"].is_required and not known["rule"].is_required
    assert (known["lr"].type, known["sizes"].type, known["model"].type) == (float, tuple[int, int], Any)


def test_values_are_converted_to_their_types_or_to_plain_data():
    given = {"lr": "1e-2", "sizes": "[1, 2]", "where": "5", "rule": "null"}
    objects = {"lr": 0.01, "sizes": (1, 2), "where": Path("5"), "rule": None}
    assert converted(Mine, given, "x") == objects
    plain = {"rule": None, "where": "5", "rates": [], "lr": 0.01, "sizes": [1, 2]}
    assert typed_args(Mine, given, "x", {"model"}) == plain
    assert isinstance(converted(Mine, {"lr": 1}, "x")["lr"], float)
    typed_args(Mine, {}, "x")["rates"].append(2.0)
    assert typed_args(Mine, {}, "x")["rates"] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 1, "rule": "c"}, r"method \(Mine\): --method.rule c: expected {a,b} or null$"),
        ({"sizes": [1, "two"]}, r"--method.sizes \[1, 'two'\]: expected tuple\[int, int\]$"),
        ({"lr": None}, "--method.lr null: expected float$"),
        ({"lr": True}, "--method.lr True: expected float$"),
        ({"lr": float("nan")}, "--method.lr nan: expected float$"),
        ({"lr": {1}}, r"--method.lr \{1\}: expected float$"),
        ({"rul": "a"}, "unknown method argument 'rul'; did you mean 'rule'"),
    ],
)
def test_an_error_names_the_argument_that_does_not_fit(values, message):
    with pytest.raises(ConfigError, match=message):
        converted(Mine, values, "method")
    assert not any(accepts(Mine, name, value) for name, value in values.items() if (name, value) != ("lr", 1))


def test_arguments_are_described_by_the_docstrings_of_a_class_and_its_bases():
    assert described(Mine, "method") == {
        "rule": "how it goes.",
        "where": "",
        "rates": "",
        "lr": "``lr``, ``decay`` of the teacher: paper 0.1, 0.9; here as the paper",
        "sizes": "paper silent; here 3, 5",
    }


@pytest.mark.parametrize(
    ("hint", "text"),
    [(Any, "any"), (int | None, "int or null"), (bool, "{true,false}"), (list[float], "list[float]")],
)
def test_types_are_written_as_the_command_line_has_them(hint, text):
    assert type_in_words(hint) == text
