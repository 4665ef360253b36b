"""``fit``: from options, a saved configuration or a suite's row to a run, and what it says of it."""

import pytest

from benchmark import config
from benchmark.cli import main
from benchmark.config import Run, from_dict
from benchmark.launch import run
from benchmark.suites import suite
from datamodules.common.yaml import read_yaml
from methods.fedavg import FedAvg

FIT = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "4"]


def test_fit_hands_over_a_resolved_configuration(here, fitted, capsys):
    options = "--method=rscfed --method.lambda-u 1 --data digits --data.beta=3e-1 --rounds 10 --seed=1 --devices 2"
    more = "--precision bf16-mixed --roster.participants 4 --model-args.head-dropout 5e-1 --results-dir out-1"
    assert main(["fit", *options.split(), *more.split()]) == 0
    (run,) = fitted
    done = run.config
    assert done.method.class_path == "methods.rscfed.RSCFed" and done.method.init_args["lambda_u"] == 1.0
    assert done.method.init_args["warmup_rounds"] == 7 and done.data.init_args["beta"] == 0.3
    assert (done.rounds, done.seed, done.precision, done.roster) == (10, 1, "bf16-mixed", {"participants": 4})
    assert done.model_args == {"head_dropout": 0.5}
    assert (done.runtime.devices, done.runtime.results_dir, done.scale) == (2, "out-1", "custom")
    assert capsys.readouterr().out == (
        f"{run.folder}\nbest (round 8): acc 51.00, recall 60.00\nlast (round 9): acc 50.00, recall 60.00\n"
    )


def test_fit_runs_several_seeds_one_after_the_other(here, fitted, capsys):
    """A seed that fails does not keep the others from being run, and the command does not end well."""
    assert main([*FIT, "--seed", "3,1,3"]) == 0
    assert [one.config.seed for one in fitted] == [3, 1]
    assert capsys.readouterr().out.count("best (round 2): acc 5") == 2
    assert main([*FIT, "--seed", "666,1"]) == 1
    assert [one.config.seed for one in fitted[2:]] == [666, 1]
    assert "seed 666" in capsys.readouterr().err


def test_fit_from_the_saved_configuration_is_the_same_run_and_options_come_on_top(here, fitted, monkeypatch):
    assert main(["fit", "--method", "fedavg", "--data", "digits", "--rounds", "3", "--method.lr", "0.2"]) == 0
    saved = fitted[0].folder / "config.yaml"
    assert main(["fit", "--config", str(saved), "--devices", "4"]) == 0
    assert main(["fit", "--config", str(saved), "--rounds", "4", "--method.lr", "0.3", "--data.beta", "2"]) == 0
    saved.write_text(saved.read_text().replace("scale: custom", "scale: paper"))  # as a row's
    for more in (["--seed", "7"], ["--rounds", "9"]):
        assert main(["fit", "--config", str(saved), *more]) == 0
    assert [one.config.scale for one in fitted[3:]] == ["paper", "custom"]
    first, again, other = (one.config for one in fitted[:3])
    assert config.identity(first) == config.identity(again) and again.runtime.devices == 4
    assert from_dict(read_yaml(saved)).method == first.method
    assert (other.rounds, other.method.init_args["lr"], other.data.init_args["beta"]) == (4, 0.3, 2.0)
    monkeypatch.setattr(FedAvg, "pipeline", "randaugment_levels")
    (here / "short.yaml").write_text("method: fedavg\nmethod.lr: 1e-3\ndata: digits\nrounds: 4\n")
    assert main(["fit", "--config", "short.yaml", "--rounds", "5"]) == 0
    written = fitted[-1].config
    assert written.rounds == 5 and written.method.init_args["lr"] == 0.001
    assert written.data.init_args["pipeline"] == "randaugment_levels"


def test_fit_starts_from_a_row_of_a_suite(here, fitted):
    """The row's own run, at the suite's first scale; a seed keeps it, another option makes it nobody's."""
    row = ["fit", "--suite", "toy.yaml", "--row", "1/A/mid"]
    assert main([*row]) == main([*row, "--seed", "2", "--data_dir", "d"]) == 0
    assert main([*row, "--rounds", "3", "--method.lr", "0.3"]) == 0
    own, seeded, other = (one.config for one in fitted)
    plan = suite.load("toy.yaml").plan("quick")
    assert {one.id for one in fitted[:2]} == {run.id for run in plan.runs.values() if "1/A/mid" in run.cells}
    assert (own.seed, seeded.seed, seeded.scale, seeded.runtime.data_dir) == (1, 2, "quick", "d")
    assert (other.rounds, other.method.init_args["lr"], other.scale) == (3, 0.3, "custom")
    assert other.method.init_args["warmup_rounds"] == 1
    assert main([*row, "--method", "fixmatch"]) == 0  # no subclass of the row's: none of its options
    assert fitted[-1].config.method == Run.of(from_dict({"method": "fixmatch", "data": "digits"})).config.method


def test_an_interrupt_says_how_to_go_on(here, monkeypatch, capsys):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", interrupted)
    assert main(FIT) == 130
    said = capsys.readouterr().err
    assert "starts from its first round" in said and "interrupted; the same command resumes" in said


REFUSED = {"--accelerator abacus": "digits", "--devices 999": "digits", "--logger nobody": "digits"}
REFUSED |= {"--data-dir nowhere": "ag_news"}


@pytest.mark.parametrize(("refused", "data"), REFUSED.items())
def test_overwrite_deletes_nothing_for_a_run_that_could_not_start(here, fitted, capsys, refused, data):
    fit = ["fit", "--method", "fedavg", "--data", data, "--rounds", "4", "--seed", "1,2"]
    assert main(fit) == 0
    assert main([*fit, "--overwrite", *refused.split()]) == 2
    assert refused.split()[-1] in capsys.readouterr().err
    assert all((one.folder / "record.json").exists() for one in fitted) and len(fitted) == 2


def test_one_of_several_processes_deletes_nothing(here, fitted, monkeypatch, capsys):
    assert main([*FIT, "--seed", "1"]) == 0
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    assert main([*FIT, "--seed", "1", "--overwrite"]) == 2
    assert "delete the run's folder" in capsys.readouterr().err and (fitted[0].folder / "record.json").exists()
