"""The rooms of the code: imports point one way."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("datamodules", "methods", "benchmark")
BASE = ("registry", "config")
RUNS = (*BASE, "federation", "runs")
ROOMS = {
    "datamodules": (),
    "methods": ("datamodules",),
    "registry": (),
    "config": ("registry",),
    "federation": BASE,
    "runs": ("config",),
    "suites": ("config", "runs"),
    "contract": ("registry", "federation"),
    "launch": RUNS,
    "report": ("config", "runs", "suites"),
    "api": (*RUNS, "suites", "launch", "report"),
    "board": (*RUNS, "suites", "launch", "report"),
    "commands": (*BASE, "runs", "suites", "launch", "report", "board"),
    "cli": ("registry", "runs", "launch", "commands"),
    "__main__": ("cli",),
    "perf": (*RUNS, "contract", "launch"),
}
"""Packages, then rooms of ``benchmark/``, from the bottom to the top: what each may import; rooms may all packages."""


@cache
def modules() -> dict[str, Path]:
    """All modules of the three packages, by dotted name."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """Who imports whom, anywhere in a file: at its top, in a function, or for its types alone."""
    files, found = modules(), set()
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file}: an import that is relative"
                inside = [f"{node.module}.{name}" for name in names]
                names = [full if full in files else str(node.module) for full in inside]
            found |= {(module, name) for name in names if name in files and name != module}
    return frozenset(found)


def room_of(module: str) -> str:
    """The package that a module lies in, or its folder of ``benchmark/``, or its own name there."""
    package, _, inside = module.partition(".")
    return (inside.partition(".")[0] or package) if package == "benchmark" else package


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    """``benchmark -> methods -> datamodules``, a room of ``benchmark/`` imports those below it, and nothing back."""
    allowed = {room, *ROOMS[room]} | (set() if room in PACKAGES else set(PACKAGES))
    assert [arrow for arrow in arrows() if room_of(arrow[0]) == room and room_of(arrow[1]) not in allowed] == []


def test_every_room_has_its_place() -> None:
    """All folders and files are listed, and a room stands above all that it may import."""
    assert {room_of(module) for module in modules()} - {"benchmark"} == set(ROOMS)
    order = list(ROOMS)
    for room, below in ROOMS.items():
        assert all(order.index(other) < order.index(room) for other in below), room
