"""More rounds on top of a complete run."""

import pytest

from benchmark.launch import recorder
from benchmark.launch.continuing import go_on
from benchmark.launch.run import fit
from benchmark.runs.folder import RunFolder
from federations import Unaugmented, few_federation
from methods.fed_consist import FedConsist
from runs import MIXED, SHORT, assert_same_run, configuration, planted

PERSONAL = {**MIXED, "average_last": 0, "eval_every": 3}  # momentum and a step counter stay with each client


def test_a_run_of_more_rounds_goes_on_from_a_complete_one_and_ends_bit_for_bit_as_from_scratch(tmp_path, capsys):
    shorter = fit(configuration(tmp_path / "here", **{**PERSONAL, "rounds": 4}))
    before = {file: file.read_bytes() for file in shorter.rglob("*") if file.is_file()}
    longer = fit(configuration(tmp_path / "here", **{**PERSONAL, "rounds": 8}))
    told = capsys.readouterr().err
    assert f"goes on from the last round of {shorter}" in told and "continues from round 5 of 8" in told
    assert_same_run(longer, fit(configuration(tmp_path / "there", **{**PERSONAL, "rounds": 8})))
    assert {file: file.read_bytes() for file in shorter.rglob("*") if file.is_file()} == before


def goes_on(results, **options):
    """Whether a new run takes up a complete one."""
    run = configuration(results, **options)
    go_on(run, RunFolder(run.folder))
    return run.folder.exists()


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_a_schedule_over_the_rounds_starts_over(tmp_path, schedule):
    server = {"data__scenario": "server", "data__num_labels": 50, "data__pipeline": "randaugment_uniform"}
    own = {"method": "semifl", "method__lr_schedule": schedule, "method__local_epochs": 1}
    fit(configuration(tmp_path, **server, **own, rounds=1))
    assert goes_on(tmp_path, **server, **own, rounds=2) == (schedule == "constant")


@pytest.mark.parametrize("reads", [True, False])
def test_what_a_method_of_ones_own_asks_for_counts(tmp_path, monkeypatch, reads):
    def rate(self):
        return 0.1 / (self.visit.rounds if reads else 1)

    mine = {**PERSONAL, "method": planted(monkeypatch, FedConsist, learning_rate=rate)}
    fit(configuration(tmp_path, **{**mine, "rounds": 1}))
    assert goes_on(tmp_path, **mine) != reads


def test_what_another_federation_asks_for_does_not_count():
    """Nor does it make one forget what it has asked for itself."""

    class Asks(Unaugmented):
        def learning_rate(self):
            return 0.1 / self.visit.rounds

    asks, plain = few_federation(Asks), few_federation()
    asks.run()
    assert (asks.planned.asked, plain.planned.asked) == (True, False)
    few_federation()
    assert asks.planned.asked
    plain.load_state_dict(asks.state_dict())
    assert plain.planned.asked


@pytest.mark.parametrize("edited", ["code_version", "uncommitted"])
def test_other_code_starts_over(tmp_path, monkeypatch, edited):
    """Though its revision is the same, as while a method is being written."""
    fit(configuration(tmp_path, **SHORT))
    other = {"code_version": lambda: "abc123", "uncommitted": lambda: {"uncommitted-1.patch": "+ more\n"}}
    monkeypatch.setattr(f"benchmark.launch.continuing.{edited}", other[edited])
    assert not goes_on(tmp_path, **{**SHORT, "rounds": 9})


def test_a_large_state_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "KEPT_BYTES", 1000)
    path = fit(configuration(tmp_path, **SHORT))
    assert not list(path.glob("last_state*"))


def test_another_seed_roster_or_network_starts_over(tmp_path):
    """Options of the last two are recorded only where they are given."""
    fit(configuration(tmp_path, **SHORT))
    longer = {**SHORT, "rounds": 4}
    for more in ({"seed": 4}, {"roster__participants": 3}, {"model_args__head_dropout": 0.5}):
        assert not goes_on(tmp_path, **longer, **more)
    assert goes_on(tmp_path, **longer)
