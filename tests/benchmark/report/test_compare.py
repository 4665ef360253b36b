"""Two runs side by side."""

import shutil
from dataclasses import replace

import pytest

from benchmark.config import Run, RunConfig, Runtime
from benchmark.registry import ClassSpec
from benchmark.report.compare import compare
from benchmark.runs.folder import RunFolder
from run_folders import FACTS, change

LOSS = (4.0, 3.0, 2.0, 1.0)


@pytest.fixture
def make(tmp_path):
    """Make a run, by default always the same one, in a folder of its own."""

    def make(
        where, last=40.0, accuracy=(10.0, 20.0, 30.0), facts=FACTS, threads=1, loss=None, averaged=None, **changes
    ):
        def elsewhere(record):
            record["code_version"] = f"code {threads}"
            record["environment"] |= {"threads": threads, "code_versions": [f"code {threads}"]}

        config = RunConfig(ClassSpec("fedavg"), ClassSpec("digits"), **{"rounds": 4, **changes})
        made = Run.of(replace(config, runtime=Runtime(results_dir=str(tmp_path / where), threads=threads)))
        run = RunFolder(made.folder)
        run.open(made, facts)
        rows = [*accuracy, *([last] if last else [])]
        for number, value in enumerate(rows):
            logged = {"loss": loss[number]} if loss and loss[number] is not None else {}
            run.append({"round": number, "acc": value, **logged, "timing": {"seconds": value * threads}})
        if len(rows) == config.rounds:
            run.finish(averaged)
        change(run.path, elsewhere)
        return run.path

    return make


def line(found, name):
    return next(line for line in found.lines if line.startswith(f"{name}: ")).removeprefix(f"{name}: ")


def test_equal_runs_of_other_code_on_another_machine(make):
    """Clock, code and environment are told, and do not count."""
    found = compare(make("a"), make("b", threads=2))
    assert found.equal
    assert line(found, "config") == line(found, "partition") == line(found, "data") == "equal"
    assert line(found, "code") == "version code 1 | code 2"
    assert line(found, "environment") == "threads 1 | 2"
    assert line(found, "rounds") == "equal in all 4 that both have"


@pytest.mark.parametrize(
    ("one", "other", "equal", "told"),
    [
        ({}, {"accuracy": (10.0, 20.0, 30.5)}, False, "they part at round 2 (of 3, from 0): acc 30.0 | 30.5"),
        ({}, {"loss": LOSS}, True, "equal in all 4 that both have; only the second has the columns loss"),
        ({"loss": LOSS}, {"loss": (4.0, None, 2.0, 1.0)}, False, "they part at round 1 (of 3, from 0): loss 3.0 | -"),
        ({}, {"last": None}, False, "equal in all 3 that both have; the first has 1 more"),
    ],
)
def test_rounds_part_where_a_value_differs_or_only_one_has_it(make, one, other, equal, told):
    """A column that other code logs besides, in all rounds, is told and does not count."""
    found = compare(make("a", **one), make("b", **other))
    assert (found.equal, line(found, "rounds")) == (equal, told)


def test_the_averaged_model_counts_although_no_round_has_it(make):
    """A board may report this reading, which follows from no row; other code may report more or other metrics."""

    def averaged(where, **metrics):
        return make(where, average_last=2, averaged={"rounds": 2, **metrics})

    first = averaged("a", acc=45.0, auc=90.0)
    found = compare(first, averaged("b", acc=45.5, auc=90.0))
    assert not found.equal and line(found, "rounds") == "equal in all 4 that both have"
    assert found.lines[-1] == "averaged: acc 45.00 | 45.50 (+0.50)"
    assert compare(first, averaged("c", acc=45.0, recall=80.0)).equal


def test_what_was_run_is_compared_option_by_option(make):
    found = compare(make("a"), make("b", seed=5, facts={**FACTS, "partition_hash": "b", "data_sha256": {"f": "2"}}))
    assert not found.equal  # although all their rounds are equal
    assert line(found, "config") == "seed 1337 | 5"
    assert (line(found, "partition"), line(found, "data")) == ("hash ab | b", "f cd | 2")


@pytest.mark.parametrize(("last", "within"), [(41.0, True), (57.0, True), (58.0, False)])
def test_a_run_on_another_machine_lies_within_what_the_seeds_let_expect(make, last, within):
    """The last rounds of three seeds are 38, 40 and 42, s = 2, and three readings share the 5 %.

    Student's t with two degrees of freedom is (2p - 1) / sqrt(2p (1 - p)), at p = 1 - 0.05 / 6 7.649: 40 +- 17.66.
    """
    one, *_ = [make("a", end, seed=n) for n, end in enumerate((40.0, 38.0, 42.0))]
    make("a", 90.0, last_k=3)  # of another row
    found = compare(one, make("b", last, seed=0))
    assert (found.equal, found.within) == (False, within)
    place = "within" if within else "outside"
    assert line(found, "final") == f"acc 40.00 | {last:.2f} ({last - 40:+.2f}, {place} 22.34 to 57.66)"
    assert "jointly hold with 95 % confidence (Bonferroni over 3 readings)" in found.lines[-1]


def test_two_seeds_make_no_interval_and_a_copy_of_a_run_is_no_further_seed(make):
    one, _ = make("a", seed=0), make("a", 38.0, seed=1)
    shutil.copytree(one, one.with_name(f"{one.name}-copy"))
    again = make("b", 39.0, seed=0)
    found = compare(one, again)
    assert found.within is None and line(found, "final") == "acc 40.00 | 39.00 (-1.00)"
    make("a", seed=3)
    assert "of 3 seeds" in compare(one, again).lines[-1]
    assert "of 3 seeds" in compare(one, make("a", 90.0, seed=4)).lines[-1], "the run that is judged makes no interval"


def test_a_record_is_text(make):
    """Its classes need not exist, and none is imported; a record without an option of today is of the same row."""
    runs = [make("a", end, seed=n) for n, end in enumerate((40.0, 38.0, 42.0))]

    def strangers(record):
        record["config"]["method"]["class_path"] = "no_such_module.Mine"
        del record["config"]["sums"]

    for run in runs:
        change(run, strangers)
    again = make("b", 41.0, seed=0)
    assert compare(runs[0], again).within is None  # of another method
    change(again, lambda record: record["config"]["method"].update(class_path="no_such_module.Mine"))
    found = compare(runs[0], again)
    assert found.within and line(found, "config") == "equal" and "of 3 seeds" in found.lines[-1]
    assert compare(runs[0], make("c", seed=1, roster={"participants": 2})).within is None


def test_records_older_than_a_reading_are_of_the_row(make):
    """The others' readings are compared with theirs."""
    for seed, end in enumerate((40.0, 38.0, 42.0)):
        change(make("a", end, seed=seed), lambda record: record["config"].pop("average_last"))
    first, second = (make(where, seed=3, average_last=2, averaged={"rounds": 2, "acc": 45.0}) for where in "ab")
    assert compare(first, second).within
