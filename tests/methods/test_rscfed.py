"""RSCFed: consensus weights against the released aggregation, closed forms, schedule and switches."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from federations import few_data, few_in, make_federation, make_method, rounds_until, small_contract
from golden_files import load
from host_reads import count_host_reads
from methods.base import Upload, Visit
from methods.parts.aggregation import weighted_mean
from methods.rscfed import RSCFed, consensus_weights, tensor_distance


def normalised(**given: Any) -> RSCFed:
    """The method on a network with running statistics, after its warm-up."""
    torch.manual_seed(0)
    return RSCFed(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), warmup_rounds=0, **given)


def two_subsets(method: RSCFed) -> list[Upload]:
    """Uploads of clients 0, 1, 2 and 2, 3: models of their own, of which only client 0's has labels."""
    uploads = []
    for place, (cohort, client) in enumerate([(0, 0), (0, 1), (0, 2), (1, 2), (1, 3)]):
        generator = torch.Generator().manual_seed(place)
        moved = {
            k: v + (0.1 * torch.randn(v.shape, generator=generator) if v.is_floating_point() else place)
            for k, v in method.tensors("shared").items()
        }
        size = 1000 * (client + 1)
        visit = Visit(client=client, cohort=cohort, labelled=client == 0, size=size)
        uploads.append(Upload(visit, moved, float(size)))
    return uploads


GOLDEN = load("rscfed/dma_aggregation")


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["name"])
def test_released_aggregation(case: dict[str, Any]) -> None:
    """Distances, weights and the sub-consensus model of every reference case."""
    given, out = case["inputs"], case["outputs"]
    sizes = [float(given["client_sizes_all"][c]) for c in given["clients"]]
    labelled = [c in given["labelled_ids"] for c in given["clients"]]
    beta = given["sup_scale"] if any(labelled) else given["dist_scale"]
    weights = consensus_weights(
        given["local_states"],
        sizes,
        labelled,
        beta,
        given["w_mul_times"],
        given["labelled_weight_mode"].removeprefix("released_"),
    )
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(out["final_weights"]), rtol=1e-5, atol=1e-6)
    model = weighted_mean(given["local_states"], weights)
    for name, value in out["theta_sub"].items():
        torch.testing.assert_close(model[name].float(), value.float(), rtol=1e-5, atol=1e-6)
    distances = [tensor_distance(s, out["theta_avg"]) for s in given["local_states"]]
    torch.testing.assert_close(torch.stack(distances).float(), torch.tensor(out["distances"]), rtol=1e-4, atol=1e-6)


def states(count: int = 5, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Random models of two tensors."""
    g = torch.Generator().manual_seed(seed)
    return [{"w": torch.randn(3, 4, generator=g), "b": torch.randn(3, generator=g)} for _ in range(count)]


def test_one_subset_of_everybody_without_distance_is_fed_consist() -> None:
    """M = 1, K = N, beta = 0, multiplier 1: Fed-Consist weighted by sizes, teachers and all; M = 2 is another model."""
    sole = {"subset_size": 4, "dma": False, "labelled_multiplier": 1.0}
    baseline = small_contract("fed_consist", rounds=3, precision="64-true", labelled_weight_mode="plain")
    one, two = (small_contract("rscfed", rounds=3, precision="64-true", subsets=m, **sole) for m in (1, 2))
    for run in (baseline, one, two):
        rounds_until(run, 3)
    unlabelled = baseline.roster.unlabelled[0]
    for name, value in baseline.server.items():
        torch.testing.assert_close(one.server[name], value, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(two.server[name], value, rtol=1e-9, atol=1e-12)
    for name, value in baseline.clients[unlabelled].tensors.items():
        torch.testing.assert_close(one.clients[unlabelled].tensors[name], value, rtol=1e-9, atol=1e-12)


def test_huge_distances_do_not_underflow() -> None:
    """Where every exponential would be zero, the nearest model wins instead of 0 / 0."""
    far = [{"w": torch.full((4,), float(10**k))} for k in range(3)]
    weights = consensus_weights(far, [1.0] * 3, [False] * 3, 1e6)
    assert sum(weights) == pytest.approx(1.0)
    assert max(weights) == pytest.approx(1.0)


def test_shares_survive_distances_that_underflow() -> None:
    """However far the labelled client lies from the others, it weighs its share."""
    models = [{"w": torch.full((4,), value)} for value in (0.0, 0.1, 50.0)]
    weights = consensus_weights(models, [500.0, 500.0, 10.0], [False, False, True], 100.0, mode="share:0.5")
    assert weights[2] == pytest.approx(0.5)
    assert sum(weights) == pytest.approx(1.0)


def test_the_warmup_averages_by_size() -> None:
    """With several labelled clients and a huge beta, warm-up rounds are those of FedAvg."""
    data = few_data(4, labelled=3)
    ours = make_federation("rscfed", data=data, rounds=2, warmup_rounds=2, subset_size=2, dma_beta_labelled=1e4)
    plain = make_federation("fed_consist", data=data, rounds=2, warmup_rounds=2, labelled_weight_mode="plain")
    for federation in (ours, plain):
        federation.run_round(0)
        federation.run_round(1)
    model = {name: value for name, value in plain.server.items() if name.startswith("model.")}
    assert all(torch.equal(ours.server[name], value) for name, value in model.items())


def test_a_client_without_images_is_refused() -> None:
    """The exponent divides by the number of images."""
    with pytest.raises(ConfigError, match="divided by the number of images"):
        consensus_weights(states(), [1.0, 0.0, 1.0, 1.0, 1.0], [False] * 5, 1.0)


def test_distances() -> None:
    """The sum of the norms per tensor, counters included, or the norm of everything at once; float64, symmetric."""
    a = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "n": torch.tensor(12)}
    b = {name: torch.zeros_like(value) for name, value in a.items()}
    assert tensor_distance(a, b) == 3 + 4 + 12
    assert tensor_distance(a, b, "global_l2") == 13
    assert tensor_distance(a, b) == tensor_distance(b, a)
    assert tensor_distance(a, a) == 0
    assert tensor_distance(a, b).dtype == torch.float64
    with count_host_reads() as reads:
        tensor_distance(a, b)
    assert not reads


def test_published_schedule() -> None:
    """The subsets of rounds 7 to 9, as the authors' generator draws them."""
    method = make_method("rscfed")
    roster = Roster(10, (0,), seed=1337)
    assert method.select_clients(6, roster) == [[0]]
    assert method.select_clients(7, roster) == [[9, 8, 5, 4, 6], [2, 5, 6, 8, 9], [4, 6, 3, 8, 5]]
    assert method.select_clients(8, roster) == [[5, 1, 6, 7, 9], [6, 1, 5, 3, 9], [4, 0, 5, 9, 8]]
    assert method.select_clients(9, roster) == [[7, 3, 2, 6, 9], [9, 7, 4, 6, 1], [8, 1, 0, 7, 3]]
    missing = sum(all(0 not in s for s in method.select_clients(r, roster)) for r in range(7, 1000))
    assert missing == 133


def test_a_client_drawn_twice_keeps_its_momentum_and_teacher() -> None:
    """The second visit of a round starts from the same global model but from the first visit's own state."""
    federation = make_federation("rscfed", few_in("partial_clients"), rounds=3, warmup_rounds=0, subset_size=4)
    federation.run_round(0)
    unlabelled = federation.roster.unlabelled[0]
    steps = -(-federation.data.client(unlabelled).size // 64)
    assert int(federation.clients[unlabelled].tensors["teacher_step"]) == 3 * steps


@pytest.mark.parametrize("mode", ["once", "squared", "share:0.5"])
def test_weights_are_those_of_equation_6(mode: str) -> None:
    """N_i a_i exp(-beta d_i / N_i), written out, where no exponential is small; the shift cancels."""
    models, sizes, held, beta, factor = (
        states(),
        [10.0, 20.0, 30.0, 40.0, 50.0],
        [True, False, False, True, False],
        2.0,
        6.0,
    )
    prior = [n * factor if has and mode == "squared" else n for n, has in zip(sizes, held, strict=True)]
    average = weighted_mean(models, prior)
    raw = []
    for model, n, p, has in zip(models, sizes, prior, held, strict=True):
        scaled = p * math.exp(-beta * float(tensor_distance(model, average)) / n)
        raw.append(scaled * factor if has and not mode.startswith("share") else scaled)
    if mode.startswith("share"):
        kinds = {kind: sum(w for w, has in zip(raw, held, strict=True) if has == kind) for kind in (True, False)}
        raw = [0.5 * w / kinds[has] for w, has in zip(raw, held, strict=True)]
    weights = consensus_weights(models, sizes, held, beta, factor, mode)
    assert weights == pytest.approx([w / sum(raw) for w in raw], rel=1e-12)


def test_ablation_without_dma_weighs_by_size_and_multiplier() -> None:
    """dma = false: global model = mean over subsets of size-weighted means with the multiplier kept."""
    method, roster = make_method("rscfed", dma=False, warmup_rounds=0, subsets=2), Roster(10, (0,), seed=3)
    drawn = method.select_clients(0, roster)
    name = method.names("shared")[0]
    uploads, expected = [], 0.0
    for m, subset in enumerate(drawn):
        total = weighted = 0.0
        for c in sorted(subset):
            visit = Visit(client=c, cohort=m, labelled=c == 0, size=100 + c)
            tensors = {k: torch.full_like(v, float(c)) for k, v in method.tensors("shared").items()}
            uploads.append(Upload(visit, tensors, weight=100.0 + c))
            factor = (100.0 + c) * (6.0 if c == 0 else 1.0)
            total, weighted = total + factor, weighted + factor * c
        expected += weighted / total / 2
    method.aggregate(sorted(uploads, key=lambda u: (u.visit.client, u.visit.cohort)))
    assert float(method.state_dict()[name].flatten()[0]) == pytest.approx(expected, rel=1e-6)


def test_the_global_model_is_the_mean_of_the_sub_consensus_models() -> None:
    """Eqs. 5 to 7 with the released numbers: 100 where a subset has labels, 10 000 where it has none, factor 6."""
    method = normalised()
    uploads = two_subsets(method)
    models, sizes = [u.tensors for u in uploads], [u.weight for u in uploads]
    first = consensus_weights(models[:3], sizes[:3], [True, False, False], 100.0, 6.0, "once", "sum_tensor")
    second = consensus_weights(models[3:], sizes[3:], [False, False], 10_000.0, 6.0, "once", "sum_tensor")
    assert min(first) > 0.01 and max(second) > 0.9  # the distances do matter, and differently
    method.aggregate(uploads)
    parts = weighted_mean(models[:3], first), weighted_mean(models[3:], second)
    for name, value in method.tensors("shared").items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (parts[0][name] + parts[1][name]) / 2)
