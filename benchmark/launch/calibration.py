"""Calibrates a configuration: how long a run takes on this machine, and how large its states are."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import torch
from lightning import Fabric

from benchmark.config import Run, Runtime
from benchmark.federation.assembly import assemble, make
from benchmark.federation.scaling import fabric_precision
from benchmark.launch.placement import placed
from benchmark.runs.capacity import IDLE, others
from datamodules.common.devices import threads
from datamodules.common.errors import BenchError, Stopped
from methods.parts.aggregation import num_bytes

SHORT_S = 5.0  # a shorter round is run again, since the first one includes warming up
LIMIT_S = 60.0
BUSY = "other programs are using the machine"


class Unmeasured(BenchError):
    """Rounds could not be timed; the message says why."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run's states in bytes: what all clients keep between visits, and what the server holds."""

    clients: int
    server: int

    @property
    def checkpoints(self) -> int:
        """Bytes on disk of a checkpoint, its predecessor and the one being written; a complete run has none."""
        return 3 * (self.clients + self.server)


class Calibration:
    """A trial of a run that leaves no files behind.

    Args:
        run: the run.
        limit_s: seconds after which a round, or other work, is given up.

    Raises:
        ConfigError: the configuration cannot be run.
        DataError: the data are missing, or the partition cannot be made.
    """

    def __init__(self, run: Run, limit_s: float = LIMIT_S) -> None:
        began, self.limit_s = time.perf_counter(), limit_s
        runtime = placed(run).config.runtime
        self.run = run.replace(runtime=_in_one_process(runtime))
        self.config = self.run.config
        self.how = "whole rounds" if runtime.devices == 1 else f"whole rounds in 1 process instead of {runtime.devices}"
        self.fabric = Fabric(
            accelerator=self.config.runtime.accelerator,
            devices=1,
            **fabric_precision(self.config.precision, self.config.runtime.accelerator),
        )
        self.fabric.launch()
        self.method, data = make(self.run, self.fabric.device)
        self.federation = assemble(self.run, self.method, data, self.fabric)
        self.preparation = time.perf_counter() - began

    def sizes(self) -> Sizes:
        """How large the states may become."""
        return Sizes(self.federation.client_state_bytes, num_bytes(self.federation.server))

    def seconds(self) -> float:
        """Estimated seconds of the whole run, from one round of the warm-up, if there is one, and one after it.

        Raises:
            Unmeasured: a round takes longer than ``limit_s``, or other programs used the machine meanwhile (checked on
                the CPU only).
            RunError: a round fails.
        """
        used = others()
        with threads(self.config.runtime.threads):
            taken = self._rounds()
        if self.fabric.device.type == "cpu" and used() >= IDLE:
            raise Unmeasured(BUSY)
        return self.preparation + taken

    def _rounds(self) -> float:
        """Estimated seconds of all rounds and of the server's step before them."""
        total = self._timed(lambda: self.federation.server_phase(0, first=True), "the server's work before the rounds")
        rounds = self.config.rounds
        warm = sum(self.method.is_warmup(number) for number in range(rounds))
        for count, number in ((warm, 0), (rounds - warm, (warm + rounds) // 2)):
            if count:
                total += count * self._round(number)
        return total

    def _round(self, number: int) -> float:
        """Seconds of a round, including its share of the evaluations."""
        federation, every = self.federation, self.federation.eval_every
        if every > 1 and (number + 1) % every == 0:
            number -= 1  # time a round that is not evaluated
        federation.round = number

        def work() -> None:
            federation.run_round(number)

        taken = self._timed(work)
        if taken < SHORT_S:
            taken = self._timed(work)
        return taken + (self._timed(federation.evaluate, "an evaluation") / every if every > 1 else 0.0)

    def _timed(self, work: Callable[[], object], what: str = "a round") -> float:
        began = time.perf_counter()
        with _at_most(self.limit_s, what):
            work()
            if self.fabric.device.type == "cuda":
                torch.cuda.synchronize()
        return time.perf_counter() - began


@contextmanager
def _at_most(seconds: float, what: str) -> Iterator[None]:
    """Interrupt what takes longer than ``seconds``, in the way a signal that asks to stop does.

    Raises:
        Unmeasured: it took longer.
    """

    def give_up(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    handler, timer = signal.signal(signal.SIGALRM, give_up), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Stopped as stopped:
        if stopped.signal != signal.SIGALRM:
            raise
        raise Unmeasured(f"{what} takes more than {seconds:.3g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _in_one_process(runtime: Runtime) -> Runtime:
    """The same runtime, but one process with the threads of all."""
    assert isinstance(runtime.devices, int) and isinstance(runtime.threads, int)
    processes = runtime.devices if runtime.accelerator == "cpu" else 1
    return replace(runtime, devices=1, threads=processes * runtime.threads)
