"""Named random streams: every draw comes from a generator that is a pure function of where it is used.

No generator state is ever saved, so a resumed run, a different number of processes, or a different order of clients
gets exactly the same random numbers.
"""

import hashlib

import torch

SERVER = -1


def derive_seed(seed: int, purpose: str, *where: int) -> int:
    """Hash ``(run seed, purpose, round, client, ...)`` to a 63-bit seed.

    Args:
        seed: seed of the run.
        purpose: name of the stream, e.g. ``"torch"``, ``"order/labelled/1"``, ``"roster"``.
        where: integers that identify the use (round, client, visit); ``SERVER`` is the server's id.
    """
    text = ":".join([purpose, str(seed), *map(str, where)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, *where: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator on ``device`` for the stream ``(seed, purpose, *where)``."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, purpose, *where))
