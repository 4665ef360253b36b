"""An exported model is the run's: the same weights, record and accuracy, away from its folder."""

import shutil

import pytest
import torch

from benchmark.api import fit, load_run
from benchmark.cli import main
from benchmark.runs.exported import export
from benchmark.runs.records import read_record
from datamodules.common.errors import RunError

OPTIONS = {"rounds": 2, "seed": 5, "threads": 1, "model": "mlp", "wandb": "off", "results_dir": "results"}
DATA = ["--data", "digits", "--data.num_clients", "3", "--data.labelled_clients", "3", "--data.partition", "iid"]
COMMAND = [
    *DATA,
    "--model",
    "mlp",
    "--method.batch_size",
    "16",
    "--method.lr",
    "0.03",
    "--rounds",
    "6",
    "--threads",
    "1",
]
COMMAND += ["--threads", "1", "--wandb", "off"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("method", ["fedavg", "fed_consist"])
def test_fit_exports_the_model_and_it_has_the_accuracy_of_the_record(here, method, capsys):
    """With a complete run nothing is run again, and the file says all that the folder said."""
    command = ["fit", "--method", method, *COMMAND, "--export", "out/model.pt"]
    assert main(command) == 0 and "wrote out/model.pt" in capsys.readouterr().out
    (path,) = here.glob("results/runs/*")
    record, first = read_record(path), (here / "out/model.pt").read_bytes()
    assert main(command) == 0 and "nothing was run" in capsys.readouterr().out
    assert (here / "out/model.pt").read_bytes() == first
    ours = load_run(path)
    shutil.rmtree("results")
    found = load_run("out/model.pt")
    assert found.config.method == ours.config.method and found.rows == ours.rows
    assert found.test() == pytest.approx({name: record["final"][name] for name in found.test()}, abs=1e-4)
    held = torch.load("out/model.pt", weights_only=True)
    assert held["record"] == record and set(held["weights"]) >= set(found.method.tensors("shared"))
    with torch.no_grad():  # it is the weights that make the accuracy
        for weights in found.method.model.parameters():
            weights.zero_()
    assert found.test()["acc"] < 20 and record["final"]["acc"] > 40


def test_a_run_without_weights_or_an_end_is_not_exported(here):
    path = fit("fedavg", "digits", **OPTIONS).path
    (path / "weights.pt").unlink()
    with pytest.raises(RunError, match=r"weights\.pt: there are no weights"):
        export(path, here / "model.pt")
    assert not (here / "model.pt").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: file.write_bytes(b"torn"), "the weights cannot be read"),
        (lambda file: torch.save({"weights": {}}, file), "this is not an exported model"),
        (lambda file: torch.save([1], file), "this is not an exported model"),
        (lambda file: torch.save(pytest.raises, file), "the weights cannot be read"),
    ],
)
def test_another_file_is_one_error_and_runs_no_code(here, make, message):
    make(here / "model.pt")
    with pytest.raises(RunError, match=rf"model\.pt: {message}"):
        load_run(here / "model.pt")


def test_a_file_holds_one_model(capsys):
    for more, what in ((["--seed", "1,2"], "a command for 2 runs"), (["--dry-run"], "a dry run")):
        words = ["fit", "--method", "fedavg", "--data", "digits", "--export", "model.pt", *more]
        assert main(words) == 2
        assert f"--export model.pt: a file holds the model of one run; this is {what}" in capsys.readouterr().err
