"""What people have: images without labels, clients with names, folders in other layouts, links."""

import json
import math
import os
from unicodedata import normalize

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark import cli
from benchmark.contract.isolation import others_are_wrong
from benchmark.runs.records import read_record, read_rows
from datamodules.common.errors import ConfigError, DataError
from datamodules.folder import Folder
from datamodules.npz import Npz
from datamodules.partition.sites import HIDDEN, true_labels

RNG = np.random.RandomState(0)
SERVER = ["--data.scenario", "server", "--data.unlabelled_only", "true", "--data.pipeline", "randaugment_uniform"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def draw(*places, count=4, suffix="png"):
    """Save ``count`` images in each folder."""
    for place in places:
        os.makedirs(place, exist_ok=True)
        for number in range(count):
            Image.fromarray(RNG.randint(0, 256, (8, 8), np.uint8)).save(f"{place}/{number}.{suffix}")


def file_of(**parts):
    """A file of 12 training images of three classes and 6 test images, with more."""
    images = RNG.randint(0, 256, (18, 8, 8), np.uint8)
    own = {"train_images": images[:12], "train_labels": np.arange(12) % 3}
    tested = {"test_images": images[12:], "test_labels": np.arange(6) % 3}
    np.savez("x.npz", **{**own, **tested, **parts})


def ready(kind, **options):
    data = kind(data_dir="data", **{"num_clients": 3, "min_size": 0, **options})
    data.setup()
    return data


def pictures(**options):
    return ready(Folder, root="pictures", **options)


def lists(parts):
    return [sorted(part.tolist()) for part in parts]


# --- images without labels


@pytest.mark.parametrize(
    ("scenario", "name"), [("server", "unlabeled"), ("partial_clients", "Unlabelled"), ("all_clients", "unlabeled")]
)
def test_images_without_a_label_become_those_of_clients(scenario, name, here):
    """Every label stays known with ``unlabelled_only``, and the clients share the others, none twice."""
    draw("pictures/train/a", "pictures/train/b", "pictures/test/a", "pictures/test/b", count=6)
    draw(f"pictures/{name}/sub", count=9)
    data = pictures(scenario=scenario, unlabelled_only=True)
    sites = [*data.clients, data.server]
    held = sorted(place for site in sites for place in site.unlabelled.tolist())
    assert held == list(range(12, 21)) and (true_labels(data)[12:] == HIDDEN).all() and len(data.train_images) == 21
    assert sum(len(site.labelled) for site in sites) == 12 and data.num_classes == 2
    assert sorted(data.pool().tolist()) == held
    takers = [len(site.unlabelled) for site in data.clients]
    assert takers == ([0, 5, 4] if scenario == "partial_clients" else [3, 3, 3])
    assert len(data.server.labelled) == (12 if scenario == "server" else 0)
    with others_are_wrong(pictures(scenario=scenario, unlabelled_only=True)):
        assert (true_labels(data) == HIDDEN).tolist() == [False] * 12 + [True] * 9
    assert data.class_counts("unlabelled").sum() == 0 and "9 without a label" in data.about()


def test_hidden_labels_and_unknown_ones_go_together(here):
    """Labels are drawn and images held out among those that have one; options that need all labels are refused."""
    labels = np.arange(12) % 3
    labels[9:] = HIDDEN
    file_of(train_labels=labels, unlabelled_images=RNG.randint(0, 256, (5, 8, 8), np.uint8))
    data = ready(Npz, file="x.npz", scenario="server", num_labels=3, validation=2)
    assert data.test_images.shape[0] == 6 and len(data.train_images) == 17
    unlabelled = sorted(place for site in data.clients for place in site.unlabelled.tolist())
    held = {*range(17)} - {*unlabelled}
    assert len(held) == 3 + 2 and {*data.server.labelled.tolist()} < held and max(held) < 9
    assert data.class_counts("unlabelled").sum() == 4
    shared = ready(Npz, file="x.npz", scenario="all_clients", label_fraction=0.5)
    shared.export(str(here / "saved.json"))
    again = ready(Npz, file="x.npz", partition_file=str(here / "saved.json"))
    assert lists(again.partition.labelled) == lists(shared.partition.labelled)
    mixed = ready(Npz, file="x.npz", split="random80", scenario="server", num_labels=3)
    assert (mixed.test_labels >= 0).all() and len(mixed.train_images) == math.floor(15 * 0.8) + 8
    assert len(ready(Npz, file="x.npz", scenario="server", num_labels=3, balanced_holdout=3).test_labels) == 3
    for options in ({"hidden_labels": "revealed"}, {"scenario": "server", "num_labels": 3, "unlabelled_only": True}):
        with pytest.raises(ConfigError, match=r"leave .*out"):
            ready(Npz, file="x.npz", **options)
    file_of()
    with pytest.raises(ConfigError, match="every training image has a label"):
        ready(Npz, file="x.npz", unlabelled_only=True)


def test_a_run_trains_on_them_and_measures_nothing_that_needs_their_labels(here, capsys):
    """``fixmatch`` selects pseudo-labels; how many are right, and how good clients are, is unknown."""
    draw("pictures/train/a", "pictures/train/b", "pictures/test/a", "pictures/test/b", count=6)
    draw("pictures/unlabeled", count=12)
    (here / "pictures/train/a/notes.txt").write_text("x")
    common = ["--data", "folder", "--data.root", "pictures", "--data.num_clients", "3", *SERVER]
    trained = ["--method", "fixmatch", "--method.threshold", "0.0", "--model", "mlp", "--rounds", "1", "--devices", "1"]
    assert cli.main(["fit", *common, *trained, "--wandb", "off"]) == 0
    told = capsys.readouterr()
    for words in ("a 6, b 6, 12 without a label; 12 test images", "1 .txt"):
        assert words in told.out + told.err
    (path,) = here.glob("results/runs/*")
    (row,) = [row for row in read_rows(path) if "pseudo/selected" in row]
    assert row["pseudo/selected"] == 1 and "acc" in row
    assert not {"pseudo/right", "pseudo/correct", "pseudo/accuracy", "acc_clients"} & {*row}
    assert read_record(path)["class_counts"]["server"] == ["6 6"]
    assert cli.main(["describe", *common]) == 0
    assert "unknown" in capsys.readouterr().out


def test_feature_vectors_of_ones_own(here):
    """In two versions, the first of which is the test samples' only one."""
    labels = np.arange(60) % 3
    vectors = RNG.randn(60, 2, 5).astype(np.float32)
    np.savez("v.npz", train_images=vectors, train_labels=labels, test_images=vectors[:9, :1], test_labels=labels[:9])
    data = ready(Npz, file="v.npz", pipeline="feature_versions")
    assert data.feature_dim == 5 and data.provenance["measured"]["image_shape"] == [2, 5]
    _, block = next(data.test_blocks(9))
    assert torch.equal(block(), torch.from_numpy(vectors[:9, 0]))


# --- clients with names


def test_clients_are_the_folders_above_the_classes(here):
    """A class that a client lacks, images without a label, and a client's own test images."""
    draw("pictures/train/zoe/a", "pictures/train/zoe/b", "pictures/train/ann/a", "pictures/train/bob/b")
    draw("pictures/train/bob/unlabeled", "pictures/unlabeled/ann", "pictures/unlabeled", count=3)
    draw("pictures/test/a", "pictures/test/b")
    data = pictures(clients_in="folders", labelled_clients=1)
    assert data.client_names == ("ann", "bob", "zoe") and data.class_names == ("a", "b")
    assert data.class_counts("all").tolist() == [[4, 0], [0, 4], [4, 4]]
    assert data.roster(0).labelled == (2,), "it has all classes"
    assert [site.size for site in data.clients] == [4 + 3 + 2, 4 + 3 + 1, 8]
    with pytest.raises(DataError, match="num_clients 3"):
        pictures(clients_in="folders", num_clients=10)
    with pytest.raises(DataError, match=r"bob/unlabeled: .*if bob is a client, give --data\.clients_in folders"):
        pictures()
    os.rename("pictures/train/bob/unlabeled", "pictures/unlabeled/bob")
    with pytest.raises(DataError, match=r"same classes.*clients_in folders"):
        pictures()
    os.rename("pictures/test", "elsewhere")
    assert "folders inside classes belong to them: a, b; if these are classes" in pictures(num_clients=3).about()
    os.rename("elsewhere", "pictures/test")
    os.rename("pictures/unlabeled/bob", "pictures/train/bob/unlabeled")
    os.rename("pictures/train/bob", "pictures/bob")
    pooled = pictures(clients_in="folders", num_clients=2, scenario="server", num_labels=4)
    assert len(pooled.server.labelled) == 4 and pooled.class_counts("unlabelled").sum() == 8


def test_a_client_may_have_images_without_a_label_alone(here):
    """They went to other clients."""
    draw("pictures/ann/a", "pictures/ann/b", "pictures/zoe/a", "pictures/unlabeled/bob/more")
    data = pictures(clients_in="folders", test_fraction=0.25)
    assert data.client_names == ("ann", "bob", "zoe")
    assert data.clients[1].unlabelled.tolist() == np.flatnonzero(true_labels(data) == HIDDEN).tolist()


def test_labelled_clients_may_be_named(here):
    file_of(client_ids=np.array([10, 9, 2] * 4))
    given = {"file": "x.npz", "clients_in": "client_ids"}
    assert [len(part) for part in ready(Npz, **given, labelled_pick=[10]).partition.labelled] == [0, 0, 4]
    for options, message in (
        ({**given, "labelled_pick": ["9", "12"]}, "names '12'; clients that are given: 2, 9, 10"),
        ({**given, "labelled_pick": ["9", "2"]}, "give --data.labelled_clients 2"),
        ({"file": "x.npz", "labelled_pick": ["9"], "min_size": 1}, "those that are drawn have no names"),
        ({**given, "labelled_pick": ["9"], "scenario": "all_clients"}, "no effect with data.scenario=all_clients"),
    ):
        with pytest.raises(ConfigError, match=message):
            ready(Npz, **options)


@pytest.mark.parametrize("ids", [[10, 9, 2] * 4, ["x", "b", "c"] * 4])
def test_clients_are_those_that_an_array_names(ids, here):
    file_of(client_ids=np.array(ids))
    data = ready(Npz, file="x.npz", clients_in="client_ids", scenario="all_clients", label_fraction=0.5)
    assert data.client_names == tuple(map(str, sorted(set(ids))))
    assert [len(part) for part in data.partition.labelled] == [2, 2, 2]
    owners = {place: name for site, name in zip(data.clients, data.client_names, strict=True)
              for place in [*site.labelled.tolist(), *site.unlabelled.tolist()]}  # fmt: skip
    assert [owners[place] for place in range(12)] == list(map(str, ids))
    assert "client_ids" in ready(Npz, file="x.npz").about()
    for options in ({"split": "random80"}, {"labelled_from": 2}, {"partition_file": "x.json"}):
        with pytest.raises((DataError, ConfigError), match=r"split|labelled_from|x\.json"):
            ready(Npz, file="x.npz", clients_in="client_ids", **options)
    file_of()
    with pytest.raises(DataError, match="no client_ids"):
        ready(Npz, file="x.npz", clients_in="client_ids")


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64])
def test_numbers_of_clients_have_any_type(kind, here):
    file_of(client_ids=np.array([200, 9, 2] * 4).astype(kind), unlabelled_images=np.ones((3, 8, 8), np.uint8))
    data = ready(Npz, file="x.npz", clients_in="client_ids", num_clients=2 if kind is np.int8 else 3)
    owned = {"2": 4, "9": 4} | ({} if kind is np.int8 else {"200": 4})
    assert dict(zip(data.client_names, data.class_counts("all").sum(1).tolist(), strict=True)) == owned


def with_clients(content, **options):
    with open("clients.json", "w") as stream:
        json.dump(content, stream)
    return ready(Npz, file="x.npz", partition_file="clients.json", **options)


def test_a_plain_file_says_who_has_what(here):
    """Who has labels is what the scenario says, or the file; images that it leaves out are nobody's."""
    file_of(unlabelled_images=RNG.randint(0, 256, (2, 8, 8), np.uint8))
    parts = {"north": [0, 1, 2, 3], "south": [4, 5, 6], "west": [8, 9, 12]}
    data = with_clients(parts, labelled_pick="index0")
    assert data.client_names == tuple(parts) and lists(data.partition.labelled) == [[0, 1, 2, 3], [], []]
    assert lists(data.partition.unlabelled) == [[], [4, 5, 6], [8, 9, 12]]
    two = with_clients(parts, labelled_clients=2, labelled_pick=["west", "north"])
    assert lists(two.partition.labelled) == [[0, 1, 2, 3], [], [8, 9]]
    bound = with_clients(parts, labelled_clients=3, labelled_pick=["west"])
    assert lists(bound.partition.labelled) == [[0, 1, 2, 3], [4, 5, 6], [8, 9]]
    own = {"north": {"images": [0, 1, 2, 3], "labelled": [2, 3]}, "south": {"images": [4, 5, 12], "labelled": 1}}
    chosen = with_clients({**own, "west": [7]}).partition
    assert [len(part) for part in chosen.labelled] == [2, 1, 0] and chosen.labelled[0].tolist() == [2, 3]
    assert lists(chosen.unlabelled)[0] == [0, 1] and sorted(chosen.pool) == sorted(np.concatenate([*chosen.unlabelled]))
    assert 12 in chosen.unlabelled[1]  # nobody knows its label
    drawn = [with_clients({**own, "west": [7]}, partition_seed=seed).partition.labelled[1].item() for seed in range(8)]
    assert set(drawn) == {4, 5}
    everybody = with_clients(parts, unlabelled_only=True, scenario="all_clients").partition
    assert lists(everybody.labelled) == [[0, 1, 2, 3], [4, 5, 6], [8, 9]] and lists(everybody.unlabelled)[2] == [12]
    assert {"clients.json", "x.npz"} == set(with_clients(parts).sha256)
    assert with_clients({"hash": [0, 1], "labelled": [2], "format": [3, 4, 5]}).client_names[2] == "format"


@pytest.mark.parametrize("options", [{}, {"scenario": "server", "unlabelled_only": True}])
def test_some_client_has_an_image_with_a_label(options, here):
    file_of(unlabelled_images=RNG.randint(0, 256, (2, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"clients\.json gives nobody an image with a label"):
        with_clients({"a": [12], "b": [13]}, num_clients=2, **options)


BAD_CLIENTS = {
    "range": ({"a": [0, 99]}, "client 'a' have position 99; there are 12"),
    "double": ({"a": [0, 1, 1]}, "client 'a' have position 1 twice"),
    "shared": ({"a": [0, 1], "b": [1]}, "'a' and 'b' both have position 1"),
    "truth": ({"a": [True]}, "must be a list of whole numbers"),
    "list": ([[0, 1]], "has no clients"),
    "another word": ({"a": {"images": [0, 1], "labeled": 1}}, "client 'a' has 'labeled'"),
    "nobody": ({"a": {"images": [0, 1], "labelled": 0}}, "gives nobody a label"),
    "labels elsewhere": ({"a": {"images": [0], "labelled": [5]}}, "'a' is to have labels of position 5"),
    "too many labels": ({"a": {"images": [0, 1], "labelled": 3}}, "labels of 3 images; it has 2"),
}


@pytest.mark.parametrize("name", BAD_CLIENTS)
def test_a_plain_file_is_looked_at(name, here):
    file_of()
    content, message = BAD_CLIENTS[name]
    with pytest.raises(DataError, match=message):
        with_clients(content, num_clients=1)


def test_a_client_that_stands_twice_in_a_file_is_refused(here):
    file_of()
    (here / "twice.json").write_text('{"a": [0, 1], "b": [2], "a": [3]}')
    with pytest.raises(DataError, match=r"twice\.json: 'a' occurs twice"):
        ready(Npz, file="x.npz", partition_file="twice.json")


FOR_LABELS = ("num_labels", "label_fraction", "labels_per_class", "unlabelled_only", "scenario", "labelled_pick")


@pytest.mark.parametrize("name", FOR_LABELS)
def test_options_for_labels_do_not_go_with_a_file_that_names_them(name, here):
    file_of()
    of_others = {"scenario": {"scenario": "server"}, "labelled_pick": {"labelled_pick": ["a"]}}
    options = of_others.get(name, {"scenario": "all_clients", name: 1})
    with pytest.raises(ConfigError, match=rf"data\.{name}.* has no effect.*clients\.json.*leave it out"):
        with_clients({"a": {"images": [0, 1], "labelled": 1}}, num_clients=1, **options)


@pytest.mark.parametrize("name", ["split.pth", "client_0.npz", "clients"])
def test_what_others_save_is_named(name, here):
    file_of()
    os.mkdir(name) if name == "clients" else (here / name).write_bytes(b"x")
    with pytest.raises(DataError, match=rf"{name}: .*give JSON.*docs/data\.md"):
        ready(Npz, file="x.npz", partition_file=name)


# --- layouts


@pytest.mark.parametrize(
    "pair", ["Training/Testing", "TRAIN/testset", "train_set/Test", "seg_train/seg_train:seg_test/seg_test"]
)
def test_splits_are_known_by_other_names(pair, here):
    """A brain scan is not asked whether it is a training image."""
    train, test = pair.split(":" if ":" in pair else "/")
    draw(f"mri/{train}/glioma", f"mri/{train}/none", count=5)
    draw(f"mri/{test}/glioma", f"mri/{test}/none", count=2)
    data = ready(Folder, root="mri")
    assert data.class_names == ("glioma", "none")
    assert (len(data.train_images), len(data.test_images)) == (10, 4)


def test_names_of_classes_are_one_however_their_accents_are_written(here):
    """Archives from macOS have them decomposed."""
    draw(*(f"mri/train/{normalize('NFC', name)}" for name in ("gutartig", "bösartig")), count=5)
    draw(*(f"mri/test/{normalize('NFD', name)}" for name in ("gutartig", "bösartig")), count=2)
    assert ready(Folder, root="mri").class_names == ("bösartig", "gutartig")


def test_labels_that_are_hidden_from_sites_are_told(here):
    """Else the counts by class pass for what is trained on."""
    draw("mri/a", "mri/b", count=30)
    some, every = ready(Folder, root="mri"), ready(Folder, root="mri", labelled_clients=3)
    given = len(some.client(0).labelled)
    assert f"labels that sites have: {given}; the other {48 - given} are hidden" in some.about()
    assert "hidden" not in every.about()


REFUSED = {
    "folds": (["fold_0/a", "fold_0/b", "fold_1/a", "fold_1/b"], "fold_0, fold_1 look like splits"),
    "dev and eval": (["dev/a", "eval/a"], "dev, eval look like splits"),
    "validation alone": (["training/a", "training/b", "validation/a"], "training and validation.*'test'"),
    "sites": (["berlin/cat", "berlin/dog", "rome/cat", "rome/dog"], "berlin, rome .*cat, dog.*clients_in folders"),
    "masks": (["images", "masks"], "masks, not classes"),
    "twice": (["train/a", "train/b", "Training/a", "Training/b"], "two folders for one part"),
    "only a test": (["Testing/a", "Testing/b"], "test but no train"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_folders_that_are_no_classes_are_refused_by_name(name, here):
    places, message = REFUSED[name]
    draw(*(f"pictures/{place}" for place in places))
    with pytest.raises(DataError, match=message):
        pictures()


@pytest.mark.parametrize("inside", [("train/cat", "test/cat"), ("images", "masks")])
def test_clients_with_splits_of_their_own_are_no_two_classes(inside, here):
    draw(*(f"pictures/{client}/{place}" for client in ("berlin", "oslo") for place in inside))
    with pytest.raises(DataError, match="look like splits, or images and their masks, not classes"):
        pictures(clients_in="folders")


def test_a_folder_of_images_in_each_class_is_no_layout(here):
    """As in Tiny ImageNet; what is not read is said."""
    draw("pictures/train/n1/images", "pictures/train/n2/images", "pictures/val/images")
    draw("pictures/test/n1", "pictures/test/n2")
    (here / "pictures/train/n1/boxes.TXT").write_text("0 0")
    os.symlink("gone.png", "pictures/train/n1/link.png")
    said = pictures().about()
    assert "nobody" not in said and "belong to nobody: " in pictures(partition="iid", num_clients=5, min_size=0).about()
    assert "n1 4, n2 4" in said and "val" in said and "1 .txt" in said
    for file in (here / "pictures/test/n2").iterdir():
        file.rename(file.with_suffix(".tif"))
    with pytest.raises(DataError, match=r"no images .*only 4 \.tif"):
        pictures()


def test_every_image_is_read_or_its_folder_is_named(here):
    """Images beside the folders of classes were lost without a word."""
    draw("pictures/train/a", "pictures/train/b", "pictures/train/Unlabeled/x", "pictures/unlabelled", count=2)
    draw("pictures", "pictures/train", "pictures/test/a", "pictures/test/b", "pictures/val/a", "pictures/val/b")
    os.symlink(here / "pictures/train/a/0.png", "pictures/train/link.png")
    data = pictures()
    assert len(data.train_images) == 8 and (true_labels(data)[4:] == HIDDEN).all()
    (note,) = data.notes
    assert sorted(note.split(": not read: ")[1].split("; ")[0].split(", ")) == [
        "images in pictures (4)",
        "images in pictures/train (4)",
        "images in pictures/val (8)",
    ]
    draw("sites/bob", "sites/bob/a", "sites/eve/a", "sites/eve/b", count=3)
    sites = ready(Folder, root="sites", clients_in="folders", num_clients=2)
    assert sites.notes == ("sites: not read: images in sites/bob (3)",)


# --- links and sizes


def test_links_to_folders_are_followed_and_end(here):
    """30 of 60 images were skipped without a word."""
    draw("pictures/a", "elsewhere/b", "elsewhere/more")
    os.symlink(here / "elsewhere/b", "pictures/b")
    os.symlink(here / "elsewhere/more", "pictures/a/more")
    os.symlink(here / "pictures/a", "pictures/a/again")
    data = pictures(test_fraction=0.25)
    assert len(data.train_images) + len(data.test_images) == 12 and data.class_names == ("a", "b")
