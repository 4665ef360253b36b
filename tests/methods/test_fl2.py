"""(FL)2: thresholds and perturbation against the released code, the step against its naive form, and its ablations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.base import SiteData
from datamodules.partition.sites import true_labels
from federations import contract_federation, few_data, make_method, visited
from golden_files import load
from methods import models
from methods.ablations.fl2 import PlainSAM, ServerStatistics, WeakTarget, sam
from methods.fl2 import FL2, adaptive_thresholds, asam, lsaa_weights

GOLDEN, PERTURBATION = load("fl2/cat_thresholds"), load("fl2/asam_perturbation")
TOLERANCE = {"rtol": GOLDEN["rtol"], "atol": GOLDEN["atol"]}
EXACT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["id"].split(":")[0])
def test_released_thresholds(case: dict[str, Any]) -> None:
    """tau, class thresholds, and what adaptive, fixed and high-confidence selection keep of a client's samples."""
    clients, out = torch.tensor(case["inputs"]["client_indices"]), case["outputs"]
    probabilities = torch.tensor(case["inputs"]["probs"], dtype=torch.float64)[clients]
    tau, thresholds = adaptive_thresholds(probabilities)
    assert float(tau) == pytest.approx(out["tau"], rel=1e-7)
    expected = torch.tensor(out["class_thresholds"], dtype=torch.float64)
    torch.testing.assert_close(thresholds, expected, **TOLERANCE)
    for selection, key in (("adaptive", ""), ("fixed", "fixmatch_")):
        method = make_method("fl2", selection=selection)
        labels, keep = method.select(probabilities)
        assert clients[keep].tolist() == out[f"{key}selected_indices"]
        assert spread(labels, keep, clients, out) == out[f"{key}pseudo_targets_full"]
    high = method.consistent(None, labels, probabilities)
    assert spread(labels, high, clients, out) == out["high_conf_targets_full"]


def spread(labels: Tensor, keep: Tensor, clients: Tensor, out: dict[str, Any]) -> list[int]:
    """The labels that are kept, at their images' places in the whole data set; -1 elsewhere."""
    full = torch.full((len(out["pseudo_targets_full"]),), -1)
    full[clients[keep]] = labels[keep]
    return full.tolist()


def method_and_batch(batch: int = 6, high: int = 4, cls: type[FL2] = FL2, **args: Any) -> tuple[FL2, dict[str, Tensor]]:
    """A method around a network with static batch norm, and a batch, in double precision."""
    torch.manual_seed(0)
    network = models.build("wrn28_2", 10, image_size=8, depth=6, width=1)
    method = cls(network, **{"rho": 0.5, **args}).double().train()
    g = torch.Generator().manual_seed(1)
    views = {name: torch.randn(batch, 3, 8, 8, generator=g, dtype=torch.float64) for name in ("strong", "weak")}
    mask = torch.arange(batch) < high
    return method, {**views, "y": torch.randint(10, (batch,), generator=g), "high": mask}


def step(method: FL2, samples: dict[str, Tensor]) -> list[Tensor]:
    """The gradients that the method's step follows, before clipping; a parameter without one is left out."""
    method.zero_grad()
    method.sharpness_aware_consistency({"unlabelled": samples})
    return [p.grad for p in method.model.parameters() if p.grad is not None]


def slopes(method: FL2, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(method.model.parameters())))


def released(
    method: FL2, samples: dict[str, Tensor], rho: float = 0.5, rule: Any = asam, target: str = "strong"
) -> list[Tensor]:
    """The published order: target, L_p and climb, KL at W*, back, L_a; five passes, weights changed in place."""
    x, y, mask = samples["strong"], samples["y"], samples["high"].double()
    parameters = dict(method.model.named_parameters())
    with torch.no_grad():
        wanted = method.model(samples[target]).softmax(dim=1)
    loss_p = (F.cross_entropy(method.model(x), y, reduction="none") * mask).sum() / mask.sum()
    slope = dict(zip(parameters, slopes(method, loss_p), strict=True))
    saved = {name: p.detach().clone() for name, p in parameters.items()}
    eps = rule(saved, slope, rho)
    with torch.no_grad():
        for name, p in parameters.items():
            p += eps[name]
    logs = method.model(x).log_softmax(dim=1)
    divergence = F.kl_div(logs, wanted, reduction="none").sum(dim=1)
    pulled = slopes(method, (divergence * mask).sum() / len(x))
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(saved[name])
    own = slopes(method, F.cross_entropy(method.model(x), y))
    return [a + b for a, b in zip(own, pulled, strict=True)]


@pytest.mark.parametrize(
    ("cls", "rule", "target"), [(FL2, asam, "strong"), (PlainSAM, sam, "strong"), (WeakTarget, asam, "weak")]
)
def test_shared_forward_equals_the_five_passes(cls: type[FL2], rule: Any, target: str) -> None:
    """Gradients agree in double precision, with either perturbation and either target; weights are not touched."""
    method, samples = method_and_batch(cls=cls)
    before = [p.detach().clone() for p in method.model.parameters()]
    found, expected = step(method, samples), released(method, samples, rule=rule, target=target)
    torch.testing.assert_close(found, expected, **EXACT)
    plain = slopes(method, F.cross_entropy(method(samples["strong"]), samples["y"]))
    assert max(float((a - b).abs().max()) for a, b in zip(found, plain, strict=True)) > 1e-3
    assert all(torch.equal(a, b) for a, b in zip(before, method.model.parameters(), strict=True))


@pytest.mark.parametrize("args", [{"high": 0}, {"rho": 0.0}, {"w_cs": 0.0}])
def test_without_confident_samples_perturbation_or_weight_it_is_plain(args: dict[str, Any]) -> None:
    """Nothing is perturbed, nothing is NaN, KL(p || p) has no gradient: that of L_a is left."""
    method, samples = method_and_batch(**args)
    plain = slopes(method, F.cross_entropy(method(samples["strong"]), samples["y"]))
    torch.testing.assert_close(step(method, samples), plain, **EXACT)


def double(values: dict[str, Any]) -> dict[str, Tensor]:
    """Lists of numbers as float64 tensors; missing gradients are left out."""
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in values.items() if v is not None}


@pytest.mark.parametrize("case", PERTURBATION["cases"], ids=lambda c: c["id"].split(":")[0])
def test_released_perturbation(case: dict[str, Any]) -> None:
    """Displacement in double precision."""
    given, out = case["inputs"], case["outputs"]
    weights, slopes = double(given["params"]), double(given["grads"])
    if given["optimizer"] == "asam":
        eps = asam(weights, slopes, given["rho"], given["eta"])
    else:
        eps = sam(weights, slopes, given["rho"])
    assert set(eps) == set(slopes)
    for name, expected in double(out["eps"]).items():
        found = eps.get(name, torch.zeros_like(expected))
        torch.testing.assert_close(found, expected, rtol=PERTURBATION["rtol"], atol=PERTURBATION["atol"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rule", [sam, asam])
def test_a_gradient_of_zero_displaces_nothing_in_any_precision(rule: Any, dtype: torch.dtype) -> None:
    weights = {"a.weight": torch.ones(3, dtype=dtype), "a.bias": torch.zeros(2, dtype=dtype)}
    for eps in rule(weights, {name: torch.zeros_like(w) for name, w in weights.items()}, 0.1).values():
        assert eps.dtype == dtype and not eps.any()


def test_sure_clients_weigh_nothing_and_all_sure_ones_alike() -> None:
    """1 - tau; 0 / 0 becomes uniform."""
    assert lsaa_weights([1.0, 0.5, 0.5]) == [0.0, 0.5, 0.5]
    assert lsaa_weights([1.0, 1.0, 1.0, 1.0]) == [0.25] * 4


def test_a_client_that_labels_nothing_counts_as_sure() -> None:
    """Whoever was visited before: tau is neither sent nor kept."""
    federation = contract_federation("fl2")
    data, (first, second, *_) = federation.data, federation.visits(0)
    index = data.client(second.client).unlabelled[:9]
    data.clients[second.client] = SiteData(index, true_labels(data)[index], index[:0])
    assert federation.method.names("local") == ["tau"]
    found = [visited(federation, visit)[0].upload for visit in (first, second, first)]
    taus = [float(upload.stats["tau"]) for upload in found if upload is not None]
    assert 0.1 <= taus[0] == taus[2] < taus[1] == 1.0


def test_statistics_of_the_servers_images_alone() -> None:
    """In batches of ten, whoever takes part."""
    data = few_data(4, scenario="server", num_labels=20)
    batches = list(make_method(ServerStatistics).norm_batches(data))
    assert [len(batch) for batch in batches] == [10, 10]
    assert torch.equal(torch.cat(batches), data.server.labelled)
