"""A disk that cannot be written."""

import errno
import os

import pytest


@pytest.fixture
def read_only(monkeypatch):
    """Simulate a read-only file system; permissions do not help, since the tests may run as root."""
    real = os.open

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def opened(path, flags, *more, **kwargs):
        return refuse() if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else real(path, flags, *more, **kwargs)

    def set_up():
        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr("benchmark.runs.folder.write_atomic", refuse)

    return set_up
