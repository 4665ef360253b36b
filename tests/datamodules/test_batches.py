"""Streams and passes: order, short batches, cycling."""

import pytest
import torch

from benchmark.errors import ConfigError
from datamodules.batches import Stream, epoch


def generator(purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(len(purpose))


def sizes(**streams: Stream) -> list[dict[str, int]]:
    return [{name: len(b["i"]) for name, b in batch.items()} for batch in epoch(streams, None, generator)]


def stream(n: int, size: int, **options: object) -> Stream:
    index = torch.arange(n)
    return Stream(index, size, fields={"i": index}, **options)


def test_a_pass_meets_every_sample_once():
    batches = list(epoch({"s": stream(2100, 64)}, None, generator))
    seen = torch.cat([batch["s"]["i"] for batch in batches])
    assert sorted(seen.tolist()) == list(range(2100)) and seen.tolist() != list(range(2100))
    assert [len(batch["s"]["i"]) for batch in batches] == [64] * 32 + [52]


def test_without_shuffling_the_order_is_that_of_the_index():
    batches = list(epoch({"s": stream(10, 4, shuffle=False)}, None, generator))
    assert [batch["s"]["i"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_short_batches_are_left_out():
    assert sizes(s=stream(9, 4)) == [{"s": 4}, {"s": 4}, {"s": 1}]
    assert sizes(s=stream(9, 4, min_batch=2)) == [{"s": 4}, {"s": 4}]
    assert sizes(s=stream(10, 4, min_batch=2)) == [{"s": 4}, {"s": 4}, {"s": 2}]


def test_a_stream_that_never_fills_a_batch_is_left_out():
    """Also where it cycles: it would be asked for ever."""
    assert sizes(a=stream(4, 2), b=stream(1, 2, min_batch=2, cycle=True)) == [{"a": 2}, {"a": 2}]
    assert sizes(b=stream(1, 2, min_batch=2)) == []
    assert sizes(a=stream(4, 2), b=stream(0, 2)) == [{"a": 2}, {"a": 2}]


def test_cycling_streams_follow_the_longest():
    assert sizes(a=stream(6, 2), b=stream(3, 2, cycle=True)) == [{"a": 2, "b": n} for n in (2, 1, 2)]
    with pytest.raises(ConfigError, match="every stream of the client cycles"):
        sizes(b=stream(3, 2, cycle=True))
