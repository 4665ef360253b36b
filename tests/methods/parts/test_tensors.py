"""Small operations on tensors."""

import pytest
import torch

from host_reads import count_host_reads
from methods.parts.tensors import one_hot, wide


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_wide_never_narrows(given: torch.dtype, expected: torch.dtype) -> None:
    """Half precision becomes float32; a run in double precision stays double."""
    assert wide(torch.ones(2, dtype=given)).dtype == expected


def test_one_hot() -> None:
    """As torch's own, but bool, and without asking the device how many classes there are."""
    labels = torch.tensor([2, 0, 1, 2])
    assert one_hot(labels, 4).dtype == torch.bool
    assert torch.equal(one_hot(labels, 4).long(), torch.nn.functional.one_hot(labels, 4))
    with count_host_reads() as reads:
        one_hot(labels, 4)
    assert not reads
