"""Records and rows: readings, digests, what is valid, what two equal runs share."""

import json
from dataclasses import replace

import pytest

from benchmark.config import Run, Runtime
from benchmark.runs import records
from benchmark.runs.records import last_row, read_record, readings, revisions, validate
from benchmark.runs.states import state
from checkouts import committed, in_a_checkout
from datamodules.common.errors import RunError
from run_folders import RUN, change, completed, whole_run


def averaged_run(results, reading):
    """The folder of a complete run with an averaged model."""
    run = Run.of(replace(RUN.config, average_last=3, runtime=Runtime(results_dir=str(results))))
    return completed(run, 10.0, 60.0, averaged=reading)


def test_the_averaged_reading_is_sealed_by_the_digest_and_kept_from_runs_without_it(tmp_path):
    reading = {"rounds": 3, "acc": 62.5, "loss": float("nan")}
    path = averaged_run(tmp_path / "with", reading)
    record = read_record(path)
    assert record["averaged"] == {"rounds": 3, "acc": 62.5, "loss": None}
    (path / "record.json").write_text(json.dumps({**record, "averaged": {**record["averaged"], "acc": 99.0}}))
    with pytest.raises(RunError, match="digest"):
        read_record(path)
    with pytest.raises(RunError, match="averaged is empty"):
        averaged_run(tmp_path / "without", None)
    assert "averaged" not in whole_run(tmp_path / "plain").record


@pytest.mark.parametrize("reading", ["final", "best", "last_k_mean", "averaged"])
@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ({}, "acc"),
        (None, "empty"),
        (99.0, "dictionary"),
        *[({"acc": value}, "acc") for value in (None, -5.0, 100.5, True, "50")],
        ({"acc": 50.0, "auc": -5.0}, "auc"),
        ({"acc": 50.0, "acc_by_class": [50.0, 101.0]}, "acc_by_class"),
    ],
)
def test_every_reading_of_a_complete_record_is_checked(tmp_path, reading, damage, what):
    """Whoever knows how the digest is made can write anything else there, and tables would show it."""
    path = averaged_run(tmp_path, {"rounds": 3, "acc": 62.5})
    change(path, lambda record: record.update({reading: damage}))
    with pytest.raises(RunError, match=rf"record\.json.*{reading}.*{what}"):
        read_record(path)
    assert state(path) == "damaged"


@pytest.mark.parametrize(
    "line",
    [
        '{"rou',
        '{"round": 1, "acc": null}',
        '{"round": 1, "acc": 5.0, "auc": 101.0}',
        '{"round": 1, "acc": 5.0, "loss": 1e999}',
        '{"round": 0, "acc": 1.0}',
        '{"round": 3, "acc": 1.0}\n{"round": 1, "acc": 1.0}',
    ],
)
def test_a_line_that_is_no_row_or_out_of_order_is_an_error(tmp_path, line):
    """A row has percentages and finite numbers."""
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": 0, "acc": 1.0}}\n{line}\n{{"round": 4, "acc": 1.0}}\n')
    with pytest.raises(RunError, match=f"line {2 + line.count(chr(10))} is not a row"):
        records.read_rows(tmp_path)


def test_equal_runs_have_equal_digests(tmp_path):
    """Wall-clock and hardware are not part of it; everything else is."""
    first, second = (whole_run(tmp_path / name).record for name in ("a", "b"))
    assert first["schema_version"] == 2 and len(first["digest"]) == 64
    assert first["digest"] == second["digest"]
    rows = records.read_rows(tmp_path / "a")
    assert records.digest(first, rows) == first["digest"]
    assert records.digest({**first, "timing": {}, "environment": {}}, rows) == first["digest"]
    assert records.digest({**first, "seeds": {"run": 2}}, rows) != first["digest"]
    assert records.digest(first, rows[1:]) != first["digest"]


def test_a_record_of_an_older_version_stays_valid(tmp_path):
    """It has no digest; its readings still have to follow from its rows."""
    record = whole_run(tmp_path).record
    del record["digest"], record["skipped"]
    record["schema_version"] = 1
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert read_record(tmp_path) == record and state(tmp_path) == "complete"
    record["best"]["acc"] = 60.1
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"best\.acc = 60\.1.* 60\.0"):
        read_record(tmp_path)
    assert state(tmp_path) == "damaged"


@in_a_checkout
def test_all_committed_records_are_what_their_rows_say_and_of_todays_code():
    found = [read_record(file.parent) for file in committed("results/runs/*/record.json")]
    assert len(found) > 600 and {record["status"] for record in found} <= {"complete", "failed"}
    assert {made for record in found for made in revisions(record)} == {"method 1, framework 1"}


def test_readings_take_each_metric_over_the_rows_that_have_it():
    """Accuracies by class entry by entry; a class that the test set lacks stays unknown. The best round is the first
    of the highest accuracy after the warm-up.
    """
    rows = [
        {"round": 0, "acc": 90.0, "visits": 5, "warmup": True},
        {"round": 2, "acc": 40.0, "loss": 4.0, "acc_by_class": [40.0, None, 80.0]},
        {"round": 4, "acc": 40.0, "auc": None, "acc_by_class": [20.0, None, 40.0]},
    ]
    found, means = readings(rows, last_k=3), {"acc": 40.0, "loss": 4.0, "auc": None}
    assert found["last_k_mean"] == {"rounds": 2, **means, "acc_by_class": [30.0, None, 60.0]}
    assert found["best"] == rows[1]
    assert found["final"] == rows[2]


def test_validate_names_everything_that_is_wrong(tmp_path):
    good = whole_run(tmp_path).record
    validate(good, "here")
    bad = {**good, "run_id": 5, "status": "done", "bytes_up": -1, "timing": {"seconds": float("nan")}}
    del bad["config"]
    with pytest.raises(RunError, match=r"here: .*run_id.*status.*config is missing.*bytes_up.*timing\.seconds"):
        validate(bad, "here")
    for wrong, what in (
        ({"status": "failed"}, "error is empty"),
        ({"final": None, "data_sha256": None}, "final, data_sha256 is empty"),
        ({"schema_version": 9}, "schema_version.* 2"),
    ):
        with pytest.raises(RunError, match=what):
            validate({**good, **wrong}, "here")


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_an_unreadable_record(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(RunError, match=r"record\.json"):
        read_record(tmp_path)


def test_the_last_row_alone(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert last_row(tmp_path) is None
    file.write_text("damaged\n" * 20_000 + '{"round": 7}\n{"round": 8')
    assert last_row(tmp_path) == {"round": 7}
    for text in ('{"round": 7}\ndamaged\n', "[]\n"):
        file.write_text(text)
        assert last_row(tmp_path) is None


def test_a_mean_has_the_same_bits_on_every_python() -> None:
    """Since 3.12 ``sum`` makes up for rounding: 1.0 here. A record would be damaged to whoever reads it there."""
    rows = [{"round": number, "acc": 0.1} for number in range(10)]
    assert readings(rows, 10)["last_k_mean"]["acc"] == 0.9999999999999999 / 10
