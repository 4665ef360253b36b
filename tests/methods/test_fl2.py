"""(FL)2: thresholds and perturbation against the released code, the step against its naive form, and its ablations."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.contract.federations import half_trained
from benchmark.federation.fit import Fit
from benchmark.federation.loop import Federation
from benchmark.federation.site import measured
from datamodules.base import SiteData
from datamodules.common.errors import RunError
from datamodules.partition.sites import true_labels
from federations import (
    few_data,
    make_federation,
    make_method,
    rounds_until,
    run_rows,
    site_of,
    sums_of,
    visited,
)
from golden_files import load
from methods import models
from methods.ablations.fl2 import (
    AllSelected,
    AsWritten,
    CATWithSAM,
    CATWithSAMInstead,
    CorrectlyLabelled,
    PlainSAM,
    ServerStatistics,
    WeakTarget,
    sam,
)
from methods.base import Visit
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
    mean = torch.tensor(out["p_tilde"], dtype=torch.float64)
    torch.testing.assert_close(tau * mean / mean.max(), expected, **TOLERANCE)
    for selection, key in (("adaptive", ""), ("fixed", "fixmatch_")):
        labels, keep = make_method("fl2", selection=selection).select(probabilities)
        assert clients[keep].tolist() == out[f"{key}selected_indices"]
        full = torch.full((len(out[f"{key}pseudo_targets_full"]),), -1)
        full[clients[keep]] = labels[keep]
        assert full.tolist() == out[f"{key}pseudo_targets_full"]
    shares = F.one_hot(labels, probabilities.shape[1]).double().mean(dim=0)
    assert shares.tolist() == pytest.approx(out["label_hist"])
    high = probabilities.amax(dim=1) >= 0.95
    full = torch.full((len(out["high_conf_targets_full"]),), -1)
    full[clients[high]] = labels[high]
    assert full.tolist() == out["high_conf_targets_full"]


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


def steps_of(method: FL2, samples: dict[str, Tensor], count: int = 1) -> Iterator[None]:
    """Take so many steps of a visit on one batch, and pause after each."""
    sums_of(method)
    return Fit(method, [], 1).run(lambda epoch: [{"unlabelled": samples}] * count)


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


@pytest.mark.parametrize("w_cs", [1.0, 0.0])
def test_masked_batches_average_over_the_selected(w_cs: float) -> None:
    """Two of eight samples kept: L_a is their mean (Eq. 10), not a quarter of it."""
    method, samples = method_and_batch(8, high=0, cls=AsWritten, w_cs=w_cs, clip_norm=None)
    keep = torch.arange(8) < 2
    wanted = slopes(method, F.cross_entropy(method(samples["strong"][:8])[keep], samples["y"][keep]))
    list(steps_of(method, samples | {"keep": keep}))
    torch.testing.assert_close([p.grad for p in method.model.parameters()], wanted, **EXACT)


@pytest.mark.parametrize("args", [{"high": 0}, {"rho": 0.0}, {"w_cs": 0.0}])
def test_without_confident_samples_perturbation_or_weight_it_is_plain(args: dict[str, Any]) -> None:
    """Nothing is perturbed, nothing is NaN, KL(p || p) has no gradient: that of L_a is left."""
    method, samples = method_and_batch(**args)
    plain = slopes(method, F.cross_entropy(method(samples["strong"]), samples["y"]))
    torch.testing.assert_close(step(method, samples), plain, **EXACT)


@pytest.mark.parametrize("cls", [CATWithSAM, CATWithSAMInstead])
def test_cat_with_sam(cls: type[FL2]) -> None:
    """The gradient of L_p at W* joins that of L_a, or replaces it for the masked samples."""
    method, samples = method_and_batch(cls=cls)
    found = step(method, samples)
    losses = F.cross_entropy(method(samples["strong"]), samples["y"], reduction="none")
    parameters = dict(method.model.named_parameters())
    slope = dict(zip(parameters, slopes(method, losses[:4].mean()), strict=True))
    losses = F.cross_entropy(method(samples["strong"]), samples["y"], reduction="none")
    own = slopes(method, losses.mean() if cls is CATWithSAM else losses[4:].sum() / 6)
    with torch.no_grad():
        for name, value in asam({n: p.clone() for n, p in parameters.items()}, slope, 0.5).items():
            parameters[name] += value
    at_star = F.cross_entropy(method(samples["strong"]), samples["y"], reduction="none")[:4].mean()
    expected = [a + b for a, b in zip(own, slopes(method, at_star), strict=True)]
    torch.testing.assert_close(found, expected, **EXACT)


def test_gradient_at_the_original_weights() -> None:
    """As written: the prediction at W* is the fixed target, the gradient is taken at W, the whole batch counts."""
    method, samples = method_and_batch(cls=AsWritten, lambda_u=0.0)
    found = step(method, samples | {"keep": torch.ones(6, dtype=torch.bool)})
    parameters = dict(method.model.named_parameters())
    losses = F.cross_entropy(method(samples["strong"]), samples["y"], reduction="none")
    slope = dict(zip(parameters, slopes(method, losses[:4].mean()), strict=True))
    twin, _ = method_and_batch()
    with torch.no_grad():
        eps = asam({n: p.detach() for n, p in parameters.items()}, slope, 0.5)
        for name, p in twin.model.named_parameters():
            p += eps[name]
        wanted = twin(samples["strong"]).softmax(dim=1)
    logs = method(samples["strong"]).log_softmax(dim=1)
    expected = slopes(method, F.kl_div(logs, wanted, reduction="batchmean"))
    torch.testing.assert_close(found, expected, **EXACT)


def double(values: dict[str, Any]) -> dict[str, Tensor]:
    """Lists of numbers as float64 tensors; missing gradients are left out."""
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in values.items() if v is not None}


@pytest.mark.parametrize("case", PERTURBATION["cases"], ids=lambda c: c["id"].split(":")[0])
def test_released_perturbation(case: dict[str, Any]) -> None:
    """Displacement, displaced weights and its norm, in double precision."""
    given, out = case["inputs"], case["outputs"]
    weights, slopes = double(given["params"]), double(given["grads"])
    if given["optimizer"] == "asam":
        eps = asam(weights, slopes, given["rho"], given["eta"])
    else:
        eps = sam(weights, slopes, given["rho"])
    assert set(eps) == set(slopes)
    for name, expected in double(out["eps"]).items():
        found = eps.get(name, torch.zeros_like(expected))
        tolerance = {"rtol": PERTURBATION["rtol"], "atol": PERTURBATION["atol"]}
        torch.testing.assert_close(found, expected, **tolerance)
        torch.testing.assert_close(weights[name] + found, double(out["perturbed"])[name], **tolerance)
    norm = torch.cat([e.flatten() for e in eps.values()]).norm()
    assert float(norm) == pytest.approx(out["eps_l2_norm"], rel=1e-7, abs=1e-9)


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


def from_half_trained(method: str | type = "fl2", **args: Any) -> Federation:
    """A round of one epoch each on a few digits, from a network that is sure of some of them."""
    given = {"rounds": 1, "threshold": 0.7, "local_epochs": 1, "server_epochs": 1, "server_pretrain": 1, **args}
    data = few_data(4, scenario="server", num_labels=50, pipeline="randaugment_uniform")
    return make_federation(method, data, weights=half_trained(), **given)


def prepared(method: str | type = "fl2") -> tuple[Any, dict[str, Any], Any]:
    """What client 0 would train on, the data, and what was measured."""
    federation = from_half_trained(method)
    site = site_of(federation)
    return federation.method.visit_streams(site)["unlabelled"], federation.data, measured(site)


class Undeclared(CorrectlyLabelled):
    """Does not say that it sees hidden labels."""

    uses_oracle = False


def test_masks_of_the_consistency_term() -> None:
    """High confidence, everything selected, or the correctly labelled (which only a declared oracle may see)."""
    high, data, _ = prepared()
    everything, *_ = prepared(AllSelected)
    correct, *_ = prepared(CorrectlyLabelled)
    assert 0 < int(high.fields["high"].sum()) < len(high)
    assert bool(everything.fields["high"].all())
    assert torch.equal(correct.fields["high"], true_labels(data)[correct.index] == correct.fields["y"])
    assert 0 < int(correct.fields["high"].sum()) < len(correct)
    assert all(make_method(cls).uses_oracle for cls in (CorrectlyLabelled, CATWithSAM, CATWithSAMInstead))
    assert not any(make_method(cls).uses_oracle for cls in (FL2, AllSelected, PlainSAM, AsWritten))
    with pytest.raises(RunError, match="declared oracle"):
        prepared(Undeclared)


def test_masked_batches_equal_filtered_ones_where_everything_is_selected() -> None:
    """Threshold 0: both ways of batching train on the same samples in the same batches.

    They are of 16 or 2 images, whose mean both round alike.
    """
    args = {"selection": "fixed", "threshold": 0.0, "w_cs": 0.0, "batch_size": 16}
    first, second = (from_half_trained(cls, **args) for cls in (FL2, AsWritten))
    assert [len(client.unlabelled) for client in first.data.clients] == [50] * 4
    assert run_rows(first) == run_rows(second)
    assert all(torch.equal(v, second.server[k]) for k, v in first.server.items())


def test_with_everything_switched_off_it_is_fixmatch() -> None:
    """Fixed threshold, no consistency, uniform weights (first row of Table 2): the same bits as FixMatch."""
    bare = from_half_trained(selection="fixed", w_cs=0.0, aggregation="uniform")
    fixmatch = from_half_trained("fixmatch")
    rows, expected = run_rows(bare), run_rows(fixmatch)
    assert [r["acc"] for r in rows] == [r["acc"] for r in expected]
    assert rows[0]["pseudo/selected"] > 0
    assert all(torch.equal(v, fixmatch.server[k]) for k, v in bare.server.items())


def test_a_client_that_labels_nothing_counts_as_sure() -> None:
    """Whoever was visited before: tau is neither sent nor kept."""
    federation = from_half_trained(server_pretrain=0)
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


def test_two_steps_with_clipping_and_nesterov() -> None:
    """A step clips the sum of both gradients, adds decay, then follows Nesterov momentum (closed form of the sheet)."""
    method, samples = method_and_batch(lr_schedule="constant", clip_norm=0.5)
    twin, _ = method_and_batch()
    method.visit = Visit(rounds=5)
    buffers: list[Tensor] = []
    for number, _ in enumerate(steps_of(method, samples, 2)):
        gradients = released(twin, samples)
        norm = torch.stack([g.norm() for g in gradients]).norm()
        assert float(norm) > 0.5
        weights = [p.detach() for p in twin.model.parameters()]
        total = [0.5 * g / (norm + 1e-6) + 5e-4 * w for g, w in zip(gradients, weights, strict=True)]
        buffers = total if not number else [0.9 * m + g for m, g in zip(buffers, total, strict=True)]
        with torch.no_grad():
            for p, m, g in zip(twin.model.parameters(), buffers, total, strict=True):
                p -= 0.03 * (g + 0.9 * m)
        torch.testing.assert_close(list(method.model.parameters()), list(twin.model.parameters()), **EXACT)
    assert number == 1


def test_a_run_without_perturbation_is_one_without_the_term() -> None:
    """rho = 0 ends where w_cs = 0 does, with confident images; rho = 0.1 does not."""
    ends = []
    for args in ({"w_cs": 0.0}, {"rho": 0.0}, {"rho": 0.1}):
        run = from_half_trained(precision="64-true", aggregation="uniform", **args)
        assert rounds_until(run, 1)[0]["pseudo/selected"] > 0
        ends.append(run.server)
    for name in run.method.names("shared"):
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=1e-7, atol=1e-10)
        assert not torch.allclose(ends[2][name], ends[0][name], rtol=1e-7, atol=1e-10)


def test_without_weights_asam_is_sam() -> None:
    """Parameters that are not called weight are not scaled."""
    weights, slopes = {"bias": torch.tensor([3.0, -4.0])}, {"bias": torch.tensor([0.6, 0.8])}
    torch.testing.assert_close(asam(weights, slopes, 0.1), sam(weights, slopes, 0.1))


def test_each_switch_changes_the_run() -> None:
    """No ablation of Table 2 or Fig. 4, and no alternative of the sheet, is without effect."""

    def weights(cls: type[FL2] = FL2, **args: Any) -> Tensor:
        federation = from_half_trained(cls, **args)
        federation.roster.participants = 2
        federation.run_round(0)
        return torch.cat([v.flatten().double() for k, v in federation.server.items() if k.startswith("model")])

    alternatives: list[dict[str, Any]] = [
        {},
        {"selection": "fixed"},
        {"w_cs": 0.0},
        {"aggregation": "uniform"},
        {"rho": 1.0},
        {"w_cs": 3.0},
        {"dpl": True},
        {"full_batch": True},
        {"cls": AllSelected},
        {"cls": CorrectlyLabelled},
        {"cls": CATWithSAM},
        {"cls": CATWithSAMInstead},
        {"cls": PlainSAM},
        {"cls": AsWritten},
        {"cls": WeakTarget},
    ]
    found = [weights(**args) for args in alternatives]
    for i, first in enumerate(found):
        for j in range(i):
            assert float((first - found[j]).abs().max()) > 1e-7, (alternatives[i], alternatives[j])


def test_clients_send_their_mean_confidence() -> None:
    """LSAA needs one number per client; without it nothing but the model is sent."""
    for rule, names in (("lsaa", {"tau"}), ("uniform", set())):
        federation = from_half_trained(aggregation=rule)
        uploads, _ = federation.run_visits(federation.visits(0)[:2])
        assert [set(u.stats) for u in uploads] == [names] * 2
        if names:
            taus = [float(u.stats["tau"]) for u in uploads]
            weights = federation.method.weights(uploads)
            assert weights == pytest.approx([(1 - t) / sum(1 - u for u in taus) for t in taus])
