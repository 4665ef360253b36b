"""SAGE: targets and visits against the released code, and the ends of its correction."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from allclients_visits import Toy, arguments, own_name, precise, visits
from federations import make_method, run_rows, small_contract
from golden_files import load
from methods.client_fixmatch import ClientFixMatch
from methods.parts.tensors import smoothed_divergence
from methods.sage import SAGE, soft_correction

TARGETS, UPDATE = load("allclients/sage_targets"), load("allclients/sage_update")


def corrected(local: Tensor, received: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
    """Targets and mask of images with these logits of the two models."""
    method = make_method("sage", **args)
    method.received_predicts = lambda x: x.softmax(dim=1)
    return method.targets({"weak": received}, local.softmax(dim=1))


@pytest.mark.parametrize("case", TARGETS["cases"])
def test_released_targets(case: dict[str, Any]) -> None:
    """Targets, masks, losses, and gradients at the logits."""
    given, out = case["inputs"], case["outputs"]
    weak, received = precise(given["weak_local_logits"]), precise(given["weak_global_logits"])
    targets, mask = corrected(weak, received, threshold=given["threshold"])
    close = {"rtol": 0.0, "atol": TARGETS["tolerance"]}
    torch.testing.assert_close(targets + 1e-10, precise(out["target_plus_1e_10"]), **close)
    assert mask.tolist() == [bool(m) for m in out["mask_valid"]]
    logits = precise(given["strong_local_logits"]).requires_grad_()
    losses = smoothed_divergence(targets, logits)
    torch.testing.assert_close(losses.detach(), precise(out["kl_per_image"]), **close)
    loss = (mask * losses).mean()
    assert float(loss.detach()) == pytest.approx(out["Lu"], abs=TARGETS["tolerance"])
    loss.backward()
    torch.testing.assert_close(logits.grad, precise(out["grad_strong_logits"]), **close)


@pytest.mark.parametrize("case", UPDATE["cases"])
def test_released_visits(case: dict[str, Any]) -> None:
    """Weights, buffers and momentum after two visits that share an optimiser."""
    method = SAGE(Toy(), **arguments(case)).double()
    close = {"rtol": 0.0, "atol": UPDATE["tolerance"]}
    for out, momentum in visits(method, case):
        for name, value in out["state"].items():
            torch.testing.assert_close(method.registered()[own_name(name)].double(), precise(value), **close)
        for name, value in out["momentum"].items():
            torch.testing.assert_close(momentum[own_name(name)], precise(value), **close)


def test_a_gap_of_a_twentieth_halves_the_weight() -> None:
    """The worked example of the sheet, the half-life, and both ends."""
    c_l = torch.tensor([0.97, 0.95, 0.96, 1.0], dtype=torch.float64)
    c_g = torch.tensor([0.94, 0.90, 0.96, 0.0], dtype=torch.float64)
    weights = soft_correction(c_l, c_g).tolist()
    assert weights == pytest.approx([0.6598, 0.5, 1.0, 1e-6], abs=1e-4)
    assert weights[2] < 1.0 and weights[3] == 1e-6


def test_where_nothing_is_confident_all_of_them_are_fedavg() -> None:
    """No image counts: SAGE and FixMatch train on labels alone, in the statistics of the same batches."""
    servers = []
    for method, args in ((SAGE, {}), (ClientFixMatch, {}), (ClientFixMatch, {"pseudo_labels": "local"})):
        run = small_contract(method, rounds=1, threshold=1.5, **args)
        run_rows(run)
        servers.append(run.server)
    assert all(torch.equal(value, other[name]) for other in servers[1:] for name, value in servers[0].items())


def test_models_that_agree_give_fixmatch() -> None:
    """Without a gap in confidence, and the same class, the target is that class, and either mask is both."""
    logits = 6 * torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    targets, mask = corrected(logits, logits)
    confidence, labels = logits.softmax(dim=1).max(dim=1)
    assert torch.equal(mask, confidence >= 0.95) and 0 < int(mask.sum()) < 50
    torch.testing.assert_close(targets, F.one_hot(labels, 10).float())


def test_without_a_gap_the_local_label_wins_and_across_a_wide_one_the_global_label() -> None:
    """Confidences alike, classes different; then the received model is undecided."""
    local, alike = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 9.0, 0.0]])
    assert corrected(local, alike)[0][0].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=2e-5)
    undecided = torch.tensor([[0.0, 0.1, 0.0]])
    targets, mask = corrected(local, undecided)
    assert targets[0].tolist() == pytest.approx([0.0, 1.0, 0.0], abs=2e-4) and mask.tolist() == [True]
