"""Sums of two parts in place of weights: the network computes the same, for every kind of network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import models
from methods.fedmatch import FedMatch
from methods.parts.additive import Additive, flat, pairs, psi_names, sparse, unflat

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet9_plain": {"width": 4},
    "resnet9": {"width": 4},
    "wrn28_2": {"depth": 10, "width": 1, "norm": "static"},
    "wrn28_8": {"depth": 10, "width": 1, "norm": "group"},
    "small_cnn": {},
    "vit_tiny_scratch": {"image_size": 32},
}


def network(name: str) -> nn.Module:
    """Freshly initialised, in double precision."""
    torch.manual_seed(0)
    return models.build(name, 10, **NETWORKS[name]).double()


def images(count: int = 4) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def decompose(model: nn.Module, cls: type[FedMatch] = FedMatch) -> None:
    """Make the network's weights sums, in place, as the method does; no entry counts as 0."""
    cls(model, num_classes=10, num_clients=1, image_shape=(3, 32, 32), l1_threshold=0.0)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_computes_with_the_sum(name: str) -> None:
    """sigma is the weight of before, psi a fifth of it: the output is that of weights 1.2 times as large."""
    whole, divided = network(name), network(name)
    decompose(divided)
    kinds = (nn.Conv2d, nn.Linear)
    with torch.no_grad():
        for layer in whole.modules():
            if isinstance(layer, kinds):
                layer.weight.mul_(1.2)
    for mode in (True, False):
        torch.testing.assert_close(divided.train(mode)(images()), whole.train(mode)(images()))
    weights = sum(isinstance(layer, kinds) for layer in whole.modules())
    assert len(pairs(divided)) == len(psi_names(divided)) == weights
    assert all(torch.equal(psi, 0.2 * sigma) for sigma, psi in pairs(divided))
    single = len(list(whole.parameters()))
    assert len(list(divided.parameters())) == single + weights


def test_small_entries_are_cut_in_evaluation_only() -> None:
    """Values of exactly the bound are cut too."""
    part = Additive(torch.tensor([1e-6, -5e-6, 6e-6, 1.0], dtype=torch.float64), cut=5e-6)
    zero = torch.zeros(4, dtype=torch.float64)
    assert part(zero).tolist() == [1e-6, -5e-6, 6e-6, 1.0]
    assert part.eval()(zero).tolist() == [0.0, 0.0, 6e-6, 1.0]
    assert sparse(torch.tensor([-2.0, 1.0, 0.0]), 1.0).tolist() == [-2.0, 0.0, 0.0]


def test_flat_and_back() -> None:
    """Also for weights whose channels come last in memory."""
    like = {"a": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last), "b": torch.rand(5)}
    vector = flat(like.values())
    assert vector.shape == (2 * 3 * 16 + 5,)
    back = unflat(vector, like)
    assert all(torch.equal(back[name], like[name]) for name in like)
