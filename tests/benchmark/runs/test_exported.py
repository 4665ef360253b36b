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


def dark_and_light(count, rng):
    """Images, of which those of the second class are a little lighter, and their classes."""
    classes = rng.integers(0, 2, count)
    images = 3 * classes[:, None, None, None] + rng.integers(0, 100, (count, 12, 12, 3))
    return images.astype(np.uint8), classes


def test_an_exported_model_is_the_runs_and_needs_neither_its_folder_nor_its_data(here, capsys):
    """With a complete run nothing is run again. Images of any size are classified as they are stored."""
    rng = np.random.default_rng(0)
    (images, labels), (tests, classes) = dark_and_light(120, rng), dark_and_light(40, rng)
    arrays = {"train_images": images, "train_labels": labels, "test_images": tests, "test_labels": classes}
    np.savez("own.npz", **arrays, class_names=["dark", "light"])
    data = ["--data", "npz", "--data.file", str(here / "own.npz"), "--data.num_clients", "2", "--data.partition", "iid"]
    training = ["--model", "mlp", "--method.batch_size", "16", "--method.lr", "0.03", "--rounds", "6", "--threads", "1"]
    command = ["fit", "--method", "fedavg", *data, *training, "--wandb", "off", "--export", "out/model.pt"]
    assert main(command) == 0 and "wrote out/model.pt" in capsys.readouterr().out
    (path,) = here.glob("results/runs/*")
    ours, record, first = load_run(path), read_record(path), (here / "out/model.pt").read_bytes()
    assert main(command) == 0 and "nothing was run" in capsys.readouterr().out
    assert (here / "out/model.pt").read_bytes() == first

    shutil.rmtree("results")
    found = load_run("out/model.pt")
    assert found.config.method == ours.config.method and found.rows == ours.rows
    assert found.test() == pytest.approx({name: record["final"][name] for name in found.test()}, abs=1e-4)
    assert torch.load("out/model.pt", weights_only=True)["record"] == record

    (here / "own.npz").unlink()
    found = load_run("out/model.pt")
    assert 60 < record["final"]["acc"] < 100
    assert 100 * np.mean(found.predict(tests) == classes) == pytest.approx(record["final"]["acc"])
    assert found.class_names == ("dark", "light")
    assert found.predict(torch.full((1, 20, 16, 1), 90, dtype=torch.uint8)).tolist() == [1]
    with pytest.raises(DataError, match="8-bit images"):
        found.predict(tests / 255)


def test_a_run_without_weights_or_an_end_is_not_exported(here):
    run = configuration(here / "results", method="fedavg")
    with pytest.raises(RunError, match="there is no run"):
        export(run, here / "model.pt")
    completed(run, 50.0)
    with pytest.raises(RunError, match=r"weights\.pt: there are no weights"):
        export(run, here / "model.pt")
    assert not (here / "model.pt").exists()


@pytest.mark.parametrize(("content", "told"), [({"weights": {}}, "not an exported"), (pytest.raises, "cannot be read")])
def test_another_file_is_one_error_and_runs_no_code(here, content, told):
    torch.save(content, here / "model.pt")
    with pytest.raises(RunError, match=rf"model\.pt: .*{told}"):
        load_run(here / "model.pt")
