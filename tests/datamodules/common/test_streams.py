"""Named random streams: pure functions of their name, independent of each other and of torch's own generator."""

import hashlib

import torch

from datamodules.common.streams import SERVER, derive_seed, generator


def test_seeds_are_pinned():
    """Records are only reproducible while these numbers stay: 63 bits of a SHA-256."""
    assert derive_seed(1337, "roster", 0) == 8929221081417077706
    assert derive_seed(0, "order/labelled/1", 3, 2, 0) == 8937942033369402837
    digest = hashlib.sha256(b"augment:7:5:-1").digest()
    assert derive_seed(7, "augment", 5, SERVER) == int.from_bytes(digest[:8], "little") // 2


def test_a_generator_repeats_its_stream_and_leaves_the_others_alone():
    state = torch.random.get_rng_state()
    first = torch.rand(5, generator=generator(3, "augment", 1, 2))
    other = generator(3, "augment", 1, 3)
    torch.rand(100, generator=generator(3, "order", 1, 2))
    again = generator(3, "augment", 1, 2)
    assert torch.equal(torch.rand(5, generator=again), first)
    assert not torch.equal(torch.rand(5, generator=again), first)
    assert not torch.equal(torch.rand(5, generator=other), first)
    assert torch.equal(torch.random.get_rng_state(), state)
