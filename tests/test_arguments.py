"""Every argument of a method and of a data module has a user: a row of a suite sets it, or somebody does by hand."""

import inspect
from functools import cache
from itertools import product
from typing import Any

import pytest

from benchmark.config import from_dict
from benchmark.registry import KINDS, find_class, own_names, parameters
from benchmark.suites import suite
from papers import load

TUNED = {
    "cba_tau": "threshold: the base of CBAFed's class-balanced ones",
    "confidence_gate": "threshold: how sure FedIRM's teacher must be",
    "entropy_gate": "threshold: how unsure it may be",
    "threshold": "threshold: of pseudo-labels",
    "temperature": "temperature: of the teacher's targets",
    "ema_decay": "momentum: of the teacher",
    "target_decay": "momentum: of FedCon's target network",
    "gamma": "momentum: of FedDB's average prediction",
    "res_skip": "epochs: between residual connections; five belong to runs as long as the paper's",
}
"""Arguments of methods that no suite sets, but whoever tunes the method does: of what kind each is, and of what."""

BY_USERS = {
    "file": "images of one's own: where they are (docs/data.md)",
    "root": "images of one's own: where they are (docs/data.md)",
    "clients_in": "images of one's own: whose they are (docs/data.md)",
    "unlabelled_only": "images of one's own: some of them have no label (docs/data.md)",
    "test_fraction": "images of one's own: how many are held out (docs/data.md)",
    "partition_file": "a split of one's own, or one that was exported (docs/usage/runs.md)",
    "texts_per_class": "texts are slow to encode: fewer are a quick look (docs/data.md)",
}
"""Arguments of data modules that no suite here sets, and why somebody else does."""

NOT_IN_A_ROW = {"method": TUNED, "data": BY_USERS}


@cache
def named(path: str, slot: str) -> type:
    return find_class(path, KINDS[slot])


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


@pytest.fixture(scope="module")
def rows() -> set[tuple[type, str]]:
    """Arguments to which some row gives another value than its default, each with the base that it comes from.

    Rows of all suites at all scales count, with what their tuning sets; a row of an ablation is one of its bases, too.
    """
    users: set[tuple[type, str]] = set()
    for paper in suite.available():
        loaded = load(paper)
        for scale, spec in loaded.spec.scales.items():
            trials = [None, spec.tuning] if spec.tuning else [None]
            for row, last in product(loaded.rows, trials):
                config = from_dict(loaded.values(row, scale, last=last))
                for slot in KINDS:
                    given = getattr(config, slot)
                    cls, args = named(given.class_path, slot), given.init_args.items()
                    users |= {(origin(cls, name), name) for name, value in args if value != default(cls, name)}
    return users


@pytest.mark.parametrize("slot", NOT_IN_A_ROW)
def test_every_argument_has_a_user(slot: str, rows: set[tuple[type, str]]) -> None:
    """A row of a suite sets it (a conflict of paper and code has such a row), or the lists above say who does."""
    kind = KINDS[slot]
    nobody = {
        argument
        for cls in (named(name, slot) for name in own_names(kind))
        for argument in parameters(cls)
        if argument not in kind.supplied and (origin(cls, argument), argument) not in rows
    }
    assert nobody == set(NOT_IN_A_ROW[slot])
