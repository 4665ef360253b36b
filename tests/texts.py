"""Small sets of news texts and a stand-in for their encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules import ag_news
from datamodules.io import text

WORDS = ("treaty minister border vote", "match goal coach season", "shares profit bank oil", "chip software orbit web")
DIM = 16


def sentences(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Create texts of nine words, six of their topic and three of any, cycling topics; each ends with its number."""
    draw = np.random.RandomState(seed)
    every = " ".join(WORDS).split()
    labels = np.arange(count) % 4
    own = [draw.choice(WORDS[y].split(), 6).tolist() + draw.choice(every, 3).tolist() for y in labels]
    return [f"{' '.join(words)} {seed}-{i}" for i, words in enumerate(own)], labels


class Stub:
    """Counts the 16 topic words of a text; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.kinds: list[str] = []

    def load(self, kind: str, device: torch.device) -> text.Encoder:
        self.kinds.append(kind)
        return self.encode

    def encode(self, texts: Any) -> text.Features:
        self.asked.append(list(texts))
        every = " ".join(WORDS).split()
        return np.array([[t.split().count(w) for w in every] for t in texts], dtype=np.float32)


def write_texts(folder: Path, train: int = 240, test: int = 40) -> None:
    """Write an ``ag_news.npz`` with so many texts."""
    parts = {"train": sentences(train, 1), "test": sentences(test, 2)}
    arrays = {
        f"{part}_{what}": values
        for part, made in parts.items()
        for what, values in zip(("texts", "labels"), made, strict=True)
    }
    np.savez(folder / "ag_news.npz", **arrays, class_names=ag_news.CLASSES)


def list_texts(folder: Path, monkeypatch: Any, count: int | None = None) -> list[str]:
    """Replace the list of texts by the first ``count`` keys of the texts in the folder, and return them."""
    (train, labels, test, test_labels), _ = ag_news.read_texts(folder)
    keys = sorted(map(ag_news.text_key, map(ag_news.plain, train), labels.tolist()))[:count]
    tests = sorted(map(ag_news.text_key, map(ag_news.plain, test), test_labels.tolist()))
    monkeypatch.setattr(ag_news, "read_keys", lambda: keys)
    monkeypatch.setattr(ag_news, "TEST_DIGEST", ag_news.digest(tests))
    return keys
