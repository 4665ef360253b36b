"""An exported model is the run's: the same weights, record and accuracy, away from its folder."""

import shutil

import numpy as np
import pytest
import torch

from benchmark.api import load_run
from benchmark.cli import main
from benchmark.runs.exported import export
from benchmark.runs.records import read_record
from datamodules.common.errors import DataError, RunError
from run_folders import completed
from runs import configuration

CLIENTS = ["--data", "digits", "--data.num_clients", "3", "--data.labelled_clients", "3", "--data.partition", "iid"]
TRAINED = ["--model", "mlp", "--method.batch_size", "16", "--method.lr", "0.03", "--rounds", "6"]
TRAINED += ["--threads", "1", "--wandb", "off"]


pytestmark = pytest.mark.usefixtures("here")


def test_fit_exports_the_model_and_it_has_the_accuracy_of_the_record(here, capsys):
    """With a complete run nothing is run again, and the file says all that the folder said."""
    command = ["fit", "--method", "fed_consist", *CLIENTS, *TRAINED, "--export", "out/model.pt"]
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


def test_an_exported_model_classifies_images_without_its_data(here):
    """Images of any size as they are stored; normalised by what was measured on those of training."""
    rng, sides = np.random.default_rng(0), {"train": 120, "test": 40}
    labels = {f"{part}_labels": rng.integers(0, 2, n) for part, n in sides.items()}
    images = {
        f"{part}_images": (3 * labels[f"{part}_labels"][:, None, None, None] + rng.integers(0, 100, (n, 12, 12, 3)))
        .astype(np.uint8)
        for part, n in sides.items()
    }  # fmt: skip
    np.savez("own.npz", **images, **labels, class_names=["dark", "light"])
    words = ["--data", "npz", "--data.file", str(here / "own.npz"), "--data.num_clients", "2"]
    words += ["--data.partition", "iid"]
    command = ["fit", "--method", "fedavg", *words, *TRAINED, "--export", "model.pt"]
    assert main(command) == 0
    (path,) = here.glob("results/runs/*")
    acc = read_record(path)["final"]["acc"]
    (here / "own.npz").rename("elsewhere.npz")
    found = load_run("model.pt")
    classes = found.predict(images["test_images"])
    assert classes.dtype == np.int64 and 60 < acc < 100
    assert 100 * np.mean(classes == labels["test_labels"]) == pytest.approx(acc)
    assert found.class_names == ("dark", "light")
    assert found.predict(torch.full((1, 20, 16, 1), 90, dtype=torch.uint8)).tolist() == [1]
    with pytest.raises(DataError, match="8-bit images"):
        found.predict(images["test_images"] / 255)


def test_a_run_without_weights_or_an_end_is_not_exported(here):
    run = configuration(here / "results", method="fedavg")
    with pytest.raises(RunError, match="there is no run"):
        export(run, here / "model.pt")
    completed(run, 50.0)
    with pytest.raises(RunError, match=r"weights\.pt: there are no weights"):
        export(run, here / "model.pt")
    assert not (here / "model.pt").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: torch.save({"weights": {}}, file), "this is not an exported model"),
        (lambda file: torch.save(pytest.raises, file), "the weights cannot be read"),
    ],
)
def test_another_file_is_one_error_and_runs_no_code(here, make, message):
    make(here / "model.pt")
    with pytest.raises(RunError, match=rf"model\.pt: {message}"):
        load_run(here / "model.pt")
