"""README and docs do what they say: examples run, commands parse, options exist."""

import inspect
import itertools
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark import cli
from benchmark.contract.checks import CHECKS
from benchmark.registry import KINDS, find_class, known_names
from benchmark.runs.records import read_record
from benchmark.suites.suite import load
from checkouts import committed, ignored, in_a_checkout
from datamodules.io.sources import CLASS_COUNTS
from methods.base import FedMethod

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
}
README, TUTORIAL = PAGES["README.md"], PAGES["docs/add-a-method.md"]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.S)


def executed(code: str, **names: Any) -> dict[str, Any]:
    """What a recipe leaves, given these names."""
    exec(code, names)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, whose modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(params=["MyMethod", "OwnTeacher"])
def example(request: pytest.FixtureRequest, here: Path) -> str:
    """A method of the tutorial, importable as a user's own module."""
    code = (ROOT / "docs/examples/own_teacher.py").read_text(encoding="utf-8")
    if request.param == "MyMethod":
        code, *_ = python_blocks("docs/add-a-method.md")
        assert len(code.splitlines()) <= 36
    module = f"example_{request.param.lower()}"
    (here / f"{module}.py").write_text(code)
    return f"{module}.{request.param}"


PROMISED = ("a_run_learns", "pseudo_labels_flow", "resume_is_exact", "clients_with_one_image_or_none")


@pytest.mark.parametrize("check", (*PROMISED, "hidden_labels_and_test_images_are_not_read"))
def test_example_keeps_the_contract(example: str, check: str) -> None:
    """The checks that the pages promise pass for it."""
    CHECKS[check](example)


def test_example_in_python_runs(here: Path) -> None:
    """With names, and with classes that no module has; it writes nothing."""
    found = runpy.run_path(str(ROOT / "docs/examples/federation.py"))
    assert found["result"].rounds["acc"].iloc[-1] > 30.0  # chance is 10
    assert found["own"].method.model.head.classifier.out_features == 2
    assert found["own"].readings.loc["final", "acc"] > 60.0  # chance is 50
    assert list(here.iterdir()) == []


def test_the_tutorial_names_what_a_constructor_may_ask_for() -> None:
    """Its table is what runs hand over."""
    section = TUTORIAL.partition("## What a constructor may ask for")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, flags=re.M)) == KINDS["method"].supplied
    for name in KINDS["data"].supplied:
        assert f"`{name}`" in section


def test_hooks_of_the_tutorial_exist() -> None:
    """Each is a method of the base class, with the arguments that the page gives it; others have defaults."""
    hooks = re.findall(r"^\|[^|]+\| `(\w+)\(([^)]*)\)` \|", TUTORIAL, flags=re.M)
    assert len(hooks) >= 13
    for name, arguments in hooks:
        given = [argument for argument in arguments.split(", ") if argument]
        parameters = list(inspect.signature(getattr(FedMethod, name)).parameters.values())[1:]
        assert [p.name for p in parameters if p.default is p.empty] == given, name


def test_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command line of README and docs is accepted by the program, up to the moment it would start."""
    seen: list[Any] = []
    for name, module in cli.MODULES.items():
        monkeypatch.setattr(module, "run", lambda *_, name=name: seen.append(name) or 0)
    commands = re.findall(
        r"^    (?:PYTHONPATH=\S+ )?(?:\.venv/bin/python -m benchmark|fssl-bench) ([^#\n]*)",
        "\n".join(PAGES.values()).replace("\\\n", " "),
        flags=re.M,
    )
    for command in commands:
        words = shlex.split(command)
        assert cli.main(words) == 0, command
        given = dict(itertools.pairwise(words))
        paper = given.get("--paper") or given.get("--suite", "mine.yaml")
        if not paper.endswith(".yaml"):
            load(paper).scale(given.get("--scale") or next(iter(load(paper).spec.scales)))
        for slot, kind in KINDS.items():
            if (name := given.get(f"--{slot}")) and "my_" not in name:
                find_class(name, kind)
    assert len(seen) == len(commands) >= 14


def test_tables_that_the_readme_makes_are_there() -> None:
    """The suite, scale and tables of its ``make bench-table1``."""
    lines = re.findall(r"make bench-table1 (.*)", README)
    for line in lines:
        given = {"PAPER": "rscfed", "SCALE": "quick"} | dict(re.findall(r"([A-Z]+)=(\S+)", line))
        suite = load(given["PAPER"])
        assert suite.scale(given["SCALE"]) and {*given["TABLES"].split(",")} <= {*suite.spec.tables}, line
    assert len(lines) >= 3


def fit(*options: str) -> None:
    assert cli.main(["fit", "--method", "fedavg", "--rounds", "2", "--devices", "1", "--wandb", "off", *options]) == 0


def folder_below(here: Path) -> Path:
    """That of the only run below ``results``."""
    (path,) = here.glob("results/runs/*")
    return path


def test_records_in_pandas_and_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipes give what the record says."""
    fit("--data", "digits", "--data.num_clients", "3")
    path = folder_below(here)
    record, (_, pandas, _) = read_record(path), python_blocks("docs/usage/python.md")
    _, weights = python_blocks("docs/usage/model.md")
    capsys.readouterr()
    found = executed(pandas)
    assert found["runs"]["final.acc"].tolist() == [record["final"]["acc"]]
    executed(weights.replace("<run>", path.name), **found)
    scores = eval(capsys.readouterr().out.splitlines()[-1])
    assert scores == pytest.approx({name: record["final"][name] for name in scores}, abs=1e-4)


def test_a_models_predictions(here: Path) -> None:
    """The recipe's images get names of classes; those of the data set get its accuracy."""
    found = executed(python_blocks("docs/usage/model.md")[0])
    result = found["result"]
    assert len(found["classes"]) == 2 and set(result.class_names) == set("0123456789")
    right = result.predict(result.data.test_images.numpy()) == result.data.test_labels.numpy()
    assert 100 * right.mean() == pytest.approx(result.readings.loc["final", "acc"], abs=1e-4) and right.mean() > 0.3


def test_parts_of_your_own(here: Path) -> None:
    """The page's network and views train in the page's command, and its module in a plain Trainer."""
    parts, central = python_blocks("docs/usage/parts.md")
    (here / "my_parts.py").write_text(parts)
    page = PAGES["docs/usage/parts.md"].replace("\\\n", " ")
    (command,) = re.findall(r"-m benchmark (fit .*)$", page, flags=re.M)
    assert cli.main([*command.split(), "--rounds", "2", "--devices", "1", "--wandb", "off"]) == 0
    record = read_record(folder_below(here))
    assert record["config"]["data"]["init_args"]["pipeline"] == "my_parts.my_views"
    assert executed(central)["trainer"].callback_metrics["acc"] > 0.4  # chance is 0.1


def test_rounds_behind_a_suite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipe prints a column per row that has been run."""
    monkeypatch.chdir(ROOT)
    (block,) = [block for block in python_blocks("docs/usage/python.md") if "load_rounds" in block]
    rows = executed(block)["rounds"].groupby("row")["seed"].nunique()
    assert len(rows) == 5 and set(rows) == {3}
    out = capsys.readouterr().out
    assert all(row.partition("/")[0] in out for row in (rows.index[0], rows.index[-1]))


def test_a_data_set_of_your_own(here: Path) -> None:
    """The page's class is described and trained on."""
    (code,) = [block for block in python_blocks("docs/data.md") if "class MyData" in block]
    (here / "my_data.py").write_text(code)
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 400), ("test", 50))}
    labels = {name.replace("x", "y"): np.arange(len(images)) % 2 for name, images in arrays.items()}
    np.savez(here / "my_data.npz", **arrays, **labels)
    own = ["--data", "my_data.MyData", "--data_dir", str(here)]
    assert cli.main(["describe", *own]) == 0
    fit(*own)
    assert list(read_record(folder_below(here))["data_sha256"]) == ["my_data.npz"]


def test_the_readme_says_what_the_board_resolves() -> None:
    """The figures of its paragraph are those of the board."""
    board = " ".join(README.partition("## A board")[2].partition("![")[0].split())
    lines = pd.read_csv(ROOT / "results/tables/news-board-leaderboard.csv")
    resolution = lines.groupby("setting")["resolution"].first().map("{:.1f}".format)
    told = re.search(r"a difference of (.*) points with labels at one client, (.*) at the server or (.*) at all", board)
    assert told is not None and told.groups() == tuple(resolution[["clients", "server", "all"]])
    assert set(lines["n"]) == {20} and "20 seeds" in board


def test_the_claims_are_those_of_the_claims_page() -> None:
    """Printed lead, ours with its interval, and verdict, as the page's blocks print them, in their order."""
    page = iter([line.split() for line in (ROOT / "docs/findings/claims.md").read_text(encoding="utf-8").splitlines()])
    table = README.partition("| claim | setting |")[2].partition("\n\n")[0].splitlines()[2:]
    for line in table:
        _, _, seeds, printed, ours, verdict = (cell.strip() for cell in line.strip("|").split("|"))
        wanted = [seeds, printed, *ours.split(" ± "), *verdict.split()]
        assert any(words[-len(wanted) :] == wanted for words in page), line
    assert len(table) >= 5


@in_a_checkout
def test_results_of_your_own_leave_a_checkout_clean() -> None:
    """Runs, tables of any scale and built pages are ignored; what was committed stays, without weights."""
    files = ["results/tables/rscfed-quick.md", "results/tables/mine-small.csv", "results/tables/.rscfed-paper.json"]
    files += [f"results/runs/mine-svhn-0123456789/{name}" for name in ("record.json", "weights.pt", "metrics.jsonl")]
    files += ["results/tuning/runs/a/record.json", "build/docs/index.html"]
    assert ignored(*files) == files
    assert committed("results/tables/*-quick*") == []
    kept = {file.name for file in committed("results/runs/*")}
    assert kept == {"record.json", "metrics.jsonl", "config.yaml"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("bench-table1", ["-m benchmark table --paper rscfed --scale quick"]),
        ("bench-table1 TABLES=1 METHODS=a,b", ["--tables 1", "--methods a,b"]),
        ("bench-table1 SEEDS=1,2 ARGS=--dry-run", ["--seeds 1,2", "--dry-run"]),
        ("perf-gpu METHODS=a,b ARGS=--trial", ["gpu:a:b", "--trial"]),
        ("test METHODS=a,b", ["tests/contract --method a --method b"]),
        *((f"{target} ARGS=--asked", ["--asked"]) for target in ("test", "types", "docs", "perf")),
    ],
)
def test_variables_reach_the_targets_of_the_makefile(target: str, words: list[str]) -> None:
    told = subprocess.run(["make", "-n", *target.split()], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(word in told for word in words)


def test_images_of_your_own(here: Path) -> None:
    """The page's file is written and trained on by the page's command."""
    (code,) = [block for block in python_blocks("docs/data.md") if "load_digits" in block]
    (command,) = re.findall(r"-m benchmark (fit .*--data npz .*)$", PAGES["docs/data.md"], flags=re.M)
    executed(code)
    assert cli.main([*command.split(), "--devices", "1", "--wandb", "off"]) == 0
    record = read_record(folder_below(here))
    assert list(record["data_sha256"]) == ["x.npz"] and record["measured"]["image_shape"] == [8, 8, 1]


def test_data_cards_name_every_data_set() -> None:
    """The table of ``docs/data.md`` has all data sets, with the sizes that their classes have."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGES["docs/data.md"], flags=re.M)
    assert {name for name, _ in rows} == set(known_names(KINDS["data"]))
    for name, cells in rows:
        kind = find_class(name, KINDS["data"])
        train, test, classes, seen, _ = (cell.strip().replace(" ", "") for cell in cells.split("|"))
        if kind.measured:
            assert {train, test, classes, seen} == {"any"}
            continue
        assert int(classes) == kind.num_classes, name
        if name in CLASS_COUNTS:
            assert tuple(sum(counts) for counts in CLASS_COUNTS[name]) == (int(train), int(test))
        assert seen == (f"{kind.image_size}×{kind.image_size}" if kind.mean else "featurevectors")
