"""Small functions of tensors: against torch's own, the released code, and closed forms."""

from math import exp
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from golden_files import close, load
from host_reads import count_host_reads
from methods.feddb import app_u_momentum
from methods.parts.tensors import (
    app_u,
    debias,
    ema_decay,
    ema_update,
    exponential_ramp,
    masked_mean,
    one_hot,
    proximal_term,
    smoothed_divergence,
    wide,
)


def test_wide_never_narrows() -> None:
    for given in (torch.bfloat16, torch.float16, torch.float32):
        assert wide(torch.ones(2, dtype=given)).dtype == torch.float32
    assert wide(torch.ones(2, dtype=torch.float64)).dtype == torch.float64


def test_one_hot() -> None:
    """As torch's own, but bool, and without asking the device how many classes there are."""
    labels = torch.tensor([2, 0, 1, 2])
    assert one_hot(labels, 4).dtype == torch.bool
    assert torch.equal(one_hot(labels, 4).long(), torch.nn.functional.one_hot(labels, 4))
    with count_host_reads() as reads:
        one_hot(labels, 4)
    assert not reads


def test_masked_mean() -> None:
    """Over the set mask; 0 where there is none."""
    values = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    assert masked_mean(values, torch.tensor([True, False, True])).item() == 3.5
    nothing = masked_mean(values, torch.zeros(3, dtype=torch.bool))
    nothing.backward()
    assert nothing.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [0.0] * 3


def test_smoothed_divergence() -> None:
    """One-hot: the cross-entropy; else KL; finite where the prediction is certain of another class."""
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    labels = torch.arange(20) % 5
    losses = smoothed_divergence(F.one_hot(labels, 5).double(), logits)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"), rtol=0.0, atol=2e-8)
    soft = torch.randn(20, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(dim=1)
    expected = F.kl_div(logits.log_softmax(dim=1), soft, reduction="none").sum(dim=1)
    torch.testing.assert_close(smoothed_divergence(soft, logits), expected, rtol=0.0, atol=1e-7)
    far = torch.tensor([[0.0, 1000.0]])
    assert smoothed_divergence(torch.tensor([[1.0, 0.0]]), far).item() == pytest.approx(23.026, abs=1e-3)


def test_the_proximal_term() -> None:
    """Half the squared distance over all parameters; its gradient is the difference."""
    here = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]
    there = [torch.tensor([0.0, 2.0]), torch.tensor([[1.0]])]
    term = proximal_term(here, there)
    assert float(term) == 0.5 * (1 + 4)
    gradients = torch.autograd.grad(term, here)
    assert [g.tolist() for g in gradients] == [[1.0, 0.0], [[2.0]]]


def test_ramp() -> None:
    """FedIRM's λ: 0.0067 at round 0, 0.6376 at 21, 1 from 30."""
    assert round(exponential_ramp(0, 30), 4) == 0.0067
    assert round(exponential_ramp(21, 30), 4) == 0.6376
    assert exponential_ramp(-3, 30) == exponential_ramp(0, 30) == exp(-5)
    assert exponential_ramp(0, 0) == 1
    assert exponential_ramp(30, 30) == exponential_ramp(99, 30) == 1
    ramp = [exponential_ramp(r, 30) for r in range(31)]
    assert ramp == sorted(ramp) and len(set(ramp)) == 31


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


@pytest.mark.parametrize("case", MOMENTUM["cases"], ids=range(len(MOMENTUM["cases"])))
def test_released_momentum(case: dict[str, Any]) -> None:
    """The APP-U after each epoch of the released client."""
    value = torch.tensor(case["inputs"]["app_u_start"])
    assert len(case["inputs"]["epoch_means"]) == len(case["outputs"]["app_u_after_each_epoch"]) == 5
    for mean, after in zip(case["inputs"]["epoch_means"], case["outputs"]["app_u_after_each_epoch"], strict=True):
        value = app_u_momentum(value, torch.tensor(mean), case["inputs"]["gamma"])
        torch.testing.assert_close(value, torch.tensor(after), rtol=0, atol=MOMENTUM["tolerance"])
