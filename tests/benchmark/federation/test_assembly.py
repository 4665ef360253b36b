"""What a configuration describes, put together; networks and batches that do not fit the data are refused before."""

import pytest
import torch
from torch import nn

from benchmark.federation.assembly import assemble
from benchmark.launch.run import fit
from benchmark.runs.states import state
from datamodules.base import FSSLDataModule, SiteData
from datamodules.common.errors import ConfigError
from federations import few_data, plain_fabric
from methods.fedavg import FedAvg
from runs import SHORT, configuration, planted


def test_static_norms_are_for_methods_that_measure_their_statistics(tmp_path):
    """Others would normalise test images by each other."""
    static = {**SHORT, "model": "wrn28_2", "model_args": {"depth": 10, "width": 1}}
    with pytest.raises(ConfigError, match=r"FedAvg measures no statistics .* --model_args.norm group, running or"):
        fit(configuration(tmp_path, **static))


def test_options_of_the_loop_and_the_engine_reach_the_federation(tmp_path):
    """What a configuration says of them is what runs."""

    def made(**options):
        return assemble(configuration(tmp_path, **SHORT, **options), plain_fabric())

    reference, eager = made(), made(nonfinite="skip", runtime__engine="slots", runtime__slots=2, runtime__replay=False)
    assert (len(reference.engine.seats), reference.engine.context.skips) == (1, False)
    assert (len(eager.engine.seats), eager.engine.context.skips) == (2, True)
    assert reference.engine.counts() == eager.engine.counts() == {}
    assert made(runtime__engine="slots", runtime__slots=3).engine.counts()["slots"] == 3


def test_grey_images_reach_networks_of_one_channel(tmp_path):
    """``data.channels`` sets the network's first layer, too."""
    path = fit(configuration(tmp_path, **SHORT, data__channels=1))
    assert torch.load(path / "weights.pt")["model.conv1.weight"].shape[1] == 1


class Net(nn.Module):
    """A network of a user's own."""

    def __init__(self, num_classes, more=0, form="logits", norm=False):
        super().__init__()
        self.form, self.norm = form, nn.BatchNorm1d(8) if norm else nn.Identity()
        self.inner, self.outer = nn.Linear(3 * 32 * 32, 8), nn.Linear(8, num_classes + more)

    def forward(self, x):
        y = self.outer(self.norm(self.inner(x.flatten(1))))
        if self.form == "pairs" and self.training and len(x) < 2:
            raise IndexError("no pair")
        return (y, y) if self.form == "tuple" else y


OPTIONS = {**SHORT, "model": f"{__name__}.Net", "data__labelled_clients": 6}
NORM = {**OPTIONS, "model_args__norm": True, "method__batch_size": 8}


@pytest.mark.parametrize(
    ("wrong", "returned"), [({"model_args__more": 1}, r"shape \[2, 11\]"), ({"model_args__form": "tuple"}, "a tuple")]
)
def test_a_network_with_the_wrong_output_is_refused_before_it_trains(tmp_path, wrong, returned):
    run = configuration(tmp_path, **OPTIONS, **wrong)
    with pytest.raises(ConfigError, match=rf"\.Net returns .*{returned} .*10 classes.*\[2, 10\]"):
        fit(run)
    assert state(run.folder) == "missing"


def test_a_batch_of_one_that_batch_norm_cannot_train_on_is_found_before_the_first_round(tmp_path):
    """Each client has 41 images, and the run would fail at the first visit of one; nothing else is refused."""
    run = configuration(tmp_path, **NORM)
    with pytest.raises(ConfigError, match=r"client 0 has 41 labelled images: in batches of 8 .*min_batch 2"):
        fit(run)
    assert state(run.folder) == "missing"
    pairs = {"model_args__form": "pairs", "model_args__norm": False, "method__batch_size": 64}
    for fine in ({"method__min_batch": 2}, {"model_args__norm": False}, {"method__batch_size": 64}, pairs):
        assert state(fit(configuration(tmp_path, **{**NORM, **fine}))) == "complete"


def test_every_kind_of_client_is_tried(tmp_path, monkeypatch):
    """Labels that cycle beside unlabelled images never come to their batch of one, and those that are alone do."""
    sites = few_data(2).client(0).labelled
    held = [SiteData(sites[:9], sites[:9] % 10, sites[9:17]), SiteData(sites[:9], sites[:9] % 10, sites[:0])]
    monkeypatch.setattr(FSSLDataModule, "client", lambda data, k: held[k % 2])
    alone = {"method": "local_ssl", "data__pipeline": "randaugment_levels_cutout"}
    run = configuration(tmp_path, **{**NORM, **alone})
    with pytest.raises(ConfigError, match=r"client 1 has 9 labelled images: in batches of 8 .*min_batch 2"):
        fit(run)


def test_a_batch_of_one_that_the_method_joins_with_others_is_none(tmp_path, monkeypatch):
    """And the trial leaves no trace in the run: it takes place in a copy."""

    def joined(self, batch, batch_idx):
        x, y = batch["labelled"]["x"], batch["labelled"]["y"]
        return nn.functional.cross_entropy(self(x.repeat(2, 1, 1, 1)), y.repeat(2))

    mine = planted(monkeypatch, FedAvg, training_step=joined)
    assert state(fit(configuration(tmp_path, **{**NORM, "method": mine}))) == "complete"
