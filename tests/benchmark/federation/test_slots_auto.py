"""As many slots as there is memory for: on the CPU, and on an emulated device whose memory is made up.

Nothing here has run on a GPU.
"""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from benchmark.contract.devices import run_of
from benchmark.contract.emulated import emulated, fabric
from benchmark.contract.federations import half_trained, tiny_federation
from benchmark.contract.reference import different
from benchmark.federation import slots
from benchmark.federation.loop import Federation
from benchmark.federation.slots import AUTO, SHARE, SlotsEngine, more_slots
from datamodules.common.errors import RunError
from emulated_streams import streams
from federations import few_data, make_federation, run_rows
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


def slots_with(free: list[Any], **options: Any) -> tuple[int, list[dict[str, Any]], dict[str, Any], Any]:
    """How many slots a run makes of so much free memory before and after a visit, what it comes to, and races."""
    made: list[SlotsEngine] = []
    init = SlotsEngine.__init__

    def noted(engine: SlotsEngine, *args: Any, **kwargs: Any) -> None:
        init(engine, *args, **kwargs)
        made.append(engine)

    half_trained()
    with (
        emulated() as emulation,
        streams(emulation) as times,
        patch.object(slots, "available_bytes", side_effect=free) as asked,
        patch.object(SlotsEngine, "__init__", noted),
    ):
        rows, server = run_of("fed_consist", fabric=fabric(), slots="auto", **options)
        assert asked.call_count == 2  # in the first round only
    return len(made[0].slots), rows, server, times.races


@pytest.mark.parametrize(
    ("free", "number"),
    [
        ([80 * 10**6, 60 * 10**6], 3),  # a visit takes 20 MB, and its weights 0.4
        ([30 * 10**6, 10 * 10**6], 1),
    ],
)
def test_on_a_device_there_are_as_many_as_fit(free: list[Any], number: int) -> None:
    """The bits are those of the CPU, and no stream reads what another has not finished."""
    expected_rows, expected = run_of("fed_consist")
    found, rows, server, races = slots_with(free)
    assert found == number
    assert rows == expected_rows and different(server, expected) == [] and races == {}


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
