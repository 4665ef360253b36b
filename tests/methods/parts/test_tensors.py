"""Small functions of tensors: against torch's own, the released code, and closed forms."""

from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from federations import make_method
from golden_files import close, load
from methods.feddb import app_u_momentum
from methods.parts.tensors import app_u, ema_decay, ema_update, exponential_ramp, smoothed_divergence, wide


def test_wide_never_narrows() -> None:
    for given in (torch.bfloat16, torch.float16, torch.float32):
        assert wide(torch.ones(2, dtype=given)).dtype == torch.float32
    assert wide(torch.ones(2, dtype=torch.float64)).dtype == torch.float64


def test_a_divergence_from_what_is_certain_of_another_class_is_finite() -> None:
    found = smoothed_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1000.0]]))
    assert found.item() == pytest.approx(23.026, abs=1e-3)


def test_ramp() -> None:
    """FedIRM's λ: 0.0067 at round 0, 0.6376 at 21, 1 from 30."""
    assert round(exponential_ramp(0, 30), 4) == 0.0067
    assert round(exponential_ramp(21, 30), 4) == 0.6376
    assert exponential_ramp(-3, 30) == exponential_ramp(0, 30) == exp(-5)
    assert exponential_ramp(30, 30) == exponential_ramp(99, 30) == exponential_ramp(0, 0) == 1


EMA = load("rscfed/ema_update")
PARAMETERS = ("fc1.weight", "fc1.bias", "bn.weight", "bn.bias", "fc2.weight", "fc2.bias")


def test_released_teacher_updates() -> None:
    """Every stored step, from the same teacher; the decay is that of the released rule."""
    assert len(EMA["outputs"]) == 9
    student = [EMA["inputs"]["student"][name] for name in PARAMETERS]
    for out in EMA["outputs"]:
        teacher = [EMA["inputs"]["teacher_before"][name].clone() for name in PARAMETERS]
        decay = ema_decay(torch.tensor(float(out["step"])), 0.999)
        assert float(decay) == pytest.approx(out["alpha"], abs=1e-6)
        ema_update(teacher, student, decay)
        for name, value in zip(PARAMETERS, teacher, strict=True):
            close(value, out["teacher_after"][name], EMA)


# --- debiased pseudo-labels

DPL, MOMENTUM = load("feddb/dpl"), load("feddb/appu_momentum")


def given(case: dict[str, Any]) -> Tensor:
    """Probabilities of a case; where it gives logits, their softmax."""
    inputs = case["inputs"]
    return torch.tensor(inputs["probs"]) if "probs" in inputs else torch.tensor(inputs["logits"]).softmax(dim=1)


@pytest.mark.parametrize("case", DPL["cases"], ids=lambda c: c["name"])
def test_released_pseudo_labels(case: dict[str, Any]) -> None:
    """APP-U, debiased rows (NaN where the released code has it), labels and confident set of every case."""
    p, out = given(case), case["outputs"]
    torch.testing.assert_close(app_u(p), torch.tensor(out["app_u"]), rtol=0, atol=DPL["tolerance"])
    method = make_method("feddb", threshold=case["inputs"]["tau"])
    debiased = method.debiased(p)
    expected = torch.tensor([[float(v) for v in row] for row in out["debiased"]])
    torch.testing.assert_close(debiased, expected, rtol=0, atol=DPL["tolerance"], equal_nan=True)
    labels, keep = method.select(debiased)
    assert keep.tolist() == out["mask"]
    assert (labels[keep].tolist() or None) == out["kept_labels"]
    distinct = (expected.sort(dim=1).values[:, -2:].diff(dim=1) > 1e-6).flatten()  # ties have no arg max
    assert labels[distinct].tolist() == torch.tensor(out["argmax"])[distinct].tolist()


@pytest.mark.parametrize("case", MOMENTUM["cases"], ids=range(len(MOMENTUM["cases"])))
def test_released_momentum(case: dict[str, Any]) -> None:
    """The APP-U after each epoch of the released client."""
    value = torch.tensor(case["inputs"]["app_u_start"])
    assert len(case["inputs"]["epoch_means"]) == len(case["outputs"]["app_u_after_each_epoch"]) == 5
    for mean, after in zip(case["inputs"]["epoch_means"], case["outputs"]["app_u_after_each_epoch"], strict=True):
        value = app_u_momentum(value, torch.tensor(mean), case["inputs"]["gamma"])
        torch.testing.assert_close(value, torch.tensor(after), rtol=0, atol=MOMENTUM["tolerance"])
