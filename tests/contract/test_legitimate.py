"""Methods that are unusual, and right: the contract has nothing to say against them."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.contract import irrelevant, isolation, runs
from benchmark.contract.federations import brief, tiny_federation
from benchmark.contract.reference import rounds_until
from methods.base import Batch, FedMethod, Visit


class Closed(FedMethod):
    """Fixes every argument of its base."""

    def __init__(self, model: nn.Module, share: float = 0.5) -> None:
        super().__init__(model, lr=0.02, local_epochs=1)
        self.share = share

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """A share of the cross-entropy."""
        return self.share * F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class NotYetKnown(FedMethod):
    """Marks by NaN what a client, or the server, does not know before the first round."""

    scopes = {"best": "personal", "slowest": "server"}

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.register_buffer("best", torch.tensor(float("nan")))
        self.register_buffer("slowest", torch.tensor([float("nan"), float("nan")]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class SendsNoise(Closed):
    """Every client is sent a model of its own, with noise from the stream of the hook."""

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """A little of it."""
        sent = super().broadcast(server, visit)
        return {name: value + 1e-3 * torch.randn_like(value) for name, value in sent.items()}


CHECKS = (
    runs.check_a_run_is_finite_and_learns,
    irrelevant.check_same_seed_same_bits,
    runs.check_resume_is_exact,
    irrelevant.check_test_images_are_not_used,
    runs.check_clients_with_one_image_or_none,
    isolation.check_hooks_change_nothing_they_are_given,
    isolation.check_nothing_unregistered_survives_a_visit,
    isolation.check_all_tensors_lie_on_the_device,
)


@pytest.mark.parametrize("method", [Closed, NotYetKnown])
@pytest.mark.parametrize("check", CHECKS)
def test_it_passes(method: type[FedMethod], check: Any) -> None:
    check(method)


def test_what_is_sent_may_be_drawn() -> None:
    """Draws of ``broadcast`` follow a client to its other id, as those of its visit do."""
    runs.check_names_of_clients_do_not_matter(SendsNoise)


def test_only_arguments_that_a_method_has_are_shortened() -> None:
    assert brief(Closed) == {}
    assert len(rounds_until(tiny_federation(Closed), 2)) == 2
