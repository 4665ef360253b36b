"""Every argument of a method has a user: a row of a suite sets it, or whoever tunes the method does."""

import inspect
from functools import cache
from typing import Any

import pytest

from benchmark.arguments import parameters
from benchmark.registry import KINDS, find_class, own_names
from benchmark.suites import suite

METHOD = KINDS["method"]

TUNED = {
    "lr": "rate",
    "creg_lr": "rate",
    "freg_lr": "rate",
    "gpt_lr": "rate",
    "momentum": "momentum",
    "reset_momentum": "momentum",
    "gamma": "momentum",
    "ema_decay": "momentum",
    "target_decay": "momentum",
    "weight_decay": "weight",
    "w_cs": "weight",
    "lambda_u": "weight",
    "lambda_s": "weight",
    "lambda_i": "weight",
    "lambda_a": "weight",
    "lambda_l1": "weight",
    "lambda_l2": "weight",
    "kappa": "weight",
    "threshold": "threshold",
    "cba_tau": "threshold",
    "confidence_gate": "threshold",
    "entropy_gate": "threshold",
    "clip_norm": "threshold",
    "rho": "radius",
    "temperature": "temperature",
    "batch_size": "batch size",
    "min_batch": "batch size",
    "eval_batch": "batch size",
    "server_batch_size": "batch size",
    "unlabelled_bs": "batch size",
    "local_epochs": "epochs",
    "res_skip": "epochs",
    "server_epochs": "epochs",
}
"""What users tune whether or not a suite does, and of what kind it is; everything else needs a row."""

WHAT_IS_TUNED = {
    "rate",
    "weight",
    "threshold",
    "batch size",
    "epochs",
    "momentum",
    "ramp",
    "temperature",
    "radius",
}


def arguments(cls: type) -> list[str]:
    """What a configuration may give to a method, the arguments of its bases included."""
    return [name for name in parameters(cls) if name not in METHOD.supplied]


@cache
def origin(cls: type, argument: str) -> type:
    """The base that brought an argument in; classes below it at most change its default."""
    declaring = [c for c in cls.__mro__ if argument in inspect.signature(vars(c).get("__init__", object)).parameters]
    return declaring[-1]


@cache
def default(cls: type, argument: str) -> Any:
    """The default of an argument, as the class has it."""
    signatures = [inspect.signature(vars(c)["__init__"]).parameters for c in cls.__mro__ if "__init__" in vars(c)]
    return next(known[argument].default for known in signatures if argument in known)


@cache
def rows_that_set() -> dict[tuple[type, str], str]:
    """The first row that gives an argument another value than its default, by where the argument comes from.

    Rows of all suites at all scales count, with what their tuning sets; a row of an ablation is one of its bases, too.
    """
    users: dict[tuple[type, str], str] = {}
    named = cache(lambda path: find_class(path, METHOD))
    for paper in suite.available():
        loaded = suite.load(paper)
        for scale, spec in loaded.spec["scales"].items():
            for row in (row for row in loaded.rows if not row.minus and not row.pending):
                for last in [None, spec["tuning"]] if "tuning" in spec else [None]:
                    method = loaded.values(row, scale, last=last)["method"]
                    cls = named(method["class_path"])
                    for name, value in method["init_args"].items():
                        if value != default(cls, name):
                            users.setdefault((origin(cls, name), name), f"{paper}, {scale}: {row.name}")
    return users


def user(cls: type, argument: str) -> str | None:
    """Who sets an argument; ``None``: nobody."""
    return rows_that_set().get((origin(cls, argument), argument)) or TUNED.get(argument)


@pytest.mark.parametrize("method", own_names(METHOD))
def test_every_argument_has_a_user(method: str) -> None:
    """An argument that nobody sets goes, or a row of a suite sets it (a conflict of paper and code has such a row)."""
    cls = find_class(method, METHOD)
    users = {name: user(cls, name) for name in arguments(cls)}
    listed = "\n".join(f"  {name}: {who or 'NOBODY'}" for name, who in users.items())
    nobody = {name for name, who in users.items() if who is None}
    assert not nobody, f"{method}: {', '.join(sorted(nobody))} are set by nobody\n{listed}"


def test_what_is_tuned_is_there() -> None:
    """Each of them is an argument of some method, of a kind that people tune."""
    there = {name for method in own_names(METHOD) for name in arguments(find_class(method, METHOD))}
    assert set(TUNED) <= there
    assert set(TUNED.values()) <= WHAT_IS_TUNED
