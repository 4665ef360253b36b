"""The participants of a round: a function of the round only, not of the method or of earlier rounds."""

import random
from dataclasses import dataclass, field

import numpy as np

from datamodules.common.errors import ConfigError
from datamodules.common.streams import derive_seed

RULES = ("uniform", "numpy_round", "numpy_run")


@dataclass
class Roster:
    """The registered clients and the draw of participants.

    Args:
        num_clients: registered clients; ids are ``0..num_clients-1``.
        labelled: ids of the clients that hold labels, ascending.
        seed: run seed of the ``roster`` stream.
        participants: clients drawn per round without replacement; ``None``: all. A method may train some of them alone,
            such as those with labels, or draw its own.
        rule: ``"uniform"`` hashes (seed, round); ``"numpy_round"`` re-seeds NumPy's legacy generator with the round
            index and draws ``choice(num_clients, participants, replace=False)``, so that every run has the same
            participants (FedDure's released code); ``"numpy_run"`` seeds that generator once with the run seed and
            draws in the same way round by round (SAGE's and ProxyFL's).

    Raises:
        ConfigError: more participants than clients, or an unknown rule.
    """

    num_clients: int
    labelled: tuple[int, ...]
    seed: int = 1337
    participants: int | None = None
    rule: str = "uniform"
    _subsets: dict[int, tuple[random.Random, list[list[int]]]] = field(default_factory=dict, repr=False, init=False)
    _rounds: list[list[int]] = field(default_factory=list, repr=False, init=False)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"roster: unknown rule {self.rule!r}; choose one of {', '.join(RULES)}")
        if self.participants is not None and not 1 <= self.participants <= self.num_clients:
            raise ConfigError(
                f"roster: {self.participants} participants per round from {self.num_clients} clients; "
                f"choose 1..{self.num_clients} or null for all"
            )
        self._stream = np.random.RandomState(self.seed % 2**32)

    def sample(self, round: int) -> list[int]:
        """Return the ids of the round's participants, ascending, or with ``numpy_run`` in the order drawn."""
        if self.participants is None:
            return list(range(self.num_clients))
        if self.rule == "numpy_run":
            while len(self._rounds) <= round:
                self._rounds.append(self._stream.choice(self.num_clients, self.participants, replace=False).tolist())
            return list(self._rounds[round])
        seed = round if self.rule == "numpy_round" else derive_seed(self.seed, "roster", round) % 2**32
        drawn = np.random.RandomState(seed).choice(self.num_clients, self.participants, replace=False)
        return sorted(drawn.tolist())

    def shuffled(self, round: int) -> list[int]:
        """Return the round's participants in random order, for methods that give them different roles."""
        drawn, seed = self.sample(round), derive_seed(self.seed, "places", round) % 2**32
        return [drawn[place] for place in np.random.RandomState(seed).permutation(len(drawn))]

    def subsets(self, index: int, count: int, size: int) -> list[list[int]]:
        """Return the ``index``-th group of ``count`` independent subsets of ``size`` distinct clients.

        Python's ``random``, seeded once with the run seed, draws ``sample(range(N), size)`` repeatedly: RSCFed's
        published schedule (released code). Ids inside a subset are in the order drawn.

        Raises:
            ConfigError: ``size`` below 1 or above the number of clients.
        """
        clients = range(self.num_clients)
        if not 1 <= size <= len(clients):
            raise ConfigError(f"subsets of {size} clients from {len(clients)}: choose subsets of 1 to {len(clients)}")
        rng, subsets = self._subsets.setdefault(size, (random.Random(self.seed), []))
        while len(subsets) < (index + 1) * count:
            subsets.append(rng.sample(clients, size))
        return subsets[index * count : (index + 1) * count]
