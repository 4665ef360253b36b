"""Data modules: sites hold what they may, views are right, hidden labels stay hidden, a plain ``Trainer`` works."""

import numpy as np
import pytest
import torch

from benchmark.registry import KINDS, find_class
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, DataError, RunError
from datamodules.digits import Digits
from datamodules.io import sources
from datamodules.partition.sites import true_labels
from federations import SCENARIOS, few_data, make_data


@pytest.fixture(scope="module")
def digits():
    return Digits().read()


class Vectors(FSSLDataModule):
    """Feature vectors of a user: the class says no more than of images."""

    num_classes, mean, std = 2, (), ()
    lengths = 5, 5

    def read(self):
        train, test = (np.zeros((40, 2, length), np.float32) for length in self.lengths)
        return sources.Arrays(train, np.arange(40) % 2, test, np.arange(40) % 2, ("a", "b"), {})


# --- data sets


CONSTANTS = {
    # name: mean, standard deviation, side of the input, side before the crop
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), 32, 40),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 32, 40),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 32, 40),
    "fashion_mnist": ((0.2860,), (0.3530,), 32, 36),
    "mnist": ((0.1307,), (0.3081,), 32, 36),
    "isic2018": ((0.7630, 0.5456, 0.5700), (0.1409, 0.1526, 0.1700), 224, 250),
    "cinic10": ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587), 32, 40),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_images_look_as_in_the_papers(name):
    """RSCFed's, CBAFed's and (for CINIC-10) FedDure's constants, to four digits; suites rely on them."""
    data = find_class(name, KINDS["data"])()
    mean, std = (tuple(round(value, 4) for value in values) for values in (data.mean, data.std))
    assert (mean, std, data.image_size, data.views["weak"].geometry.side) == CONSTANTS[name]


@pytest.mark.parametrize("pipeline", ["zoom_crop_flip", "randaugment_uniform"])
def test_mnist_is_not_flipped_unless_asked(pipeline):
    mnist = find_class("mnist", KINDS["data"])
    for data, flip in ((mnist(pipeline=pipeline), 0.0), (mnist(pipeline=pipeline, flip=0.5), 0.5)):
        assert {view.geometry.flip for name, view in data.views.items() if name != "test"} == {flip}


def test_blocks_of_views_have_bounded_pixels():
    assert [Digits(side=side).block for side in (8, 32, 64, 224, 2048)] == [1024, 1024, 256, 20, 1]


def test_the_length_of_feature_vectors_is_measured():
    """A network is built for it, so both parts have the same."""
    shaped = {"num_clients": 2, "partition": "iid", "pipeline": "feature_versions"}
    data = Vectors(**shaped)
    data.setup()
    assert data.feature_dim == data.take("weak", torch.arange(3)).shape[1] == 5
    other = type("Other", (Vectors,), {"lengths": (5, 6)})(**shaped)
    with pytest.raises(
        DataError, match=r"Other\.read: .* both feature vectors of one length; they are .* 5\] and .* 6\]"
    ):
        other.setup()


def test_overwritten_images_are_what_views_are_cut_from():
    """The partition stays, labels that sites see are the new ones, and blocks of test images are the new ones."""
    data = make_data()
    partition, site, index = data.partition, data.client(0), torch.arange(4)
    before = data.take("test", index)
    data.overwrite(train_images=255 - data.train_images, train_labels=9 - true_labels(data))
    assert not torch.equal(data.take("test", index), before)
    assert data.partition is partition and torch.equal(data.client(0).labelled, site.labelled)
    assert torch.equal(data.client(0).labels, 9 - site.labels)
    (_, whole), *_ = data.test_blocks(1000)
    before = whole()
    data.overwrite(test_images=255 - data.test_images)
    (_, whole), *_ = data.test_blocks(1000)
    assert not torch.equal(whole(), before)


# --- who holds what


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sites_share_out_the_images(scenario, digits):
    """No image is at two places; labels are true, and only where the scenario has them."""
    data = make_data(scenario)
    sites = [data.client(k) for k in range(data.num_clients)]
    everything = torch.cat([i for s in [*sites, data.server] for i in (s.labelled, s.unlabelled)])
    assert len(everything.unique()) == len(everything) > 1400
    truth = torch.from_numpy(digits.train_labels)
    for site in [*sites, data.server]:
        assert torch.equal(site.labels, truth[site.labelled])
        assert site.size == len(site.labelled) + len(site.unlabelled)
        assert {t.dtype for t in (site.labelled, site.labels, site.unlabelled)} == {torch.int64}
    holders = [k for k, s in enumerate(sites) if len(s.labelled)]
    assert holders == {"partial_clients": [0], "server": [], "all_clients": list(range(len(sites)))}[scenario]
    assert len(data.server.labelled) == (40 if scenario == "server" else 0)
    assert len(data.server.unlabelled) == 0
    assert data.roster(0).labelled == tuple(holders)
    hidden = torch.cat([s.unlabelled for s in sites])
    assert set(hidden.tolist()) <= set(data.pool().tolist())


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("partial_clients", {"num_clients": 40, "partition": "dirichlet", "beta": 0.02, "min_size": 0}),
        ("all_clients", {}),
    ],
)
def test_an_exported_partition_comes_back(scenario, options, tmp_path):
    """The same images and labels at every client, also at one that has nothing."""
    data, file = make_data(scenario, **options), str(tmp_path / "partition.json")
    assert not options or min(site.size for site in data.clients) == 0
    data.export(file)
    again = make_data(scenario, partition_file=file, num_clients=data.num_clients, num_labels=None)
    assert again.client_names == data.client_names
    for site, other in zip(data.clients, again.clients, strict=True):
        assert site.labelled.tolist() == other.labelled.tolist()
        assert sorted(site.unlabelled.tolist()) == other.unlabelled.tolist()
    with pytest.raises(DataError, match=rf"{data.num_clients} clients; give --data\.num_clients {data.num_clients}"):
        make_data(partition_file=file, num_clients=3)


def test_what_a_server_holds_is_not_exported(tmp_path):
    with pytest.raises(ConfigError, match="the server holds labelled images"):
        make_data("server").export(str(tmp_path / "partition.json"))
    assert not list(tmp_path.iterdir())


def test_the_partition_follows_its_seed_or_that_of_the_run():
    seeds = ({"partition_seed": 4}, {"partition_seed": None, "run_seed": 4}, {"partition_seed": 5})
    fixed, follows, other = (make_data(**args).partition.hash for args in seeds)
    assert fixed == follows != other


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_validation_images_go_to_nobody(scenario):
    """Not to the server, and not into the pool, which otherwise have all images."""
    for count in (0, 200):
        data = make_data(scenario, validation=count)
        owned = torch.cat([part for site in [data.server, *data.clients] for part in (site.labelled, site.unlabelled)])
        assert len({*owned.tolist(), *data.pool().tolist()}) == data.num_images - count
    with pytest.raises(ConfigError, match="validation=5000"):
        make_data(scenario, validation=5000)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("options", [{"labelled_holdout": 0.25}, {"balanced_holdout": 50, "validation": 200}])
def test_held_out_images_can_be_tested_on_instead(scenario, options, digits):
    """Tuning must not see test images: labelled or balanced training images take their place, at no site."""
    data = make_data(scenario, **options)
    shown = data.views["test"](data.views["test"].geometry.prepare(data.train_images), torch.arange(1437), None)
    [(_, block)] = data.test_blocks(10_000)
    tested = [int((shown == image).flatten(1).all(1).nonzero()[0]) for image in block()]
    assert torch.equal(data.test_labels, torch.from_numpy(digits.train_labels)[tested])
    assert "labelled_holdout" in options or torch.bincount(data.test_labels).tolist() == [5] * 10
    trained = torch.cat([part for site in [data.server, *data.clients] for part in (site.labelled, site.unlabelled)])
    assert not {*tested} & {*trained.tolist()}


@pytest.mark.parametrize("share", [1.0, -0.1, 0.99, 1e-9])
def test_a_holdout_leaves_every_site_a_label(share):
    with pytest.raises(ConfigError, match="labelled_holdout"):
        make_data("all_clients", labelled_holdout=share)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"scenario": "server", "num_labels": None}, r"data\.scenario=server needs data\.num_labels: give it"),
        ({"scenario": "all_clients", "labels_per_class": 0}, "labels_per_class=0: it should be greater than"),
        ({"mean": [0.1, 0.2], "channels": 1}, r"give one number, or one per channel \(data\.channels=1\)"),
        ({"pipeline": "blur"}, "unknown pipeline 'blur'; choose one of .*zoom_crop_flip"),
        ({"side": 4, "pipeline": "pad_crop_flip"}, r"data\.side=4: this pipeline mirrors 4 pixels .* choose 5 or more"),
        ({"picked": 3, "num_clients": 3, "labelled_from": 10}, "picked=3 of 3 clients leaves none: pick fewer"),
        ({"zoom": 30}, r"a window of 32 does not fit into 30: enlarge to at least 32 .*data\.zoom.*data\.side"),
        ({"num_labels": 40}, r"data\.num_labels has no effect with data\.scenario=partial_clients"),
    ],
)
def test_options_that_cannot_be(args, message):
    """Of their own, of the pipeline, and of the partition, before ``setup`` ends."""
    with pytest.raises(ConfigError, match=message):
        Digits(**args).setup()


# --- views


def test_views_are_normalised_pixels(digits):
    """The test view is (x / 255 - mean) / std of the stored pixels, three times over."""
    data = make_data()
    index = torch.tensor([5, 900, 5])
    pixels = torch.from_numpy(digits.train_images)[index].permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    views = data.take("test", index)
    torch.testing.assert_close(views, (pixels / 255 - data.mean[0]) / data.std[0], rtol=1e-5, atol=1e-5)
    assert views.dtype == torch.float32 and views.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ConfigError, match=r"'zoom_crop_flip' has no view 'strong', only weak, test; choose another"):
        data.take("strong", index)
    with pytest.raises(RunError, match=r"^random views need a torch\.Generator"):
        data.take("weak", index)


def test_test_images_can_be_normalised_by_constants_of_their_own(digits):
    """As in SAGE's and ProxyFL's released codes; training images keep theirs."""
    plain, other = make_data(), make_data(test_mean=[0.25], test_std=[0.5])
    (_, block), *_ = other.test_blocks(4)
    pixels = torch.from_numpy(digits.test_images[:4]).permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    torch.testing.assert_close(block(), (pixels / 255 - 0.25) / 0.5, rtol=1e-5, atol=1e-5)
    weak = (data.take("weak", torch.arange(4), torch.Generator().manual_seed(0)) for data in (plain, other))
    assert torch.equal(*weak)
    assert torch.equal(*(data.take("test", torch.arange(4)) for data in (plain, other)))  # of training images
    same = make_data(test_mean=[float(plain.mean[0])], test_std=[float(plain.std[0])])
    assert torch.equal(next(iter(same.test_blocks(4)))[1](), next(iter(plain.test_blocks(4)))[1]())


@pytest.mark.parametrize("size", [1, 100, 360, 1000])
def test_blocks_of_test_images_come_in_order(size, digits):
    data = make_data()
    whole = torch.from_numpy(digits.test_images).permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    numbers, blocks = zip(*[(n, block()) for n, block in data.test_blocks(size)], strict=True)
    assert numbers == tuple(range(-(-360 // size)))
    torch.testing.assert_close(torch.cat(blocks), (whole / 255 - data.mean[0]) / data.std[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(data.test_labels, torch.from_numpy(digits.test_labels))


def test_placing_changes_the_type_of_views_and_nothing_else():
    data, index = make_data(), torch.arange(9)
    before, site = data.take("test", index), data.client(2).unlabelled
    data.place(torch.device("cpu"), torch.float64)
    assert torch.equal(data.take("test", index), before.double())
    assert next(data.test_blocks(5))[1]().dtype == torch.float64
    assert torch.equal(data.client(2).unlabelled, site)
    assert torch.equal(data.client(0).labels, true_labels(data)[data.client(0).labelled])


def test_training_images_are_enlarged_in_proportion():
    """By a quarter, unless the data set says otherwise; whatever the side of the input is."""

    class Large(Digits):
        image_size = 64

    class Close(Digits):
        zoom_size = 36

    def zoom(data):
        return data.views["weak"].geometry.side

    assert [zoom(Digits(**given)) for given in ({}, {"side": 16}, {"side": 16, "zoom": 17})] == [40, 20, 17]
    assert (zoom(Large()), zoom(Close()), zoom(Close(side=64))) == (80, 36, 72)


def test_a_client_is_one_of_those_that_there_are():
    data = make_data()
    with pytest.raises(ConfigError, match=r"Digits knows its clients after setup\(\)"):
        Digits().client(0)
    for wrong in (-1, data.num_clients):
        with pytest.raises(ConfigError, match=rf"no client {wrong}: choose 0 to {data.num_clients - 1}; the server is"):
            data.client(wrong)


def test_pooled_labels_make_every_client_a_labelled_one():
    """The roster counts what the clients hold, not what the partition gave them."""
    data = few_data(4, 1, hidden_labels="pooled")
    assert data.roster(0).labelled == (0, 1, 2, 3)
    assert few_data(4, 1).roster(0).labelled == (0,)
