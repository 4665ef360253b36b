"""A short calibration of a configuration: what its rounds take on this machine, and how large its states are."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from lightning import Fabric

from benchmark.config import RunConfig, Runtime
from benchmark.federation.assembly import assemble, make
from benchmark.launch.placement import placed
from methods.parts.aggregation import num_bytes

SHORT_S = 5.0  # a round that takes less is run once more: the first one also warms the machine up


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


class Calibration:
    """A run that leaves nothing behind.

    Args:
        config: resolved configuration.

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data are missing, or the partition cannot be made.
    """

    def __init__(self, config: RunConfig) -> None:
        self.began = time.perf_counter()
        self.config, self.runtime = config, _in_one_process(config)
        fabric = Fabric(
            accelerator=self.runtime.accelerator,
            devices=1,
            precision=config.precision,  # type: ignore[arg-type]
        )
        fabric.launch()
        method, data = make(config, fabric.device)
        self.federation = assemble(replace(config, runtime=self.runtime), method, data, fabric)

    def sizes(self) -> Sizes:
        """How large the states get."""
        return Sizes(self.federation.client_state_bytes, num_bytes(self.federation.server))

    def seconds(self) -> float:
        """Seconds that the run will take, judged by one round of its warm-up, if it has one, and one after it.

        Raises:
            RunError: a round fails.
        """
        before = torch.get_num_threads()
        assert isinstance(self.runtime.threads, int)
        torch.set_num_threads(self.runtime.threads)
        try:
            self.federation.server_phase(0, first=True)
            total, rounds = time.perf_counter() - self.began, self.config.rounds
            warm = sum(self.federation.method.is_warmup(number) for number in range(rounds))
            for count, number in ((warm, 0), (rounds - warm, (warm + rounds) // 2)):
                if count:
                    total += count * self._round(number)
            return total
        finally:
            torch.set_num_threads(before)

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
        if self.federation.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def _in_one_process(config: RunConfig) -> Runtime:
    """Where the run would take place, but in one process that has the threads of all."""
    runtime = placed(config)
    assert isinstance(runtime.devices, int) and isinstance(runtime.threads, int)
    threads = runtime.threads * (runtime.devices if runtime.accelerator == "cpu" else 1)
    return replace(runtime, devices=1, threads=threads)
