"""Epochs: every image once, aligned fields, cycles, short batches, and where a pass ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.common.errors import ConfigError
from datamodules.views.batches import Stream, epoch


class Echo:
    """A data set whose view of an image is its position; keeps what it was asked for."""

    def __init__(self, block=1024):
        self.block = block
        self.asked = []

    def take(self, view, index, generator):
        self.asked.append((view, index, generator))
        noise = torch.rand(len(index), generator=generator) if view == "noisy" else torch.zeros(len(index))
        return index.double() + noise


def seeded(purpose):
    return torch.Generator().manual_seed(sum(map(ord, purpose)))


def stream(count, size, start=0, views=None, **options):
    index = torch.arange(start, start + count)
    return Stream(index, size, views or {"x": "plain"}, {"y": index * 10}, **options)


def walk(streams, steps=None, generator=seeded, data=None):
    return list(epoch(streams, data or Echo(), generator, steps))


def positions(batches, name="a"):
    return [batch[name]["x"].long().tolist() for batch in batches]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 2500), st.integers(1, 1500), st.booleans())
def test_every_image_once_with_its_own_fields(count, size, shuffle):
    """Full batches and at most one shorter one, whatever the blocks in which views are cut."""
    batches = walk({"a": stream(count, size, 7, shuffle=shuffle)})
    flat = [i for part in positions(batches) for i in part]
    assert sorted(flat) == list(range(7, 7 + count))
    assert shuffle or flat == sorted(flat)
    sizes = [len(part) for part in positions(batches)]
    assert sizes == [size] * (count // size) + [count % size] * bool(count % size)
    assert all(torch.equal(b["a"]["x"] * 10, b["a"]["y"].double()) for b in batches)


def test_streams_draw_from_their_own_generators():
    """Another stream beside it, its views, or its name coming first, does not change what one gives."""
    alone = positions(walk({"a": stream(90, 10)}))
    beside = walk({"b": stream(90, 30, views={"x": "noisy", "z": "noisy"}, cycle=True), "a": stream(90, 10)})
    assert positions(beside) == alone


@pytest.mark.parametrize("size", [64, 1000, 1024, 3000])
def test_views_are_cut_in_bounded_blocks(size):
    """As many images as the data cuts at once, in whole batches; a batch is never cut in two."""
    for block in (1024, 100):
        data = Echo(block)
        walk({"a": stream(5000, size)}, data=data)
        cut = max(1, block // size) * size
        assert [len(index) for _, index, _ in data.asked] == [cut] * (5000 // cut) + [5000 % cut] * bool(5000 % cut)


def test_cycling_starts_over_with_a_new_order():
    """Beside 100 steps of another stream, 3 batches are walked through again and again, each pass complete."""
    batches = walk({"u": stream(200, 2), "a": stream(25, 10, cycle=True)})
    assert len(batches) == 100
    parts = positions(batches)
    passes = [[i for part in parts[k : k + 3] for i in part] for k in range(0, 99, 3)]
    assert all(sorted(flat) == list(range(25)) for flat in passes)
    assert len({tuple(flat) for flat in passes}) == len(passes)
    assert [len(part) for part in parts[:4]] == [10, 10, 5, 10]


def test_the_shortest_stream_that_does_not_cycle_ends_the_pass():
    streams = {"a": stream(50, 10), "b": stream(35, 10, 100), "c": stream(3, 1, 200, cycle=True)}
    batches = walk(streams)
    assert [len(batch["b"]["x"]) for batch in batches] == [10, 10, 10, 5]
    assert all(set(batch) == {"a", "b", "c"} for batch in batches)
    assert [len(walk(streams, steps)) for steps in (0, 1, 4, 9)] == [0, 1, 4, 4]


def test_only_cycling_streams_need_a_number_of_steps():
    streams = {"a": stream(5, 2, cycle=True), "b": stream(3, 2, cycle=True)}
    with pytest.raises(ConfigError, match="needs a number of steps"):
        walk(streams)
    assert len(walk(streams, 20)) == 20


def test_short_batches_can_be_left_out():
    assert [len(p) for p in positions(walk({"a": stream(21, 10, min_batch=2)}))] == [10, 10]
    assert [len(p) for p in positions(walk({"a": stream(22, 10, min_batch=2)}))] == [10, 10, 2]
    cycled = positions(walk({"a": stream(21, 10, min_batch=2, cycle=True)}, 5))
    assert [len(p) for p in cycled] == [10] * 5


@pytest.mark.timeout(20)
def test_streams_that_can_give_no_batch_are_left_out():
    """Empty ones, and those below their ``min_batch``, cycling or not: no batch is empty, and nothing hangs."""
    for lacking in (stream(0, 4), stream(0, 4, cycle=True), stream(1, 4, min_batch=2, cycle=True)):
        batches = walk({"a": stream(8, 4), "b": lacking})
        assert [set(batch) for batch in batches] == [{"a"}, {"a"}]
        assert walk({"b": lacking}) == walk({"b": lacking}, 3) == []
    assert walk({}) == []


def test_fields_of_another_length():
    with pytest.raises(ConfigError, match="a stream of 5 images: mask does not have one entry per image"):
        Stream(torch.arange(5), 2, fields={"y": torch.zeros(5), "mask": torch.zeros(6)})


def test_a_resampled_stream_draws_with_replacement_and_anew_at_every_pass():
    """As many as asked for, from all images, each with its own fields; a cycle draws other ones in every turn."""
    made = stream(40, 10, 7, resample=25)
    assert len(made) == 25 and made.usable
    batches = walk({"a": made})
    assert [len(part) for part in positions(batches)] == [10, 10, 5]
    assert all(torch.equal(b["a"]["x"] * 10, b["a"]["y"].double()) for b in batches)
    turns = positions(walk({"a": stream(40, 25, 7, resample=25, cycle=True)}, 400))
    assert all(len(turn) == 25 and set(turn) <= set(range(7, 47)) for turn in turns)
    assert all(len(set(turn)) < 25 for turn in turns[:20])
    assert len({tuple(sorted(turn)) for turn in turns}) == len(turns)
    counts = torch.bincount(torch.tensor(turns).flatten() - 7)
    assert len(counts) == 40 and (counts.double() / 250 - 1).abs().max() < 0.3


def test_a_stream_may_take_the_random_numbers_of_another_name():
    """``draws`` names its order and its augmentation; what it is called in the batch does not matter."""
    views = {"x": "plain", "z": "noisy"}
    own = walk({"a": stream(30, 10, views=views)})
    borrowed = walk({"b": stream(30, 10, views=views, draws="a")})
    assert all(torch.equal(b["b"][field], a["a"][field]) for a, b in zip(own, borrowed, strict=True) for field in "xyz")
    assert positions(walk({"b": stream(30, 10)}), "b") != positions(borrowed, "b")
