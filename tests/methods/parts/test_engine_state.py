"""Numbers that change between steps, sums of what a visit logs, and the columns they become."""

import torch
from torch import Tensor

from federations import make_method
from methods.base import Batch, FedMethod
from methods.parts.engine_state import StepNumber, Tally, own_column


class Ramped(FedMethod):
    """A loss with a weight that changes."""

    weight = StepNumber(start=1.0)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.weight * self(batch["labelled"]["x"]).sum()


class Twice(Ramped):
    """A subclass with a number of its own."""

    more = StepNumber()


def test_an_assignment_changes_the_tensor_that_a_recorded_step_holds() -> None:
    method = make_method(Ramped)
    held = method.weight
    assert held.item() == 1.0 and held.dim() == 0
    method.weight = 0.1
    assert method.weight is held and held == torch.tensor(0.1)


def test_it_follows_the_module_and_is_no_state() -> None:
    method = make_method(Twice)
    method.more = 1 / 3
    assert not any("weight_now" in name or "more_now" in name for name in method.state_dict())
    method.more = 1 / 3
    assert method.double().more.dtype == torch.float64
    method.more = 1 / 3
    assert method.more.item() == 1 / 3


def test_no_two_names_share_a_column() -> None:
    """Neither among a method's values, nor with the framework's."""
    names = ["loss", "acc", "logged/acc", "logged/logged/acc", "server/x", "x", "pseudo/certain", "pseudo/right"]
    for automatic in (True, False):
        assert len({own_column(name, automatic) for name in names}) == len(names)
    assert own_column("loss", automatic=False) == "loss" and own_column("pseudo/certain", True) == "pseudo/certain"


def test_sums_of_short_numbers_are_wide() -> None:
    """Sums of bfloat16 numbers stop at 256, and other visits' types leave no trace."""
    tally = Tally()
    for _ in range(1000):
        tally.add("number", torch.ones((), dtype=torch.bfloat16), 1.0)
    mean = tally.mean("number")
    assert mean is not None and float(mean) == 1.0
    tally.clear()
    tally.add("number", torch.tensor(0.1, dtype=torch.float64), 3.0)
    assert tally.taken()["number"][0].dtype == torch.float64


def test_sums_of_another_shape_leave_those_of_a_recorded_step_alone() -> None:
    """A recorded step adds to the tensors that were there when it was recorded, whatever another visit has logged."""
    tally = Tally()
    tally.add("number", torch.tensor(2.0), 1.0)
    recorded = next(iter(tally.sums.values()))[0]
    tally.clear()
    tally.add("number", torch.ones(3), 1.0)
    tally.clear()
    tally.add("number", torch.tensor(0.0), 1.0)
    recorded += 5.0
    assert float(tally.taken()["number"][0]) == 5.0
