"""Random input: a result that keeps its promises, or one of our errors, and never another exception."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark.config import Run, RunConfig, from_dict, from_yaml, resolve, run_id, to_yaml
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import read_record, read_rows, without_clock
from benchmark.runs.states import state
from benchmark.suites import schema
from datamodules.common.errors import BenchError, ConfigError, RunError
from datamodules.partition import scenarios
from datamodules.partition.split import dirichlet, iid

EXAMPLES = 30
quick = settings(
    deadline=None,
    max_examples=EXAMPLES,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(string.printable, max_size=5)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
GOOD: dict[str, Any] = {
    "method": {"class_path": "fedavg", "init_args": {"lr": 0.1}},
    "data": {"class_path": "digits", "init_args": {"beta": 0.5, "num_clients": 3}},
    "rounds": 2,
    "roster": {"participants": 2},
    "runtime": {"devices": 1},
}
ROWS = [{"round": n, "acc": 10.5 + n, "loss": 1.25, "visits": 3, "timing": {"seconds": 0.5}} for n in range(2)]
PLACES = [
    *[(key,) for key in (*GOOD, "model", "model_args", "seed", "precision", "nonfinite", "unknown")],
    *[(slot, key) for slot in ("method", "data") for key in ("class_path", "init_args")],
    *[("method", "init_args", key) for key in ("lr", "clip_norm", "batch_size")],
    *[("data", "init_args", key) for key in ("beta", "mean", "partition", "labelled_histogram")],
    ("runtime", "checkpoint_every_s"),
]


def changed(values: Any, place: tuple[str, ...], value: Any) -> Any:
    """A copy with another value at a place."""
    head, *rest = place
    inner = values.get(head) if rest else None
    return {**values, head: changed(inner if isinstance(inner, dict) else {}, tuple(rest), value) if rest else value}


@quick
@given(st.sampled_from(PLACES), plain)
def test_configurations(place: tuple[str, ...], value: Any) -> None:
    """A configuration that is taken has an identity and survives its own YAML."""
    try:
        config = resolve(from_dict(changed(GOOD, place, value)))
    except ConfigError:
        return
    assert isinstance(config, RunConfig)
    assert run_id(from_yaml(to_yaml(config))) == run_id(config)


@quick
@given(st.sampled_from(["tables", "scales", "labels", "datasets", "base", "paper", "report"]), plain)
def test_suites(key: str, value: Any) -> None:
    row = {"title": "One", "datasets": ["A"], "metrics": ["acc"], "rows": [{"method": "low"}]}
    suite = {"paper": "toy", "title": "Toy", "published": None, "report": "last", "base": {}, "datasets": {"A": {}}}
    suite |= {"labels": {"low": {"method": "fedavg"}}, "tables": {"1": row}, "scales": {"quick": {"seeds": [1]}}}
    schema.check(suite, "toy.yaml")
    try:
        schema.check({**suite, key: value}, "toy.yaml")
    except ConfigError as error:
        assert "toy.yaml" in str(error)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    """A complete run's folder and its two files."""
    folder = tmp_path_factory.mktemp("run")
    run = RunFolder(folder)
    run.open(Run.of(from_dict(GOOD)), {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": [[1]]})
    for row in ROWS:
        run.append(row)
    run.finish()
    return folder, (folder / "record.json").read_bytes(), (folder / "metrics.jsonl").read_bytes()


@quick
@given(st.booleans(), st.integers(0, 10_000), st.binary(max_size=3), st.integers(0, 3))
def test_records(whole: tuple[Path, bytes, bytes], rows: bool, at: int, put: bytes, cut: int) -> None:
    """Bytes of a complete run's files are changed: that is told, or it changes nothing that counts."""
    folder, *originals = whole
    for name, raw in zip(("record.json", "metrics.jsonl"), originals, strict=True):
        (folder / name).write_bytes(raw)
    name, raw = ("metrics.jsonl", originals[1]) if rows else ("record.json", originals[0])
    at %= len(raw)
    (folder / name).write_bytes(raw[:at] + put + raw[at + cut :])
    try:
        found = read_record(folder)
    except RunError:
        assert state(folder) == "damaged"
    else:
        assert without_clock([found, read_rows(folder)]) == without_clock([json.loads(originals[0]), ROWS])


@quick
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(-1, 8),
    st.sampled_from(["dirichlet", "iid"]),
    st.sampled_from(["partial", "server", "all"]),
    st.integers(-1, 12),
    st.floats(0.01, 10),
)
def test_partitions(labels: list[int], clients: int, kind: str, scenario: str, number: int, beta: float) -> None:
    """A partition that is made is valid, and everybody's samples are counted once."""
    classes = np.array(labels)

    def split(labels: Any, n: int, rng: Any) -> Any:
        if kind == "iid":
            return iid(labels, n, rng=rng)
        return dirichlet(labels, n, rng=rng, beta=beta, min_size=0)

    rng = np.random.RandomState(0)
    try:
        if scenario == "partial":
            made = scenarios.labels_at_partial_clients(classes, clients, rng, split=split, labelled_clients=number)
        elif scenario == "server":
            made = scenarios.labels_at_server(classes, clients, rng, split=split, num_labels=number)
        else:
            made = scenarios.labels_at_all_clients(classes, clients, rng, split=split, num_labels=number)
    except BenchError:
        return
    made.validate(len(classes))
    owned = np.concatenate([*made.labelled, *made.unlabelled, made.server])
    assert len(np.unique(owned)) == len(owned) <= len(classes)
    assert made.num_clients == clients
