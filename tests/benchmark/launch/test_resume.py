"""Where a run continues: what checkpoints, rows and records must show before it does."""

import json
import shutil

import pytest

from benchmark.federation import checkpoint
from benchmark.launch.recorder import CHECKPOINT
from benchmark.launch.run import fit
from benchmark.runs.records import read_record
from benchmark.runs.states import state
from datamodules.common.errors import RunError
from runs import MIXED, SHORT, assert_same_run, configuration, interrupted


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Folders of interrupted runs by round, each of which is made once."""
    made = {}

    def folder(at):
        if at not in made:
            made[at] = interrupted(configuration(tmp_path_factory.mktemp(f"at_{at}"), **MIXED), at)
        return made[at]

    return folder


@pytest.fixture
def interrupted_at(tmp_path, kept):
    """Returns a run that failed at the start of a round, with its folder."""

    def copied(at):
        config = configuration(tmp_path, **MIXED)
        return config, shutil.copytree(kept(at), config.folder)

    return copied


def test_a_checkpoint_without_its_sums_is_refused(interrupted_at):
    config, path = interrupted_at(5)
    path /= CHECKPOINT
    checkpoint.save(path, {**checkpoint.load(path), "summed": {}})
    with pytest.raises(RunError, match=r"summed\..*of another shape"):
        fit(config)


def test_the_rows_of_an_interrupted_run_are_not_taken_on_trust(interrupted_at, reference):
    """Its digest would seal them. However often one tries; once they are back, the run goes on to the same bits."""
    config, path = interrupted_at(3)
    file = path / "metrics.jsonl"
    whole = file.read_text()
    zero, one, two = whole.splitlines(keepends=True)
    changed = zero + json.dumps({**json.loads(one), "acc": 99.0}) + "\n" + two
    file.write_text(changed)
    for _ in range(2):
        with pytest.raises(RunError, match=r"metrics\.jsonl: the rows before round 3 differ from those written when"):
            fit(config)
        assert state(path) == "failed" and file.read_text() == changed
    file.write_text(whole)
    assert_same_run(fit(config), reference)


def test_a_checkpoint_says_where_it_comes_from(tmp_path):
    """That of another run or partition is refused."""
    ours, other = configuration(tmp_path, **SHORT), configuration(tmp_path, **{**SHORT, "seed": 4})
    saved = checkpoint.load(interrupted(ours, 1) / CHECKPOINT)
    record = read_record(ours.folder)
    assert saved["origin"] == {key: record[key] for key in ("run_id", "partition_hash", "code_version")}
    path = interrupted(other, 1) / CHECKPOINT
    theirs = checkpoint.load(path)
    checkpoint.save(path, saved)
    with pytest.raises(RunError, match=f"its run_id is {ours.id} .*, not {other.id}; bring this run's own"):
        fit(other)
    checkpoint.save(path, {**theirs, "origin": {**theirs["origin"], "partition_hash": "another"}})
    with pytest.raises(RunError, match="partition_hash is another"):
        fit(other)


@pytest.mark.parametrize("damage", ["head", "client"])
def test_a_damaged_checkpoint_is_replaced_by_its_predecessor(interrupted_at, reference, damage):
    config, path = interrupted_at(5)
    newest = max(path.rglob("clients-*"), key=lambda file: file.stat().st_mtime_ns)
    file = newest if damage == "client" else path / CHECKPOINT
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    assert_same_run(fit(config), reference)
