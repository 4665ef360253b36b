"""A small run of every method, in numbers: code may move freely as long as these stay, and not without a new revision.

`switches.json` has further runs: a method, its arguments, and options of the data, in an entry each.

`python tests/golden_runs.py`, in a checkout, writes the numbers of methods whose revision, or the framework's, was
raised, of new methods, and of entries without numbers. It refuses numbers that moved without.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmark.registry import KINDS, find_class, known_names, path_of
from benchmark.runs.code_identity import REVISION
from federations import contract_federation, few_in, rounds_until
from methods import ablations
from methods.base import FedMethod

FILE = Path(__file__).parent / "golden" / "runs.json"
SWITCHES = FILE.with_name("switches.json")
TOLERANCE = 1e-6  # relative; processors differ by 1e-10


def names() -> list[str]:
    """All methods by name, and all ablations by dotted path."""
    found = pkgutil.iter_modules(ablations.__path__)
    modules = [importlib.import_module(f"methods.ablations.{one.name}") for one in found]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, FedMethod) and value.__module__ == module.__name__
    ]
    return known_names(KINDS["method"]) + sorted(map(path_of, classes))


def revision(name: str) -> list[int]:
    """The revisions of a method and of the framework."""
    return [find_class(name, KINDS["method"]).revision, REVISION]  # type: ignore[attr-defined]


def numbers(name: str, data: dict[str, Any] | None = None, **args: Any) -> list[float]:
    """Losses and accuracies of three rounds, and the last global model's projection on a fixed vector, in float64."""
    federation = contract_federation(name, few_in(**data) if data else None, precision="64-true", **args)
    rows = rounds_until(federation, federation.rounds)
    found = [float(row[key]) for row in rows for key in ("loss", "acc") if row.get(key) is not None]
    state = federation.method.state_dict()
    tensors = [state[key].double().flatten() for key in sorted(state) if state[key].is_floating_point()]
    whole = torch.cat(tensors)
    return [*found, float(whole @ torch.arange(len(whole), dtype=torch.float64).cos())]


def equal(these: list[float], those: list[float]) -> bool:
    """Whether all numbers agree within the tolerance."""
    if len(these) != len(those):
        return False
    return all(abs(one - other) <= TOLERANCE * (1 + abs(other)) for one, other in zip(these, those, strict=True))


def kept() -> dict[str, dict[str, Any]]:
    """The file's entries: ``revision`` and ``numbers`` by name."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return found


def switches() -> list[dict[str, Any]]:
    """The entries of ``switches.json``."""
    found: list[dict[str, Any]] = json.loads(SWITCHES.read_text())
    return found


def renewed(name: str, known: dict[str, Any], data: dict[str, Any] | None = None, **args: Any) -> dict[str, Any]:
    """An entry with the numbers of its revision, which move only with it."""
    entry = {"revision": revision(name), "numbers": numbers(name, data, **args)}
    if known.get("revision") != entry["revision"]:
        return known | entry
    if not equal(entry["numbers"], known["numbers"]):
        sys.exit(f"{name}: its numbers have moved, and its revision has not; nothing more is written")
    return known


def write_switches() -> None:
    """Write what is new there."""
    entries = [renewed(one["method"], one, one.get("data"), **one["args"]) for one in switches()]
    SWITCHES.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n")


def write() -> None:
    """Write what is new."""
    before = kept()
    after = {name: renewed(name, before.get(name, {})) for name in names()}
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(after[name])}" for name in after) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
    write_switches()
