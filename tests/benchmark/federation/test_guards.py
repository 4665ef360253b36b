"""What a method does wrong is refused where it happens: lost tensors, images of others, bytes, ids, any error."""

import re
from signal import SIGTERM

import pytest
import torch
from torch import nn

from datamodules.common.errors import RunError, Stopped
from federations import Unaugmented, few_data, make_federation, run_rows, site_of
from methods.base import Pass, Stream

ENGINES = [{}, {"slots": 2}]
CLIENT = r"client 0 \(83 images\), round 0: "


class Plain(Unaugmented):
    """It counts visits in a personal tensor."""

    scopes = {"count": "personal"}

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.register_buffer("count", torch.zeros(()))


def refusal(cls, clients=3, labelled=None, rounds=2, data=None, **args):
    """What the error of a run says."""
    run = make_federation(cls, data or few_data(clients, labelled), rounds, **args)
    with pytest.raises(RunError) as refused:
        run_rows(run)
    return str(refused.value)


# --- registered tensors that are replaced


def count_anew(self):
    self.count = self.count + 1


def data_anew(self):
    weight = self.model.conv1.weight
    weight.data = weight.data.clone()


def module_anew(self):
    self.model.conv1 = nn.Conv2d(3, 32, 3)


def register_more(self):
    self.register_buffer("more", torch.zeros(()))


ANEW = {count_anew: "count", data_anew: "model.conv1.weight", module_anew: "model.conv1.weight", register_more: "more"}
VISITS = ("local_work", "on_train_epoch_end", "make_upload")
OUTSIDE = ("select_clients", "broadcast", "aggregate", "remember", "is_warmup", "refresh_norm", "predict")


def binding(hook, change):
    """A method that changes in a hook what its name stands for."""

    def run(self, *args):
        change(self)
        return getattr(super(cls, self), hook)(*args)

    cls = type("Binds", (Plain,), {hook: run})
    return cls


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("change", ANEW, ids=lambda change: change.__name__)
def test_a_registered_tensor_that_is_replaced_is_refused(change, engine):
    """Its values would be lost: the framework reads and writes the tensor of the start."""
    said = refusal(binding("on_train_epoch_end", change), **engine)
    start = f"Binds, client 0 (83 images), round 0: the registered tensor {ANEW[change]!r} "
    assert said.startswith(start) and "in place" in said


@pytest.mark.parametrize("hook", [*VISITS, *OUTSIDE, "server_step"])
def test_in_whatever_hook(hook):
    """The error names the client, or else the hook."""
    said = refusal(binding(hook, count_anew))
    place = "Binds, the server" if hook == "server_step" else f"Binds.{hook}" if hook in OUTSIDE else "Binds, client 0"
    assert said.startswith(place) and "the registered tensor 'count' " in said


def count_in_place(self):
    self.count += 1


@pytest.mark.parametrize("engine", ENGINES)
def test_what_changes_in_place_stays(engine):
    """Also under its own name, as ``+=`` binds it."""
    run = make_federation(binding("local_work", count_in_place), few_data(3), 2, **engine)
    run_rows(run)
    assert [float(run.clients[k].tensors["count"]) for k in range(3)] == [2, 2, 2]


# --- images of others


class Places(Plain):
    """The slip: places within the client's images in place of positions in the training set."""

    def local_work(self, client):
        count = len(client.data.labelled)
        return [Pass({"labelled": Stream(torch.arange(count), 32, self.views["labelled"], {"y": client.data.labels})})]


class Looks(Plain):
    """Looks at images by their places."""

    def local_work(self, client):
        list(client.views("test", torch.arange(5)))
        return super().local_work(client)


class LooksBack(Plain):
    """Looks at the images of the client before."""

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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cls", [Places, Looks, Reports, Asks])
def test_images_of_others_are_refused(cls, engine):
    said = refusal(cls, **engine)
    assert re.match(rf"{cls.__name__}, {CLIENT}.*training images that the site does not hold", said), said


def test_images_of_the_visit_before_are_refused():
    assert re.match(r"LooksBack, client 1 .*training images that the site does not hold", refusal(LooksBack))


def test_own_images_may_be_taken_in_any_part_and_order():
    run = make_federation(Plain, few_data(3), 1)
    site = site_of(run)
    index = site.data.labelled.flip(0)[::2].repeat(2)
    assert sum(len(x) for x in site.views("test", index)) == len(index)
    assert not list(site.views("test", index[:0]))


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


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_logged_under_one_name_has_one_shape(engine):
    """Also where torch would add a number to a vector without a word."""
    told = "'norms' is logged in the shape [{}] {}, and in the shape [{}] {}; log one shape under one name"
    said = refusal(Lengths, **engine)
    assert said == f"Lengths.log, round 0: {told.format(1, 'by client 0', 2, 'by client 1')}"
    assert refusal(AtServer, **engine).endswith(told.format(2, "in aggregate", "", "in server_step"))
    assert refusal(WithinVisit, batch_size=32, **engine).startswith("WithinVisit, client 0 (83 images), round 0: ")


# --- errors of any kind


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise ValueError("no words")


class Outside(BaseException):
    """Nobody's error."""


KINDS = {
    "Outside: of the tree": Outside("of the tree"),
    "Mute: (its message cannot be read)": Mute(),
    "the method ended the program (exit code 3)": SystemExit(3),
}


@pytest.mark.parametrize("told", KINDS)
def test_an_error_of_any_kind_says_where_it_was(told):
    """In a visit, at the server, and in a hook that is outside of both."""
    for hook, where in {"training_step": "Raises, client 0 (83 images)", "predict": "Raises.predict"}.items():

        def raises(self, *args):
            raise KINDS[told]

        assert refusal(type("Raises", (Plain,), {hook: raises})).startswith(f"{where}, round 0: {told}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), "Stopped"], ids=repr)
def test_who_asks_to_stop_is_not_taken_for_an_error(error):
    asked = Stopped(SIGTERM) if error == "Stopped" else error

    class Stops(Plain):
        def training_step(self, batch, batch_idx):
            raise asked

        def aggregate(self, uploads):
            raise asked

    for base in (Stops, type("Stops", (Stops,), {"training_step": Plain.training_step})):
        with pytest.raises(type(asked)):
            run_rows(make_federation(base, few_data(2), 1))
