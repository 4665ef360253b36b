"""How often checkpoints are saved."""

import os
from itertools import pairwise

import torch

from benchmark.federation import checkpoint
from checkpoints import STATES, made

BIG = torch.empty(250_000_000, device="meta")


class Clock:
    """Time that goes by when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_saving_costs_a_fiftieth_of_the_time(path, monkeypatch):
    """Whatever the disk takes: saves are as rare as need be, and never rarer than that."""
    clock = Clock()
    kept = checkpoint.Checkpoint(path, every_s=60.0, clock=clock)

    def slow(handle):
        clock.now += 2.5

    monkeypatch.setattr(os, "fsync", slow)
    saves = []
    for number in range(2000):
        clock.now += 10.0
        state = made(number, (number,))
        if kept.due(state):
            saves.append(clock.now)
            kept.save(state)
        assert kept.spent <= 0.02 * clock.now or len(saves) == 1  # of the first one nothing was known
    gaps = [b - a for a, b in pairwise(saves)]
    assert saves[0] == 60.0 and min(gaps[1:]) >= 240 and max(gaps[1:]) <= 270
    assert 0.018 < kept.spent / clock.now <= 0.02


def test_the_first_save_of_a_large_state_waits_until_it_is_paid_for(path):
    clock = Clock()
    kept = checkpoint.Checkpoint(path, every_s=60.0, clock=clock)
    state = {**made(1), "w": torch.empty(0).expand(0), "clients": {c: ({"own": BIG}, []) for c in range(8)}}
    for at, due in ((60.0, False), (8e9 / 1e8 / 0.02 - 1, False), (8e9 / 1e8 / 0.02 + 1, True)):
        clock.now = at
        assert kept.due(state) is due


def test_the_least_interval(path):
    clock = Clock()
    always, minute = (checkpoint.Checkpoint(path, every_s, clock) for every_s in (0.0, 60.0))
    assert always.due(STATES[0]) and not minute.due(STATES[0])
    clock.now = 60.0
    assert minute.due(STATES[0])
