"""What arguments mean is found in docstrings, of the class and of its bases."""

from typing import Any, Literal

from benchmark.argument_help import Argument, described


class Tabled:
    """A base.

    | hyperparameter | paper | here |
    |---|---|---|
    | ``lr``, ``decay`` of the teacher | 0.1, 0.9 | as the paper |
    """

    def __init__(self, model: Any, lr: float = 0.1, decay: float | None = 0.9) -> None:
        pass


class Documented(Tabled):
    """A class whose arguments are described in several places.

    | hyperparameter | paper | here |
    |---|---|---|
    | ``decay`` | silent | 0.99 |

    Args:
        rule: how it
            goes.
    """

    def __init__(self, size: int, rule: Literal["a", "b"] | None = None, whole: bool = True, **base: Any) -> None:
        super().__init__(**base)


def test_arguments_are_described_by_the_docstrings_of_a_class_and_its_bases():
    assert described(Documented, "method") == {
        "size": Argument("int", "required", ""),
        "rule": Argument("{a,b} or null", "default null", "how it goes."),
        "whole": Argument("{true,false}", "default true", ""),
        "lr": Argument("float", "default 0.1", "``lr``, ``decay`` of the teacher: paper 0.1, 0.9; here as the paper"),
        "decay": Argument("float or null", "default 0.9", "paper silent; here 0.99"),
    }
