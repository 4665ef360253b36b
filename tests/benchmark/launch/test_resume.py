"""Where a run continues: what checkpoints, rows and records must show before it does."""

import json
import shutil

import pytest

from benchmark.federation.checkpoint import Checkpoint
from benchmark.launch.recorder import CHECKPOINT
from benchmark.launch.run import fit
from benchmark.runs.records import read_record
from benchmark.runs.states import state
from datamodules.common.errors import RunError
from runs import MIXED, assert_same_run, configuration, interrupted


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return interrupted(configuration(tmp_path_factory.mktemp("made"), **MIXED), 5)


@pytest.fixture
def begun(tmp_path, made):
    """A run that failed at the start of round 5, with its folder."""
    config = configuration(tmp_path, **MIXED)
    return config, shutil.copytree(made, config.folder)


def with_parts(path, **parts):
    """Save the checkpoint there anew with other parts, as one in which all of its clients have changed."""
    kept = Checkpoint(path)
    kept.save({**kept.load(), **parts, "changed": {}})


@pytest.mark.parametrize(("part", "left"), [("server", {}), ("summed", {}), ("clients", {0: ({}, [])})])
def test_a_checkpoint_that_lacks_tensors_is_refused(begun, part, left):
    """They would start anew, without a word."""
    config, path = begun
    with_parts(path / CHECKPOINT, **{part: left})
    with pytest.raises(RunError, match=rf"{part}\..*of another shape"):
        fit(config)


def test_the_rows_of_an_interrupted_run_are_not_taken_on_trust(begun, reference):
    """Its digest would seal them. However often one tries; once they are back, the run goes on to the same bits."""
    config, path = begun
    file = path / "metrics.jsonl"
    whole = file.read_text()
    first, *others = whole.splitlines(keepends=True)
    changed = json.dumps({**json.loads(first), "acc": 99.0}) + "\n" + "".join(others)
    file.write_text(changed)
    for _ in range(2):
        with pytest.raises(RunError, match=r"metrics\.jsonl: the rows before round 5 differ from those written when"):
            fit(config)
        assert state(path) == "failed" and file.read_text() == changed
    file.write_text(whole)
    assert_same_run(fit(config), reference)


def test_a_checkpoint_says_where_it_comes_from(begun):
    """That of another run or partition is refused."""
    config, path = begun
    origin, record = Checkpoint(path / CHECKPOINT).load()["origin"], read_record(path)
    assert origin == {key: record[key] for key in ("run_id", "partition_hash", "code_version")}
    for key in ("run_id", "partition_hash"):
        with_parts(path / CHECKPOINT, origin={**origin, key: "another"})
        with pytest.raises(RunError, match=f"its {key} is another .*, not {record[key]}; bring this run's own"):
            fit(config)


def test_a_damaged_checkpoint_is_replaced_by_its_predecessor(begun, reference):
    config, path = begun
    (path / CHECKPOINT).write_bytes(b"damaged")
    assert_same_run(fit(config), reference)
