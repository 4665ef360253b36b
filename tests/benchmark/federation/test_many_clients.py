"""Thousands of clients, and hundreds of rounds: memory grows with neither."""

import gc
import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.loop import Federation
from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays
from federations import Unaugmented, plain_fabric, run_rows


class Specks(FSSLDataModule):
    """20 000 images of 4 x 4 pixels in two classes that differ in brightness."""

    num_classes, image_size, zoom_size, mean, std = 2, 4, 4, (0.5,), (0.25,)

    def read(self):
        rng = np.random.default_rng(0)
        labels = np.arange(20_000) % 2
        images = rng.integers(0, 128, (20_000, 4, 4, 1)) + 127 * labels[:, None, None, None]
        images, labels = images.astype(np.uint8), labels.astype(np.int64)
        return Arrays(images, labels, images[:100], labels[:100], ("dark", "bright"), {})


def specks(clients, participants, folder, rounds, **args):
    """A federation of a linear model over clients with two images each."""
    pairs = {str(k): [2 * k, 2 * k + 1] for k in range(clients)}
    file = folder / "partition.json"
    file.write_text(json.dumps(pairs))
    data = Specks(partition_file=str(file), num_clients=clients, labelled_clients=clients)
    data.setup()
    torch.manual_seed(0)
    method = Unaugmented(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)))
    roster = data.roster(0, participants=participants)
    return Federation(method, data, roster, plain_fabric(), rounds=rounds, seed=0, **args)


def test_ten_thousand_clients_of_whom_ten_take_part(tmp_path):
    """Only who took part is stored, and both clients of a pair of images learn."""
    run = specks(10_000, 10, tmp_path, rounds=4)
    rows = run_rows(run)
    drawn = {c for r in range(4) for c in run.roster.sample(r)}
    assert 30 < len(drawn) <= 40
    assert run.clients.keys() == run.state_dict()["clients"].keys() == drawn
    assert [row["participants"] for row in rows] == [10] * 4
    assert rows[-1]["acc"] > rows[0]["acc"] - 1e-9 and rows[-1]["acc"] > 90


class Memory:
    """What the process holds after some rounds: blocks of Python's memory, and tensors."""

    def __init__(self, path, rounds):
        self.rounds, self.held = rounds, []
        self.checkpoint = Checkpoint(path)

    def on_round_end(self, federation, row):
        if federation.round % 50 == 0:
            self.checkpoint.save(federation.state_dict())
        if federation.round in self.rounds:
            gc.collect()
            tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
            self.held.append((sys.getallocatedblocks(), len(tensors), sum(one.nbytes for one in tensors)))


@pytest.mark.parametrize("slots", [None, 2])
def test_memory_stays_flat(tmp_path, slots):
    """From the 50th to the 150th round no tensor is left behind, and at most three small blocks of Python per round.

    One was measured, of about 70 bytes; a row that is kept would be more than ten.
    """
    memory = Memory(tmp_path / "checkpoint.pt", (50, 150))
    run = specks(10, 1, tmp_path, rounds=150, eval_every=10, callbacks=[memory], slots=slots)
    run.run()
    (blocks, *tensors), (more, *others) = memory.held
    assert len(run.clients) == 10
    assert more - blocks < 3 * 100
    assert tensors == others
