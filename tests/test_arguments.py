"""Every argument of a method and of a data module has a user: a row of a suite sets it, or somebody does by hand."""

import inspect
from functools import cache
from typing import Any

import pytest
import torch

from benchmark.registry import KINDS, ClassSpec, build, find_class, own_names, parameters
from benchmark.suites import suite
from datamodules.common.errors import ConfigError
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

KINDS_OF_TUNING = {"threshold", "epochs", "momentum", "temperature"}
NOT_IN_A_ROW = {"method": TUNED, "data": BY_USERS}
CLASSES = [(slot, name) for slot in NOT_IN_A_ROW for name in own_names(KINDS[slot])]


def arguments(slot: str, name: str) -> list[str]:
    """What a configuration may give to a class, the arguments of its bases included."""
    kind = KINDS[slot]
    return [argument for argument in parameters(find_class(name, kind)) if argument not in kind.supplied]


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
def rows_that_set(slot: str) -> dict[tuple[type, str], str]:
    """The first row that gives an argument another value than its default, by where the argument comes from.

    Rows of all suites at all scales count, with what their tuning sets; a row of an ablation is one of its bases, too.
    """
    users: dict[tuple[type, str], str] = {}
    named = cache(lambda path: find_class(path, KINDS[slot]))
    for paper in suite.available():
        loaded = load(paper)
        for scale, spec in loaded.spec["scales"].items():
            for row in (row for row in loaded.rows if not row.minus and not row.pending):
                for last in [None, spec["tuning"]] if "tuning" in spec else [None]:
                    given = loaded.values(row, scale, last=last)[slot]
                    cls = named(given["class_path"])
                    for name, value in given["init_args"].items():
                        if value != default(cls, name):
                            users.setdefault((origin(cls, name), name), f"{paper}, {scale}: {row.name}")
    return users


def by_rows(slot: str, name: str) -> dict[str, str | None]:
    """Each argument of a class with a row that sets it; ``None``: there is none."""
    cls = find_class(name, KINDS[slot])
    return {argument: rows_that_set(slot).get((origin(cls, argument), argument)) for argument in arguments(slot, name)}


@pytest.mark.parametrize(("slot", "name"), CLASSES)
def test_every_argument_has_a_user(slot: str, name: str) -> None:
    """An argument that nobody sets goes, or a row of a suite sets it (a conflict of paper and code has such a row)."""
    users = {argument: row or NOT_IN_A_ROW[slot].get(argument) for argument, row in by_rows(slot, name).items()}
    listed = "\n".join(f"  {argument}: {who or 'NOBODY'}" for argument, who in users.items())
    nobody = {argument for argument, who in users.items() if who is None}
    assert not nobody, f"{name}: {', '.join(sorted(nobody))} are set by nobody\n{listed}"


@pytest.mark.parametrize("slot", NOT_IN_A_ROW)
def test_only_what_no_row_sets_is_listed_by_hand(slot: str) -> None:
    """Where an argument of some class is in no row, the lists above say who sets it; they name no other one."""
    rows = [by_rows(slot, name) for kind, name in CLASSES if kind == slot]
    assert set(NOT_IN_A_ROW[slot]) == {argument for found in rows for argument, row in found.items() if row is None}


def test_what_is_tuned_is_of_a_kind_that_people_tune() -> None:
    """No switch is among them."""
    assert {why.partition(":")[0] for why in TUNED.values()} == KINDS_OF_TUNING
    classes = [find_class(name, KINDS["method"]) for name in own_names(KINDS["method"])]
    defaults = [default(cls, name) for cls in classes for name in TUNED if name in parameters(cls)]
    assert not [value for value in defaults if isinstance(value, bool)]


def test_a_network_without_features_is_told_what_to_be() -> None:
    """FedCon asks its network for the number of its features, which a network of torch alone does not know."""

    class Bare(torch.nn.Sequential):
        pass

    with pytest.raises(ConfigError, match="feature_dim"):
        build(ClassSpec("fedcon", {}), "method", model=Bare(torch.nn.Flatten(), torch.nn.Linear(3, 10)))
