"""SAGE: targets and visits against the released code, and the ends of its correction."""

from typing import Any

import pytest
import torch

from allclients_visits import Toy, arguments, precise, visits
from federations import make_method
from golden_files import load
from methods.parts.tensors import smoothed_divergence
from methods.sage import SAGE, soft_correction

TARGETS, UPDATE = load("allclients/sage_targets"), load("allclients/sage_update")


@pytest.mark.parametrize("case", TARGETS["cases"])
def test_released_targets(case: dict[str, Any]) -> None:
    """Targets, masks, losses, and gradients at the logits."""
    given, out = case["inputs"], case["outputs"]
    weak, received = precise(given["weak_local_logits"]), precise(given["weak_global_logits"])
    method = make_method("sage", threshold=given["threshold"])
    method.received_predicts = lambda x: x.softmax(dim=1)
    targets, mask = method.targets({"weak": received}, weak.softmax(dim=1))
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
    assert len(list(visits(SAGE(Toy(), **arguments(case)).double(), case, UPDATE["tolerance"]))) == 2


def test_a_gap_of_a_twentieth_halves_the_weight() -> None:
    """The worked example of the sheet, the half-life, and both ends."""
    c_l = torch.tensor([0.97, 0.95, 0.96, 1.0], dtype=torch.float64)
    c_g = torch.tensor([0.94, 0.90, 0.96, 0.0], dtype=torch.float64)
    weights = soft_correction(c_l, c_g).tolist()
    assert weights == pytest.approx([0.6598, 0.5, 1.0, 1e-6], abs=1e-4)
    assert weights[2] < 1.0 and weights[3] == 1e-6
