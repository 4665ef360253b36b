"""Lists of positions in two arrays, against plain lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.partition.lists import Lists

plain_lists = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=8)
derandomised = settings(max_examples=60, deadline=None, derandomize=True)


@derandomised
@given(plain_lists)
def test_they_read_as_the_lists_that_they_were_made_of(plain):
    lists = Lists.of(plain)
    assert len(lists) == len(plain)
    assert [part.tolist() for part in lists] == [lists[k].tolist() for k in range(len(plain))] == plain
    assert lists.lengths.tolist() == [len(part) for part in plain]
    assert lists.owners.tolist() == [k for k, part in enumerate(plain) for _ in part]


@derandomised
@given(plain_lists, st.sets(st.integers(0, 99)))
def test_entries_are_left_out_in_every_list(plain, out):
    lists = Lists.of(plain)
    kept = lists.kept(~np.isin(lists.flat, sorted(out)))
    assert [part.tolist() for part in kept] == [[i for i in part if i not in out] for part in plain]


def test_they_count_from_the_end_and_end():
    lists = Lists.of([[1], [2, 3]])
    assert lists[-1].tolist() == [2, 3]
    with pytest.raises(IndexError):
        lists[2]
