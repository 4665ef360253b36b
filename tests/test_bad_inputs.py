"""Every bad input ends with one clear line, exit code 2, and nothing half-written."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bad_inputs import Case, cases
from bad_plugins import MODULES
from benchmark import cli
from benchmark.config import Run, from_dict
from benchmark.runs import records
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import read_record
from datamodules.partition.partition import Partition

CASES = cases()
CONFIG = {"method": "fedavg", "data": "digits", "rounds": 3, "last_k": 2}
FACTS = {"partition_hash": "ab", "data_sha256": {}, "labelled_histogram": [[1]]}


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules that are wrong in one thing each."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture
def here(tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder from which those modules can be imported."""
    monkeypatch.syspath_prepend(plugins)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSSL_KEEP_MEMORY", "0")
    return tmp_path


def data_files() -> None:
    """Files of data sets and partitions that are damaged, each in its way."""
    for name in ("empty", "damaged", "pickled"):
        Path(name).mkdir()
    Path("damaged/cifar10.npz").write_bytes(b"no archive")
    np.savez(
        "pickled/cifar10.npz",
        **{f"{part}_{kind}": np.array([None]) for part in ("train", "test") for kind in ("images", "labels")},
    )
    nothing: list[int] = []
    for name, labelled in {"two": [[0], []], "twice": [[0, 1], [1], []]}.items():
        others: list[list[int]] = [[] for _ in labelled]
        Partition(labelled=labelled, unlabelled=others, server=nothing, pool=nothing).save(f"{name}.json")  # type: ignore[arg-type]
    whole = Path("two.json").read_text()
    Path("torn.json").write_text(whole[: len(whole) // 2])


def complete(folder: str) -> Path:
    """The folder of a complete run, without one."""
    planned, run = Run.of(from_dict(CONFIG)), RunFolder(folder)
    run.open(planned, FACTS)
    for number, acc in enumerate((10.0, 30.0, 20.0)):
        run.append({"round": number, "acc": acc, "visits": 3, "bytes_up": number, "bytes_down": number})
    run.finish()
    return Path(folder)


def damaged(given: str, folder: Path) -> None:
    """Do to a complete run what a case says."""
    record, rows = folder / "record.json", folder / "metrics.jsonl"

    def edit(change: Callable[[dict[str, Any]], Any]) -> None:
        content = json.loads(record.read_text())
        change(content)
        record.write_text(json.dumps(content))

    def both() -> None:
        rows.write_text(rows.read_text().replace("20.0", "99.87"))
        content = json.loads(record.read_text())
        content |= records.readings(records.read_rows(folder), 2)
        record.write_text(json.dumps(content))

    lines = rows.read_text().splitlines(keepends=True)
    {
        "a digit of `final.acc` in `record.json` is changed": lambda: edit(lambda r: r["final"].update(acc=99.87)),
        "a digit of `acc` in `metrics.jsonl` is changed": lambda: rows.write_text(
            "".join(lines).replace("20.0", "99.87")
        ),
        "both are changed alike": both,
        "`bytes_up` is changed": lambda: edit(lambda r: r.update(bytes_up=7)),
        "the digest is deleted": lambda: edit(lambda r: r.pop("digest")),
        "a row is deleted": lambda: rows.write_text("".join(lines[1:])),
        "the last row is deleted": lambda: rows.write_text("".join(lines[:-1])),
        "`metrics.jsonl` is deleted": rows.unlink,
        "a line of `metrics.jsonl` is torn": lambda: rows.write_text("".join([lines[0][:5] + "\n", *lines[1:]])),
        "a row of `metrics.jsonl` stands there twice": lambda: rows.write_text("".join([lines[0], *lines])),
        "a row of `metrics.jsonl` has no `acc`": lambda: rows.write_text("".join(lines).replace('"acc": 10.0, ', "")),
        "`acc` is a text in `metrics.jsonl`": lambda: rows.write_text("".join(lines).replace("10.0", '"ten"')),
        "`metrics.jsonl` is a pipe": lambda: (rows.unlink(), os.mkfifo(rows)),
        "`record.json` is cut short": lambda: record.write_text(record.read_text()[:200]),
        "`record.json` is empty": lambda: record.write_text(""),
        "`record.json` is a list": lambda: record.write_text("[]"),
        "`timing.seconds` is a text in `record.json`": lambda: edit(lambda r: r["timing"].update(seconds="long")),
        "`timing.seconds` is missing in `record.json`": lambda: edit(lambda r: r["timing"].pop("seconds")),
        "`code_versions` is null in `record.json`": lambda: edit(lambda r: r["environment"].update(code_versions=None)),
        "`config` is missing in `record.json`": lambda: edit(lambda r: r.pop("config")),
        "`record.json` is of a newer version": lambda: edit(lambda r: r.update(schema_version=9)),
    }[given]()


def prepare(case: Case) -> None:
    """What a case finds in the current folder."""
    if case.area in ("Data", "Partitions"):
        data_files()
    if case.area == "Records":
        damaged(case.given, complete("runs/toy"))
    for name, text in case.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.area}-{case.given}"[:90] for case in CASES])
def test_a_bad_input_is_one_clear_error(case: Case, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what is wrong; nothing is written, or a failed record where the run had begun."""
    prepare(case)
    before = {file for file in here.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert cli.main(shlex.split(case.command)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("error: ")
    assert case.says in error[-1]
    assert "Traceback" not in "".join(error)
    new = {file.name for file in here.rglob("*") if file.is_file() and file not in before}
    if case.starts:
        (path,) = here.glob("results/runs/*")
        assert read_record(path)["status"] == "failed"
        assert not [name for name in new if name.endswith(".tmp") or name.startswith("checkpoint")]
    else:
        assert not new
        assert not (here / "results" / "runs").exists() or not list((here / "results" / "runs").iterdir())


def test_there_are_many_and_no_two_are_alike() -> None:
    """More than 200, as docs/reliability.md says."""
    assert len(CASES) > 200
    assert len({(case.area, case.given) for case in CASES}) == len(CASES)


def test_the_plugins_are_wrong_in_one_thing_only(here: Path) -> None:
    """The same commands run where nothing is wrong: the method that the others are variants of."""
    command = next(case.command for case in CASES if "bad_methods.Exits" in case.command)
    assert cli.main(shlex.split(command.replace("Exits", "Idle"))) == 0
