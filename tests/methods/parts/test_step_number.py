"""Numbers that change between steps reach steps that were recorded before."""

import torch
from torch import Tensor

from federations import make_method
from methods.base import Batch, FedMethod
from methods.parts.step_number import StepNumber


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


def test_two_methods_do_not_share_their_numbers() -> None:
    one, other = make_method(Ramped), make_method(Ramped)
    one.weight = 0.5
    assert other.weight.item() == 1.0


def test_it_follows_the_module_and_is_no_state() -> None:
    method = make_method(Twice)
    method.more = 1 / 3
    assert not any("weight_now" in name or "more_now" in name for name in method.state_dict())
    method.more = 1 / 3
    assert method.double().more.dtype == torch.float64
    method.more = 1 / 3
    assert method.more.item() == 1 / 3
