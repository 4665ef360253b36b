"""A short calibration of a configuration: what its rounds take on this machine, and how large its states are."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from lightning import Fabric

from benchmark.config import RunConfig, Runtime
from benchmark.federation.assembly import assemble, make
from benchmark.federation.loop import Federation
from benchmark.launch.placement import placed
from datamodules.common.errors import RunError
from methods.parts.aggregation import num_bytes

SHORT_S = 5.0  # a part that takes less is run once more: the first time also warms the machine up
LIMIT_S = 60.0  # no measurement begins that would probably take longer
THINNINGS = (64, 16, 4, 1)
"""Measurements are taken on one of so many images, then on more, as long as the limit allows."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a run's states: what all its clients keep between their visits, and what the server has."""

    clients: int
    server: int

    @property
    def checkpoints(self) -> int:
        """What a checkpoint, its predecessor and the next one, while that is written, may take on disk.

        All go when the run is complete.
        """
        return 3 * (self.clients + self.server)


@dataclass(frozen=True)
class Duration:
    """What a run will take.

    Args:
        seconds: of the whole run.
        thinning: it was judged by rounds on one of so many images; 1 where these were all.
    """

    seconds: float
    thinning: int


class Calibration:
    """A run that leaves nothing behind.

    Args:
        config: resolved configuration.

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data are missing, or the partition cannot be made.
    """

    def __init__(self, config: RunConfig) -> None:
        began = time.perf_counter()
        self.config = replace(config, runtime=_in_one_process(config))
        self.fabric = Fabric(
            accelerator=self.config.runtime.accelerator,
            devices=1,
            precision=config.precision,  # type: ignore[arg-type]
        )
        self.fabric.launch()
        self.method, self.data = make(config, self.fabric.device)
        self.federation = self._assembled(1)
        self.preparation = time.perf_counter() - began

    def sizes(self) -> Sizes:
        """How large the states get."""
        return Sizes(self.federation.client_state_bytes, num_bytes(self.federation.server))

    def duration(self) -> Duration:
        """What the run will take, judged by one round of its warm-up, if it has one, and one after it.

        Where a round takes long, it is run on a part of each client's images, of the server's and of the test set. Two
        such parts give a line: what takes its time whatever the number of images, and what each image adds.

        Raises:
            RunError: a round fails.
        """
        before = torch.get_num_threads()
        assert isinstance(self.config.runtime.threads, int)
        torch.set_num_threads(self.config.runtime.threads)
        share, seconds, whole = 0.0, 0.0, 0.0
        try:
            for thinning in THINNINGS:
                began = time.perf_counter()
                try:
                    taken = self._rounds(thinning)
                except RunError:
                    if thinning == 1:
                        raise
                    continue  # so few images may be too few for a method
                whole = extrapolated((share, seconds), (1 / thinning, taken))
                share, seconds = 1 / thinning, taken
                if 4 * (time.perf_counter() - began) > LIMIT_S:  # so long may four times the images take
                    break
        finally:
            torch.set_num_threads(before)
        return Duration(self.preparation + whole, thinning)

    def _rounds(self, thinning: int) -> float:
        """Seconds that all rounds would take, and what comes before the first, on one of so many images."""
        self.federation = self._assembled(thinning)
        gc.collect()  # the last federation and its data refer to each other
        total = self._timed(lambda: self.federation.server_phase(0, first=True))
        rounds = self.config.rounds
        warm = sum(self.method.is_warmup(number) for number in range(rounds))
        for count, number in ((warm, 0), (rounds - warm, (warm + rounds) // 2)):
            if count:
                total += count * self._round(number)
        return total

    def _round(self, number: int) -> float:
        """Seconds of a round, with its share of the evaluations."""
        federation, every = self.federation, self.federation.eval_every
        if every > 1 and (number + 1) % every == 0:
            number -= 1  # a round that is not evaluated
        federation.round = number

        def work() -> None:
            federation.run_round(number)

        taken = self._timed(work)
        if taken < SHORT_S:
            taken = self._timed(work)
        return taken + (self._timed(federation.evaluate) / every if every > 1 else 0.0)

    def _timed(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def _assembled(self, thinning: int) -> Federation:
        data = self.data if thinning == 1 else self.data.thinned(thinning)
        return assemble(self.config, self.method, data, self.fabric)


def extrapolated(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Seconds on all images, on the line through seconds on two shares of them, ``(share, seconds)`` each.

    More images never take less time: noise may say so, but then it is the other measurement that counts.
    """
    (few, short), (many, long) = one, other
    return long + max(long - short, 0.0) / (many - few) * (1 - many)


def _in_one_process(config: RunConfig) -> Runtime:
    """Where the run would take place, but in one process that has the threads of all."""
    runtime = placed(config)
    assert isinstance(runtime.devices, int) and isinstance(runtime.threads, int)
    threads = runtime.threads * (runtime.devices if runtime.accelerator == "cpu" else 1)
    return replace(runtime, devices=1, threads=threads)
