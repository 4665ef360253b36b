"""SAM and ASAM perturbations against the released optimisers, and closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor

from golden_files import load
from methods.parts import perturbation as perturb

GOLDEN = load("fl2/asam_perturbation")


def double(values: dict[str, Any]) -> dict[str, Tensor]:
    """Lists of numbers as float64 tensors; missing gradients are left out."""
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in values.items() if v is not None}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["id"].split(":")[0])
def test_released_perturbation(case: dict[str, Any]) -> None:
    """Displacement, displaced weights and its norm, in double precision."""
    given, out = case["inputs"], case["outputs"]
    weights, slopes = double(given["params"]), double(given["grads"])
    if given["optimizer"] == "asam":
        eps = perturb.asam(weights, slopes, given["rho"], given["eta"])
    else:
        eps = perturb.sam(weights, slopes, given["rho"])
    assert set(eps) == set(slopes)
    for name, expected in double(out["eps"]).items():
        found = eps.get(name, torch.zeros_like(expected))
        torch.testing.assert_close(found, expected, rtol=GOLDEN["rtol"], atol=GOLDEN["atol"])
        moved = weights[name] + found
        torch.testing.assert_close(moved, double(out["perturbed"])[name], rtol=GOLDEN["rtol"], atol=GOLDEN["atol"])
    norm = torch.cat([e.flatten() for e in eps.values()]).norm()
    assert float(norm) == pytest.approx(out["eps_l2_norm"], rel=1e-7, abs=1e-9)


def test_sam_has_length_rho_and_asam_has_it_in_scaled_weights() -> None:
    """The ball is round for SAM and measured relative to the weights for ASAM."""
    g = torch.Generator().manual_seed(0)
    weights = {n: torch.randn(3, 4, generator=g, dtype=torch.float64) for n in ("a.weight", "b.bias")}
    slopes = {n: torch.randn(3, 4, generator=g, dtype=torch.float64) for n in weights}
    eps = perturb.sam(weights, slopes, 0.3)
    assert float(torch.stack([e.norm() for e in eps.values()]).norm()) == pytest.approx(0.3)
    adaptive = perturb.asam(weights, slopes, 0.3, eta=0.01)
    relative = [adaptive["a.weight"] / (weights["a.weight"].abs() + 0.01), adaptive["b.bias"]]
    assert float(torch.stack([r.norm() for r in relative]).norm()) == pytest.approx(0.3)


def test_without_weights_asam_is_sam() -> None:
    """Parameters that are not called weight are not scaled."""
    weights, slopes = {"bias": torch.tensor([3.0, -4.0])}, {"bias": torch.tensor([0.6, 0.8])}
    torch.testing.assert_close(perturb.asam(weights, slopes, 0.1), perturb.sam(weights, slopes, 0.1))


def test_nothing_is_changed() -> None:
    """The helpers are pure."""
    weights, slopes = {"weight": torch.ones(3)}, {"weight": torch.full((3,), 2.0)}
    perturb.asam(weights, slopes, 1.0)
    assert weights["weight"].tolist() == [1.0] * 3
    assert slopes["weight"].tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rule", [perturb.sam, perturb.asam])
def test_a_gradient_of_zero_displaces_nothing_in_any_precision(rule: Any, dtype: torch.dtype) -> None:
    weights = {"a.weight": torch.ones(3, dtype=dtype), "a.bias": torch.zeros(2, dtype=dtype)}
    for eps in rule(weights, {name: torch.zeros_like(w) for name, w in weights.items()}, 0.1).values():
        assert eps.dtype == dtype and not eps.any()
