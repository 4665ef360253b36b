"""Single files of tensors and plain data."""

import errno
import os

import pytest
import torch

from benchmark.federation.checkpoint_files import save_plain


def test_a_plain_file_is_written_whole_or_not_at_all(path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    save_plain(path, {"w": torch.ones(3)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_plain(path, {"w": torch.zeros(3)})
    assert list(path.parent.iterdir()) == [path]
    assert torch.load(path)["w"].tolist() == [1.0, 1.0, 1.0]
