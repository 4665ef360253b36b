"""Networks as users have them: with a frozen trunk, or compiled in part."""

from functools import partial

import pytest
import torch
from torch import nn

from benchmark.federation.loop import Federation
from datamodules.common.errors import RunError
from federations import few_data, plain_fabric, run_rows, same_server
from methods.fedavg import FedAvg
from methods.fedmatch import FedMatch
from methods.models.backbone import Backbone

SIDE = 8
HEAD = 4 * (12 * 10 + 10)  # bytes


class Trunk(nn.Sequential):
    """As from a hub: pre-trained, without gradients, in evaluation mode."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * SIDE**2, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.requires_grad_(False).eval()


class OnTrunk(Backbone):
    """A head on it."""

    feature_dim = 12

    def __init__(self, trunk=Trunk):
        super().__init__()
        self.trunk, self.head = trunk(), nn.Linear(12, 10)

    def features(self, x):
        return self.trunk(x)


def federation(method=FedAvg, network=OnTrunk, data=None, **engine):
    torch.manual_seed(0)
    made, data = method(network(), lr=0.1), data or few_data(3, side=SIDE)
    return Federation(made, data, data.roster(0), plain_fabric(), rounds=2, seed=0, **engine)


def test_a_frozen_trunk_is_neither_sent_nor_counted():
    """The model is the one that it is with a trunk that travels, which is named to be shared; it is still saved."""

    class Travels(FedAvg):
        scopes = {"model": "shared"}

    run, travels = federation(), federation(Travels)
    rows, others = run_rows(run), run_rows(travels)
    assert rows[-1]["bytes_up"] == rows[-1]["bytes_down"] == 2 * 3 * HEAD
    assert others[-1]["bytes_up"] > 10 * rows[-1]["bytes_up"]
    assert {name for name in run.server if name.startswith("model")} == {"model.head.weight", "model.head.bias"}
    assert all(torch.equal(travels.server[name], value) for name, value in run.server.items())
    assert [row["acc"] for row in rows] == [row["acc"] for row in others]
    assert {name.split(".")[1] for name in run.method.names("frozen")} == {"trunk"}


def test_fedmatch_leaves_a_frozen_trunk_as_it_is():
    """It decomposes and trains the other weights alone."""
    data = few_data(3, scenario="all_clients", num_labels=60, pipeline="randaugment_levels_cutout", side=SIDE)
    run = federation(partial(FedMatch, num_classes=10, num_clients=3, image_shape=[3, SIDE, SIDE]), data=data)
    trunk = {name: value.clone() for name, value in run.method.tensors("frozen").items()}
    assert {"model.trunk.1.weight", "model.trunk.1.bias"} <= trunk.keys()
    run_rows(run)
    assert all(torch.equal(run.method.registered()[name], value) for name, value in trunk.items())
    assert not [name for name in run.server if name.startswith("model.trunk")]


def test_what_a_step_still_changes_is_no_frozen_trunk():
    """Statistics of batch norm in training mode travel; a parameter that only the method writes is an error."""

    class Measures(Trunk):
        def __init__(self):
            super().__init__()
            self.train()

    run = federation(network=lambda: OnTrunk(Measures))
    run_rows(run)
    assert {name for name in run.server if name.startswith("model.trunk")} == {
        f"model.trunk.2.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }

    class Writes(FedAvg):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.model.trunk[1].bias += 1.0

    with pytest.raises(RunError, match=r"Writes, client 0 .*'model.trunk.1.bias'.*scopes"):
        federation(Writes).run()


def test_a_part_that_is_compiled(recwarn):
    """The slots take it, and weights have the names that they have without."""

    class Compiled(OnTrunk):
        def __init__(self):
            super().__init__()
            self.head = torch.compile(self.head, backend="eager")

    plain, compiled = federation(), federation(network=Compiled, slots=2)
    assert len(compiled.engine.seats) == 2
    plain.run()
    compiled.run()
    assert same_server(plain, compiled)
