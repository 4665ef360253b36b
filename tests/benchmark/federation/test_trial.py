"""What is refused before the first round: networks that do not fit the data, and batches they cannot train on."""

import pytest
from torch import nn

from benchmark.launch.run import fit
from benchmark.runs.states import state
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common.errors import ConfigError
from federations import few_data
from methods.fedavg import FedAvg
from runs import SHORT, configuration, planted

NETWORKS = """
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes, more=0, form="logits", norm=False):
        super().__init__()
        self.form, self.norm = form, nn.BatchNorm1d(8) if norm else nn.Identity()
        self.inner, self.outer = nn.Linear(3 * 32 * 32, 8), nn.Linear(8, num_classes + more)

    def forward(self, x):
        y = self.outer(self.norm(self.inner(x.flatten(1))))
        return {"logits": y, "tuple": (y, y), "map": y[:, :, None, None]}[self.form]
"""


@pytest.fixture
def options(tmp_path, monkeypatch):
    (tmp_path / "networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    return {**SHORT, "model": "networks.Net", "data__labelled_clients": 6}


@pytest.mark.parametrize(
    ("wrong", "returned"),
    [
        ({"more": 1}, r"shape \[2, 11\]"),
        ({"more": -1}, r"shape \[2, 9\]"),
        ({"more": 990}, r"shape \[2, 1000\]"),
        ({"form": "tuple"}, "a tuple"),
        ({"form": "map"}, r"shape \[2, 10, 1, 1\]"),
    ],
    ids=str,
)
def test_a_network_with_the_wrong_output_is_refused_before_it_trains(tmp_path, options, wrong, returned):
    run = configuration(tmp_path, **options, **{f"model_args__{name}": value for name, value in wrong.items()})
    with pytest.raises(ConfigError, match=rf"networks\.Net returns .*{returned} .*10 classes.*\[2, 10\]"):
        fit(run)
    assert state(run.folder) == "missing"


def test_a_batch_of_one_that_batch_norm_cannot_train_on_is_found_before_the_first_round(tmp_path, options):
    """Each client has 41 images, and the run would fail at the first visit of one; nothing else is refused."""
    norm = {**options, "model_args__norm": True}
    run = configuration(tmp_path, **norm, method__batch_size=8)
    with pytest.raises(ConfigError, match=r"client 0 has 41 labelled images: in batches of 8 .*min_batch 2"):
        fit(run)
    assert state(run.folder) == "missing"
    for fine in ({**norm, "method__batch_size": 8, "method__min_batch": 2}, {**options, "method__batch_size": 8}, norm):
        assert state(fit(configuration(tmp_path, **fine))) == "complete"


def test_every_kind_of_client_is_tried(tmp_path, options, monkeypatch):
    """Labels that cycle beside unlabelled images never come to their batch of one, and those that are alone do."""
    sites = few_data(2).client(0).labelled
    held = [SiteData(sites[:9], sites[:9] % 10, sites[9:17]), SiteData(sites[:9], sites[:9] % 10, sites[:0])]
    monkeypatch.setattr(FSSLDataModule, "client", lambda data, k: held[k % 2])
    alone = {**options, "method": "local_ssl", "data__pipeline": "randaugment_levels_cutout", "method__batch_size": 8}
    run = configuration(tmp_path, **alone, model_args__norm=True)
    with pytest.raises(ConfigError, match=r"client 1 has 9 labelled images: in batches of 8 .*min_batch 2"):
        fit(run)


def test_a_batch_of_one_that_the_method_joins_with_others_is_none(tmp_path, options, monkeypatch):
    """And the trial leaves no trace in the run: it takes place in a copy."""

    def joined(self, batch, batch_idx):
        x, y = batch["labelled"]["x"], batch["labelled"]["y"]
        return nn.functional.cross_entropy(self(x.repeat(2, 1, 1, 1)), y.repeat(2))

    mine = planted(monkeypatch, FedAvg, training_step=joined)
    run = configuration(tmp_path, **{**options, "method": mine}, model_args__norm=True, method__batch_size=8)
    assert state(fit(run)) == "complete"
