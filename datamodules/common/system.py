"""Where the kernel describes the machine."""

from pathlib import Path

ROOT = Path("/")
"""Folder that contains ``proc`` and ``sys``; with another one, the program sees another machine."""
