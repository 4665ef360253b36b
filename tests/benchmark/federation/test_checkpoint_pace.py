"""How often checkpoints are saved."""

import os
from itertools import pairwise

from benchmark.federation import checkpoint
from checkpoints import made


class Clock:
    """Time that goes by when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_saving_costs_a_fiftieth_of_the_time(path, monkeypatch):
    """Whatever the disk takes: saves are as rare as need be, and never rarer than that."""
    clock = Clock()
    kept, always = checkpoint.Checkpoint(path, 60.0, clock), checkpoint.Checkpoint(path, 0.0, clock)
    monkeypatch.setattr(os, "fsync", lambda handle: setattr(clock, "now", clock.now + 2.5))
    saves = []
    for number in range(2000):
        clock.now += 10.0
        if kept.due():
            saves.append(clock.now)
            kept.save(made(number, (number,)))
        assert always.due()
    gaps = [b - a for a, b in pairwise(saves)]
    assert saves[0] == 60.0 and min(gaps) >= 250 and max(gaps) <= 270  # two files a save
