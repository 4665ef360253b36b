"""What a method does wrong is refused where it happens: lost tensors, images of others, shapes of what it logs."""

import pytest
import torch
from torch import nn

from datamodules.common.errors import RunError
from federations import Unaugmented, few_federation


class Plain(Unaugmented):
    """It counts visits in a personal tensor."""

    scopes = {"count": "personal"}

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.register_buffer("count", torch.zeros(()))


def refusal(cls, **args):
    """What the error of a run says."""
    with pytest.raises(RunError) as refused:
        few_federation(cls, clients=3, **args).run()
    return str(refused.value)


# --- registered tensors that are replaced


def data_anew(self):
    weight = self.model.conv1.weight
    weight.data = weight.data.clone()


def module_anew(self):
    self.model.conv1 = nn.Conv2d(3, 32, 3)


def register_more(self):
    self.register_buffer("more", torch.zeros(()))


def count_anew(self):
    self.count = self.count + 1


IN_A_VISIT = ("local_work", "on_train_epoch_end", "make_upload")
OUTSIDE = ("select_clients", "broadcast", "aggregate", "remember", "is_warmup", "refresh_norm", "predict")
ANEW = [
    (data_anew, "on_train_epoch_end", "model.conv1.weight"),
    (module_anew, "on_train_epoch_end", "model.conv1.weight"),
    (register_more, "make_upload", "more"),
    *[(count_anew, hook, "count") for hook in (*IN_A_VISIT, *OUTSIDE, "server_step")],
]


@pytest.mark.parametrize(("change", "hook", "name"), ANEW)
def test_a_registered_tensor_that_is_replaced_is_refused_in_whatever_hook(change, hook, name):
    """Its values would be lost: the framework reads and writes the tensor of the start. Errors name who was wrong."""

    def run(self, *args):
        change(self)
        return getattr(super(cls, self), hook)(*args)

    cls = type("Binds", (Plain,), {hook: run})
    said = refusal(cls)
    place = f".{hook}" if hook in OUTSIDE else ", the server" if hook == "server_step" else ", client 0 (83 images)"
    assert said.startswith(f"Binds{place}") and f"round 0: the registered tensor {name!r} " in said


# --- images of others


class Looks(Plain):
    """Looks at the images of the client that its seat was before."""

    def local_work(self, client):
        list(client.views("test", getattr(self, "before", client.data.labelled)))
        self.before = client.data.labelled
        return super().local_work(client)


class Asks(Plain):
    """Asks hidden labels about others' images, as an oracle may about its own."""

    uses_oracle = True

    def local_work(self, client):
        client.oracle(torch.arange(5), torch.zeros(5, dtype=torch.long))
        return super().local_work(client)


class Reports(Plain):
    """Reports pseudo-labels of others' images, in a step."""

    def training_step(self, batch, batch_idx):
        index = torch.arange(5)
        self.report_pseudo_labels(index, index, index > 2)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("cls", "slots", "client"), [(Looks, None, 1), (Looks, 2, 2), (Asks, None, 0), (Reports, None, 0), (Reports, 2, 0)]
)
def test_images_of_others_are_refused(cls, slots, client):
    said = refusal(cls, slots=slots)
    assert said.startswith(f"{cls.__name__}, client {client} (83 images), round 0: ")
    assert "training images that the site does not hold" in said


# --- what is logged


class Lengths(Plain):
    """Logs as many numbers as the client has a number."""

    def training_step(self, batch, batch_idx):
        self.tally("norms", torch.ones(1 + self.visit.client))
        return super().training_step(batch, batch_idx)


class WithinVisit(Plain):
    """A number in the first step and a vector in the second: torch would add them up."""

    def training_step(self, batch, batch_idx):
        self.tally("norms", torch.ones(3) if batch_idx == 0 else torch.ones(()))
        return super().training_step(batch, batch_idx)


class AtServer(Plain):
    """Another shape in ``aggregate`` than in ``server_step``."""

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.tally("norms", torch.ones(2))

    def server_step(self, server):
        self.tally("norms", torch.ones(()))


@pytest.mark.parametrize(
    ("cls", "here", "there"),
    [
        (Lengths, "[1] by client 0", "[2] by client 1"),
        (WithinVisit, "[3] first", "[] then"),
        (AtServer, "[2] in aggregate", "[] in server_step"),
    ],
)
def test_what_is_logged_under_one_name_has_one_shape(cls, here, there):
    """Also where torch would add a number to a vector without a word."""
    told = f"'norms' is logged in the shape {here}, and in the shape {there}; log one shape under one name"
    assert refusal(cls, batch_size=32).endswith(told)


def test_who_asks_to_stop_is_not_taken_for_an_error():
    class Stops(Plain):
        def training_step(self, batch, batch_idx):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        few_federation(Stops).run()
