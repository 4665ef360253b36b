"""Data modules: sites hold what they may, views are right, hidden labels stay hidden, a plain ``Trainer`` works."""

import numpy as np
import pytest
import torch

from benchmark.registry import KINDS, find_class
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, DataError, RunError
from datamodules.digits import Digits
from datamodules.io import sources
from datamodules.partition.sites import HIDDEN, SiteData, true_labels
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


@pytest.mark.parametrize(
    ("name", "options", "side"),
    [
        ("cifar10", {"side": 16}, 20),
        ("cifar10", {"side": 16, "zoom": 17}, 17),
        ("mnist", {}, 36),
        ("isic2018", {"side": 448}, 500),
    ],
)
def test_training_images_are_enlarged_in_proportion(name, options, side):
    """By a quarter, unless the data set says otherwise; whatever the side of the input is."""
    assert find_class(name, KINDS["data"])(**options).views["weak"].geometry.side == side


def test_the_constants_of_digits_are_those_of_the_training_images():
    """To the digits that are given."""
    data, arrays = make_data(), Digits().read()
    pixels = torch.from_numpy(arrays.train_images).double() / 255
    assert len(data.train_images) == 1437 and len(data.test_labels) == 360
    assert round(float(pixels.mean()), 4) == data.mean[0]
    assert round(float(pixels.std()), 4) == data.std[0]
    assert data.class_names == tuple("0123456789") and data.sha256 == arrays.sha256
    data.prepare_data()


def test_what_one_reader_of_digits_changes_no_other_sees():
    first, before = Digits().read(), Digits().read().train_images.copy()
    first.train_images[:] = 0
    first.train_labels[:] = 0
    again = Digits().read()
    assert (again.train_images == before).all() and again.train_labels.any()


def test_mnist_is_not_flipped_unless_asked():
    mnist = find_class("mnist", KINDS["data"])
    assert [data.views["weak"].geometry.flip for data in (mnist(), mnist(flip=0.5))] == [0.0, 0.5]


def test_blocks_of_views_have_bounded_pixels():
    assert [Digits(side=side).block for side in (8, 32, 64, 224, 2048)] == [1024, 1024, 256, 20, 1]


def test_the_length_of_feature_vectors_is_measured():
    """A network is built for it, so both parts have the same."""
    shaped = {"num_clients": 2, "partition": "iid", "pipeline": "feature_versions"}
    data = Vectors(**shaped)
    data.setup()
    assert data.feature_dim == data.take("weak", torch.arange(3)).shape[1] == 5
    other = type("Other", (Vectors,), {"lengths": (5, 6)})(**shaped)
    with pytest.raises(DataError, match=r"Other\.read: .* feature vectors of one length; they are .* 5\] and .* 6\]"):
        other.setup()


def test_overwritten_images_are_what_views_are_cut_from():
    """The partition stays, labels that sites see are the new ones, and so are test images."""
    data = make_data()
    partition, site, index = data.partition, data.client(0), torch.arange(4)
    before, tested = data.take("test", index), next(data.test_blocks(4))[1]()
    data.overwrite(train_images=255 - data.train_images, train_labels=9 - true_labels(data))
    assert not torch.equal(data.take("test", index), before)
    data.overwrite(test_images=255 - data.test_images)
    assert not torch.equal(next(data.test_blocks(4))[1](), tested)
    assert data.partition is partition and torch.equal(data.client(0).labelled, site.labelled)
    assert torch.equal(data.client(0).labels, 9 - site.labels)


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


def test_what_a_partition_file_cannot_say_is_not_exported(tmp_path):
    held_out = make_data("partial_clients", labelled_holdout=0.5)
    for data, why in ((make_data("server"), "the server holds labelled images"), (held_out, "are held out")):
        with pytest.raises(ConfigError, match=why):
            data.export(str(tmp_path / "partition.json"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("options", [{"labelled_holdout": 0.25}, {"balanced_holdout": 50, "validation": 200}])
def test_held_out_images_can_be_tested_on_instead(scenario, options, digits):
    """Tuning must not see test images: labelled or balanced training images take their place, at no site."""
    data = make_data(scenario, **options)
    places = {image.tobytes(): place for place, image in enumerate(digits.train_images)}
    tested = [places[image.numpy().tobytes()] for image in data.test_images]
    [(_, block)] = data.test_blocks(10_000)
    assert torch.equal(block(), data.take("test", torch.tensor(tested)))
    assert torch.equal(data.test_labels, torch.from_numpy(digits.train_labels)[tested])
    assert "labelled_holdout" in options or torch.bincount(data.test_labels).tolist() == [5] * 10
    trained = torch.cat([part for site in [data.server, *data.clients] for part in (site.labelled, site.unlabelled)])
    assert not {*tested} & {*trained.tolist(), *data.pool().tolist()}


IID = {"scenario": "all_clients", "partition": "iid"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"labelled_holdout": 0.5, "balanced_holdout": 9}, r"labelled_holdout=0\.5 and data\.balanced_holdout=9: "),
        ({"validation": 9, "partition_file": "x"}, r"data\.partition_file=x and data\.validation=9: .* only one"),
        ({"hidden_labels": "pooled", "union_mode": "labelled"}, "hidden_labels=pooled .* choose data.union_mode=none"),
        ({"num_labels": 40}, r"data\.num_labels .* with data\.scenario=partial_clients: choose server or all_clients"),
        ({"scenario": "server", "num_labels": None}, r"data\.scenario=server needs data\.num_labels: give it"),
        ({**IID, "num_labels": 100, "labelled_holdout": 0.99}, "every site keeps one, so 1 to 90 can be held out"),
        ({"labelled_holdout": 1e-9}, "labelled_holdout=1e-09 of the labelled images is 0"),
        ({"balanced_holdout": 55}, "balanced_holdout=55: give a multiple of 10 classes, up to "),
        ({"validation": 1437}, "validation=1437: give a number below the 1437 training images"),
        ({"validation": 5, "balanced_holdout": 10}, "and from 10, the images of data.balanced_holdout"),
        ({"pipeline": "blur"}, "unknown pipeline 'blur'; choose one of .*zoom_crop_flip"),
        ({"side": 4, "pipeline": "pad_crop_flip"}, r"data\.side=4: this pipeline mirrors 4 pixels .* choose 5 or more"),
        ({"picked": 3, "num_clients": 3, "labelled_from": 10}, "picked=3 of 3 clients leaves none: pick fewer"),
        ({"zoom": 30}, r"a window of 32 does not fit into 30: enlarge to at least 32 .*data\.zoom.*data\.side"),
    ],
)
def test_options_that_cannot_be(args, message):
    """Of their own, of the pipeline, and of the partition, before ``setup`` ends."""
    with pytest.raises(ConfigError, match=message):
        Digits(**args).setup()


@pytest.mark.parametrize(
    ("option", "fits"),
    [
        ({"beta": 0.0}, 1e-300),
        ({"beta": float("inf")}, 1e100),
        ({"partition_seed": 2**32}, 2**32 - 1),
        ({"test_std": [0.0]}, [1.0]),
        ({"mean": [float("nan")]}, [0.0]),
        ({"test_mean": [0.1, 0.2]}, [0.1, 0.2, 0.3]),
        ({"scenario": "servers"}, "partial_clients"),
    ],
)
def test_values_out_of_range(option, fits):
    (name,) = option
    Digits(**{name: fits})
    with pytest.raises(ConfigError, match=name):
        Digits(**option)


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


def test_a_client_is_one_of_those_that_there_are():
    data = make_data()
    with pytest.raises(ConfigError, match=r"Digits knows its clients after setup\(\)"):
        Digits().client(0)
    for wrong in (-1, data.num_clients):
        with pytest.raises(ConfigError, match=rf"no client {wrong}: choose 0 to {data.num_clients - 1}; the server is"):
            data.client(wrong)


@pytest.mark.parametrize("labels", ["hidden", "revealed"])
def test_a_data_module_has_the_labels_that_a_site_has(labels):
    data = make_data(hidden_labels=labels)
    known = torch.zeros(data.num_images, dtype=torch.bool)
    for site in data.clients:
        known[torch.cat([site.labelled, *([site.unlabelled] if labels == "revealed" else [])])] = True
    assert torch.equal(data.train_labels != HIDDEN, known)
    assert torch.equal(data.train_labels[known], true_labels(data)[known])


def test_the_roster_counts_what_the_clients_hold():
    """Not what the partition gave them: pooled labels, and what a client was handed."""
    data = few_data(4, 1, hidden_labels="pooled")
    assert data.roster(0).labelled == (0, 1, 2, 3) and few_data(4, 1).roster(0).labelled == (0,)
    site = data.client(1)
    data.clients[1] = SiteData(site.labelled[:0], site.labels[:0], site.labelled[:3])
    assert data.client(1).size == 3 and data.roster(0).labelled == (0, 2, 3)


def test_repeated_labels_reach_the_client():
    """The batches come from the longer list."""
    options = {"num_labels": None, "labels_per_class": 5}
    plain, twice = (make_data("all_clients", **options, labelled_repeats=mode) for mode in ("none", "second_class"))
    assert plain.partition.hash == twice.partition.hash
    longer = [len(twice.client(k).labelled) - len(plain.client(k).labelled) for k in range(plain.num_clients)]
    assert max(longer) == 5
    assert len(twice.client(longer.index(5)).labels[-5:].unique()) == 1


def test_labelled_images_can_stand_in_front_of_a_clients_unlabelled_ones():
    """As in FedDB and ProxyFL."""
    data = few_data(4, scenario="all_clients", num_labels=40, union_mode="labelled")
    for site, unlabelled in zip(data.clients, data.partition.unlabelled, strict=True):
        assert site.unlabelled.tolist() == [*site.labelled.tolist(), *unlabelled.tolist()]
        assert len(site.labelled) == 10
