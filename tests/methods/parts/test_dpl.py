"""Debiased pseudo-labels against the released functions, the sheet's example and degenerate clients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from golden_files import load
from methods.feddb import app_u_momentum
from methods.parts.dpl import app_u, debias

DPL, MOMENTUM = load("feddb/dpl"), load("feddb/appu_momentum")


def given(case: dict[str, Any]) -> Tensor:
    """Probabilities of a case; where it gives logits, their softmax."""
    inputs = case["inputs"]
    return torch.tensor(inputs["probs"]) if "probs" in inputs else torch.tensor(inputs["logits"]).softmax(dim=1)


@pytest.mark.parametrize("case", DPL["cases"], ids=lambda c: c["name"])
def test_released_pseudo_labels(case: dict[str, Any]) -> None:
    """APP-U, debiased rows (NaN where the released code has it), labels, mask and confident set of every case."""
    p, out = given(case), case["outputs"]
    torch.testing.assert_close(app_u(p), torch.tensor(out["app_u"]), rtol=0, atol=DPL["tolerance"])
    debiased = debias(p)
    expected = torch.tensor([[float(v) for v in row] for row in out["debiased"]])
    torch.testing.assert_close(debiased, expected, rtol=0, atol=DPL["tolerance"], equal_nan=True)
    confidence, label = debiased.max(dim=1)
    mask = confidence >= case["inputs"]["tau"]
    assert mask.tolist() == out["mask"]
    distinct = (expected.sort(dim=1).values[:, -2:].diff(dim=1) > 1e-6).flatten()  # ties have no arg max
    assert label[distinct].tolist() == torch.tensor(out["argmax"])[distinct].tolist()
    assert (torch.flatten(mask.nonzero()).tolist() or None) == out["kept_indices"]
    assert (label[mask].tolist() or None) == out["kept_labels"]
    assert float(mask.float().mean()) == pytest.approx(out["kept_fraction"])


def test_a_uniform_prior_changes_nothing_and_a_common_factor_cancels() -> None:
    """Debiasing by the uniform distribution is the identity; rescaling the prior changes no row."""
    p = torch.rand(40, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = p / p.sum(dim=1, keepdim=True)
    uniform = torch.full((10,), 0.1, dtype=torch.float64)
    torch.testing.assert_close(debias(p, prior=uniform), p)
    torch.testing.assert_close(debias(p, prior=3 * app_u(p)), debias(p))
    torch.testing.assert_close(debias(p).sum(dim=1), torch.ones(40, dtype=torch.float64))


def test_a_class_that_never_occurs() -> None:
    """An average of exactly 0 makes all rows NaN; eps keeps the class at 0 and is nothing else than its removal."""
    p = torch.tensor([[0.9, 0.0, 0.1], [0.2, 0.0, 0.8]])
    assert bool(debias(p).isnan().all())
    safe = debias(p, eps=1e-12)
    assert safe[:, 1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(safe[:, [0, 2]], debias(p[:, [0, 2]]))


@pytest.mark.parametrize("case", MOMENTUM["cases"], ids=range(len(MOMENTUM["cases"])))
def test_released_momentum(case: dict[str, Any]) -> None:
    """The APP-U after each epoch of the released client."""
    value = torch.tensor(case["inputs"]["app_u_start"])
    assert len(case["inputs"]["epoch_means"]) == len(case["outputs"]["app_u_after_each_epoch"]) == 5
    for mean, after in zip(case["inputs"]["epoch_means"], case["outputs"]["app_u_after_each_epoch"], strict=True):
        value = app_u_momentum(value, torch.tensor(mean), case["inputs"]["gamma"])
        torch.testing.assert_close(value, torch.tensor(after), rtol=0, atol=MOMENTUM["tolerance"])


# --- the rule in other methods
