"""AG News: short news texts of four topics, as feature vectors of a frozen text encoder."""

import csv
import hashlib
from collections.abc import Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, DataError, message_of
from datamodules.common.options import Positive
from datamodules.io import text
from datamodules.io.npz import read_npz
from datamodules.io.sources import Arrays, sha256_of
from datamodules.views.pipelines import WEAK_COPIES

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
BACK_TRANSLATION = "ag_news_back_translation.npz"
TEST_DIGEST = "13f335964e1d1061da023de993c5aae9517f09ca9fe515cc0ab412e97d900c0d"
"""``digest`` of the sorted keys of the test texts."""
REMEDY = (
    "Unpack the original release (train.csv and test.csv; class index, title, description) into a folder ag_news_csv "
    "without an ag_news.npz beside it, or write ag_news.npz with train_texts, train_labels (0 to 3), test_texts, "
    "test_labels and class_names"
)

Labels = NDArray[np.int64]
Texts = tuple[list[str], Labels, list[str], Labels]


class AGNews(FSSLDataModule):
    """Features of some of the 120 000 training texts, and of the 7 600 test texts.

    Two pipelines: with ``feature_versions`` ((FL)2, NeurIPS 2024) ``weak`` and ``test`` views are the text itself, and
    ``strong`` is one of two distorted copies, drawn at every access. With ``feature_copies`` weak views are drawn as
    well: the text or one of two copies with a tenth of their words changed (``text.distorted``), and strong ones of
    ``words`` have three tenths changed; features are standardised like images, each with its mean and deviation over
    the training texts. Features are computed once and cached in the data directory. A run's record says what was used
    (``encoder``, ``strong``, texts per class). Options for images (``flip``, ``side``, ``mean``, ...) have no effect.

    Args:
        encoder: ``bert`` (the paper's) or ``minilm``; see ``text.load``.
        strong: ``back_translation`` (the paper's): from ``ag_news_back_translation.npz`` in the data directory, whose
            ``translations`` (str [N, 2]) are aligned with all training texts; or ``words``: ``text.distorted``.
        texts: which training texts to use: ``all`` in the order of the file, or the 7 000 ``listed`` in
            ``ag_news_texts.txt``, in the order of the list, which does not depend on the copy of the data set.
        texts_per_class: training texts drawn from these per class, the same in every run; all if there are fewer.
        pipeline: ``feature_versions`` or ``feature_copies``.
        **base: see ``FSSLDataModule``.

    Raises:
        ConfigError: ``texts=listed`` without ``strong=words``.
        DataError: texts, translations or encoder are not available (in ``read`` and ``setup``).
    """

    num_classes = 4
    mean = std = ()

    def __init__(
        self,
        encoder: Literal["bert", "minilm"] = "bert",
        strong: Literal["back_translation", "words"] = "back_translation",
        texts: Literal["all", "listed"] = "all",
        texts_per_class: Positive = 12_500,
        pipeline: str = "feature_versions",
        **base: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **base)
        if texts == "listed" and strong == "back_translation":
            raise ConfigError("data.texts=listed needs data.strong=words: translations are aligned with all texts")

    def read(self) -> Arrays:
        """Return the features of the texts.

        Those of training texts are float32 [N, 3, d], of the text and two copies, or with ``feature_copies`` [N, 5, d],
        of the text and four; those of test texts are float32 [N, 1, d].
        """
        root, encoder = Path(self.hparams.data_dir), self.hparams.encoder
        draws_weak = self.hparams.pipeline == "feature_copies"
        texts, digests = read_texts(root)
        train, train_labels, test, test_labels = listed(texts) if self.hparams.texts == "listed" else texts
        keep = sample(train_labels, self.hparams.texts_per_class)
        kept, labels = [train[i] for i in keep], train_labels[keep]
        strong, strong_view, strong_digests = self._strong_copies(root, train, keep)
        weak = [text.distorted(kept, seed) for seed in range(10, 10 + WEAK_COPIES)] if draws_weak else []
        digests |= strong_digests
        features = []
        for version in (kept, *weak, *strong, test):
            values, file = text.features(encoder, version, root, self.device)
            features.append(values)
            digests[file.name] = sha256_of(file)
        self.provenance = {
            "encoder": text.ENCODERS[encoder],
            "strong_view": strong_view,
            "texts_per_class": np.bincount(labels, minlength=self.num_classes).tolist(),
        }
        if draws_weak:
            centre, spread = features[0].mean(axis=0), features[0].std(axis=0)
            features = [(values - centre) / np.where(spread > 0, spread, 1) for values in features]
        return Arrays(np.stack(features[:-1], axis=1), labels, features[-1][:, None], test_labels, CLASSES, digests)

    def _strong_copies(self, root: Path, train: list[str], keep: Labels) -> tuple[list[list[str]], str, dict[str, str]]:
        """Two copies of every kept text for strong views, what they are, and the digest of the file they come from."""
        if self.hparams.strong == "words":
            kept = [train[i] for i in keep]
            rate = 0.3 if self.hparams.pipeline == "feature_copies" else 0.1
            return [text.distorted(kept, seed, rate) for seed in (1, 2)], "word_deletion_swap", {}
        file = root / BACK_TRANSLATION
        remedy = "Provide the file (translations: str [training texts, 2]), or choose data.strong=words"
        copies = read_npz(file, remedy=remedy).get("translations", np.empty(0))
        if copies.shape != (len(train), 2):
            raise DataError(f"{file}: translations are {list(copies.shape)} instead of {[len(train), 2]}. {remedy}")
        return [copies[keep, i].tolist() for i in range(2)], "back_translation", {file.name: sha256_of(file)}


def sample(labels: Labels, per_class: int) -> Labels:
    """Ascending positions of ``per_class`` texts per class (all if there are fewer), always the same ones."""
    draw = np.random.RandomState(0)
    chosen = [draw.permutation(np.flatnonzero(labels == c))[:per_class] for c in range(len(CLASSES))]
    return np.sort(np.concatenate(chosen))


def listed(texts: Texts) -> Texts:
    """Return the training texts of ``ag_news_texts.txt`` in its order, and all test texts in the order of their keys.

    Texts are ``plain``, so that the original release and copies of it give the same result.

    Args:
        texts: those of a file.

    Raises:
        DataError: training texts are missing, or the test texts differ from the release.
    """
    train, train_labels, test, test_labels = texts
    keys, train, test = read_keys(), list(map(plain, train)), list(map(plain, test))
    position = {key: i for i, key in enumerate(map(text_key, train, train_labels.tolist()))}
    if missing := sum(key not in position for key in keys):
        what = f"{missing} of the {len(keys)} listed training texts are not among the {len(train)} that were found"
        raise DataError(f"ag_news: {what}. {REMEDY}, or choose data.texts=all")
    test_keys = list(map(text_key, test, test_labels.tolist()))
    if digest(sorted(test_keys)) != TEST_DIGEST:
        what = f"the {len(test)} test texts differ from the release's 7600"
        raise DataError(f"ag_news: {what}. {REMEDY}, or choose data.texts=all")
    chosen, order = [position[key] for key in keys], sorted(range(len(test)), key=test_keys.__getitem__)
    return [train[i] for i in chosen], train_labels[chosen], [test[i] for i in order], test_labels[order]


def read_keys() -> list[str]:
    """Read the keys in ``ag_news_texts.txt``, in ascending order."""
    lines = package_files("datamodules").joinpath("ag_news_texts.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def text_key(text: str, label: int) -> str:
    """Return a plain text's key in the list, given its label: 12 hex digits of a SHA-256."""
    return digest([str(label), text])[:12]


def digest(words: Sequence[str]) -> str:
    """SHA-256 of the words, joined by spaces, in hex."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def plain(text: str) -> str:
    """Return the text in one line with single spaces; a backslash stands for a line break."""
    return " ".join(text.replace("\\", " ").split())


def text_files(root: Path) -> list[Path]:
    """Find ``ag_news.npz``, or ``train.csv`` and ``test.csv`` in ``ag_news_csv``, ``ag_news`` or the folder.

    Raises:
        DataError: there is neither.
    """
    csvs = [[root / folder / "train.csv", root / folder / "test.csv"] for folder in ("ag_news_csv", "ag_news", ".")]
    places = [[root / "ag_news.npz"], *csvs]
    for files in places:
        if all(file.exists() for file in files):
            return files
    looked = ", ".join(str(files[0]) for files in places)
    raise DataError(f"ag_news is not in {root.resolve()}: looked for {looked}. {REMEDY} there")


def read_texts(root: Path) -> tuple[Texts, dict[str, str]]:
    """Read training texts and labels, test texts and labels, and the digests of the files (see ``text_files``).

    Raises:
        ConfigError: the texts do not fit into memory.
        DataError: no files are found, or they are damaged.
    """
    files = text_files(root)
    try:
        digests = {file.name: sha256_of(file) for file in files}
        found = _read_npz(files[0]) if len(files) == 1 else (*_read_csv(files[0]), *_read_csv(files[1]))
        for texts, labels in (found[:2], found[2:]):
            if len(texts) != len(labels) or set(np.unique(labels).tolist()) != set(range(len(CLASSES))):
                raise DataError(f"{len(texts)} texts with {len(labels)} labels; all of 0 to 3 must occur")
    except ConfigError:
        raise
    except Exception as error:
        what = files[0] if len(files) == 1 else f"train.csv or test.csv in {files[0].parent}"
        raise DataError(f"ag_news: {what} is damaged or a different data set: {message_of(error)}. {REMEDY}") from error
    return found, digests


def _read_npz(file: Path) -> Texts:
    data = read_npz(file)
    if (names := tuple(data["class_names"].tolist())) != CLASSES:
        raise DataError(f"the classes are {names} instead of {CLASSES}")
    labels = (data[f"{part}_labels"].astype(np.int64, casting="safe") for part in ("train", "test"))
    return data["train_texts"].tolist(), next(labels), data["test_texts"].tolist(), next(labels)


def _read_csv(file: Path) -> tuple[list[str], Labels]:
    """Read title and description, joined by a space, and the class index minus 1; a backslash is a line break.

    Skips empty lines and a line of column names, which copies of the release have.
    """
    with file.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if rows and rows[0][0].lower().startswith("class"):
        rows = rows[1:]
    texts = [plain(f"{title} {description}") for _, title, description in rows]
    return texts, np.array([int(row[0]) - 1 for row in rows], dtype=np.int64)
