"""RSCFed: consensus weights against the released aggregation, closed forms, schedule and switches."""

from typing import Any

import pytest
import torch

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from federations import make_method
from golden_files import load
from methods.base import Upload, Visit
from methods.parts.aggregation import weighted_mean
from methods.rscfed import tensor_distance

GOLDEN = load("rscfed/dma_aggregation")


def consensus_weights(
    states: list[dict[str, torch.Tensor]], sizes: list[float], labelled: list[bool], **options: Any
) -> list[float]:
    """The weights of a subset after the warm-up."""
    clients = zip(states, sizes, labelled, strict=True)
    uploads = [Upload(Visit(round=7, labelled=has), state, size) for state, size, has in clients]
    return list(make_method("rscfed", **options).weights(uploads))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["name"])
def test_released_aggregation(case: dict[str, Any]) -> None:
    """Distances, weights and the sub-consensus model of every reference case."""
    given, out = case["inputs"], case["outputs"]
    sizes = [float(given["client_sizes_all"][c]) for c in given["clients"]]
    labelled = [c in given["labelled_ids"] for c in given["clients"]]
    options = {
        "labelled_multiplier": given["w_mul_times"],
        "labelled_weight_mode": given["labelled_weight_mode"].removeprefix("released_"),
        "dma_beta_labelled": given["sup_scale"],
        "dma_beta_unlabelled": given["dist_scale"],
    }
    weights = consensus_weights(given["local_states"], sizes, labelled, **options)
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(out["final_weights"]), rtol=1e-5, atol=1e-6)
    model = weighted_mean(given["local_states"], weights)
    for name, value in out["theta_sub"].items():
        torch.testing.assert_close(model[name].float(), value.float(), rtol=1e-5, atol=1e-6)
    distances = [tensor_distance(s, out["theta_avg"]) for s in given["local_states"]]
    torch.testing.assert_close(torch.stack(distances).float(), torch.tensor(out["distances"]), rtol=1e-4, atol=1e-6)


def test_huge_distances_do_not_underflow() -> None:
    """Where every exponential would be zero, the nearest model wins instead of 0 / 0."""
    far = [{"w": torch.full((4,), float(10**k))} for k in range(3)]
    weights = consensus_weights(far, [1.0] * 3, [False] * 3, dma_beta_unlabelled=1e6)
    assert sum(weights) == pytest.approx(1.0)
    assert max(weights) == pytest.approx(1.0)


def test_shares_survive_distances_that_underflow() -> None:
    """However far the labelled client lies from the others, it weighs its share."""
    models = [{"w": torch.full((4,), value)} for value in (0.0, 0.1, 50.0)]
    weights = consensus_weights(models, [500.0, 500.0, 10.0], [False, False, True], labelled_weight_mode="share:0.5")
    assert weights[2] == pytest.approx(0.5)
    assert sum(weights) == pytest.approx(1.0)


def test_the_warmup_averages_by_size() -> None:
    uploads = [Upload(Visit(round=6, labelled=True), {}, size) for size in (40.0, 10.0)]
    assert make_method("rscfed").weights(uploads) == [40.0, 10.0]


def test_a_client_without_images_is_refused() -> None:
    """The exponent divides by the number of images."""
    with pytest.raises(ConfigError, match="divided by the number of images"):
        consensus_weights([{"w": torch.ones(2)}] * 2, [1.0, 0.0], [False] * 2)


def test_distances() -> None:
    """The sum of the norms per tensor, counters included, or the norm of everything at once."""
    a = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "n": torch.tensor(12)}
    b = {name: torch.zeros_like(value) for name, value in a.items()}
    assert tensor_distance(a, b) == 3 + 4 + 12
    assert tensor_distance(a, b, "global_l2") == 13


def test_published_schedule() -> None:
    """The subsets of round 7, as the authors' generator draws them, and how many rounds meet no labels."""
    method = make_method("rscfed")
    roster = Roster(10, (0,), seed=1337)
    assert method.select_clients(6, roster) == [[0]]
    assert method.select_clients(7, roster) == [[9, 8, 5, 4, 6], [2, 5, 6, 8, 9], [4, 6, 3, 8, 5]]
    missing = sum(all(0 not in s for s in method.select_clients(r, roster)) for r in range(7, 1000))
    assert missing == 133
