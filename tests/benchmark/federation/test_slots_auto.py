"""As many slots as there is memory for; on an emulated device see ``test_slots_on_a_device``."""

from typing import Any

import pytest
import torch

from benchmark.federation.loop import Federation
from benchmark.federation.slots import AUTO, SHARE, more_slots
from datamodules.common.errors import RunError
from federations import few_data, make_federation, run_rows, tiny_federation
from methods.fedavg import FedAvg


def test_on_a_cpu_there_is_one() -> None:
    """Steps are not faster there in turns (docs/performance.md)."""
    auto, reference = (make_federation("fedavg", few_data(3), 1, **args) for args in ({"slots": "auto"}, {}))
    assert run_rows(auto) == run_rows(reference)
    assert len(auto.engine.slots) == 1  # type: ignore[attr-defined]
    assert all(torch.equal(auto.server[name], value) for name, value in reference.server.items())


def test_slots_share_what_is_left() -> None:
    assert [more_slots(free, 100) for free in (0, 100, 125, 250, 10**9)] == [0, 0, 1, 2, AUTO - 1]
    assert 0 < SHARE < 1


class Large(FedAvg):
    """A method that finds no memory."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_where_not_even_one_fits_the_error_says_where() -> None:
    said = []
    for number in (1, "auto"):
        made: Federation = tiny_federation(Large, slots=number)
        with pytest.raises(RunError, match=r"^Large, client \d \(\d+ images\), round 0: .*out of memory") as error:
            made.run()
        said.append(str(error.value))
    assert said[0] == said[1]
