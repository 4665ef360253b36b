"""Types of arguments: values converted to them, and errors that name what does not fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmark.arguments import accepts, parameters, type_in_words, typed_args, types_of
from datamodules.common.errors import ConfigError


class Base:
    def __init__(self, model, lr: float = 0.1, sizes: tuple[int, int] = (3, 5)) -> None:
        pass


class Mine(Base):
    def __init__(self, *, rule: Literal["a", "b"] | None = None, where: Path = Path("x"), **base: Any) -> None:
        super().__init__(**base)


def test_arguments_of_a_class_are_those_of_its_bases_too():
    assert parameters(Mine) == {"rule": False, "where": False, "model": True, "lr": False, "sizes": False}
    found = types_of(Mine, frozenset({"where"}))
    assert list(found) == ["rule", "model", "lr", "sizes"]
    assert (found["lr"], found["sizes"]) == (float, tuple[int, int])


def test_values_are_converted_to_their_types_or_to_plain_data():
    given = {"lr": "1e-2", "sizes": [1, 2], "model": 1}
    assert typed_args(Mine, given, "x", plain=False) | {"where": None} == {
        "rule": None, "where": None, "model": 1, "lr": 0.01, "sizes": (1, 2)
    }  # fmt: skip
    assert typed_args(Mine, given, "x")["sizes"] == [1, 2] and typed_args(Mine, given, "x")["where"] == "x"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 1, "rule": "c", "sizes": [1, 2]}, r"method \(Mine\): --method.rule c: expected {a,b} or null$"),
        ({"lr": 1, "sizes": [1, "two"]}, r"method \(Mine\): --method.sizes \[1, 'two'\]: expected tuple\[int, int\]$"),
        ({"lr": None}, r"method \(Mine\): --method.lr null: expected float$"),
        ({"rul": "a"}, "unknown method argument 'rul'; did you mean 'rule'"),
    ],
)
def test_an_error_names_the_argument_that_does_not_fit(values, message):
    with pytest.raises(ConfigError, match=message):
        typed_args(Mine, values, "method")


def test_what_one_call_gives_or_changes_does_not_reach_another():
    first = typed_args(Mine, {"lr": 0.5, "rule": "b"}, "x", {"model"}, plain=False)
    second = typed_args(Mine, {}, "x", {"model"}, plain=False)
    assert (first["lr"], first["rule"]) == (0.5, "b") and (second["lr"], second["rule"]) == (0.1, None)
    assert list(first) == list(second) == ["rule", "where", "lr", "sizes"]
    typed_args(Lists, {"rates": [1.0]}, "x", plain=False)["rates"].append(2.0)
    typed_args(Lists, {}, "x", plain=False)["rates"].append(2.0)
    assert typed_args(Lists, {"rates": [1.0]}, "x") == {"rates": [1.0]} and typed_args(Lists, {}, "x") == {"rates": []}


class Lists:
    def __init__(self, rates: list[float] = []) -> None:  # noqa: B006
        pass


@dataclass
class Part:
    width: int = 3
    depth: int = 2


class WithPart:
    def __init__(self, part: Part = Part(), lr: float = 0.1) -> None:  # noqa: B008
        pass


def test_an_argument_that_is_an_object_keeps_the_defaults_of_its_parts():
    found = typed_args(WithPart, {"part": {"width": "7"}}, "x", plain=False)
    assert (found["part"].width, found["part"].depth, found["lr"]) == (7, 2, 0.1)


class FromFile:
    def __init__(self, file: str, clients: int = 10, channels: Literal[1, 3] = 3) -> None:
        pass


def test_an_argument_without_default_is_not_asked_for_where_another_is_looked_at():
    """The wrong argument is named, not the first; a value alone is taken or not."""
    with pytest.raises(ConfigError, match=r"--data\.channels 2: expected \{1,3\}$"):
        typed_args(FromFile, {"clients": 3, "file": "x", "channels": 2}, "data")
    assert accepts(FromFile, "clients", "3") and not accepts(FromFile, "clients", "3,5")
    assert accepts(FromFile, "file", "x")


@pytest.mark.parametrize(
    ("hint", "text"),
    [(Any, "any"), (int | None, "int or null"), (bool, "{true,false}"), (list[float], "list[float]")],
)
def test_types_are_written_as_the_command_line_has_them(hint, text):
    assert type_in_words(hint) == text
