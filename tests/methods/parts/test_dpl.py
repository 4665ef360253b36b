"""Debiased pseudo-labels against the released functions, the sheet's example and degenerate clients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark.federation.reference import LocalSite, RunContext
from federations import FewDigits, make_method
from golden_files import load
from methods.base import Visit
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


def test_example_of_the_sheet() -> None:
    """(0.6, 0.3, 0.1) over (0.5, 0.3, 0.2) becomes (0.444, 0.370, 0.185)."""
    row, prior = torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([0.5, 0.3, 0.2])
    torch.testing.assert_close(row / prior, torch.tensor([[1.2, 1.0, 0.5]]))
    torch.testing.assert_close(debias(row, prior=prior), torch.tensor([[12.0, 10.0, 5.0]]) / 27)


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


def test_eps_leaves_ordinary_clients_alone() -> None:
    """Where no average is that small, eps changes no bit."""
    for case in DPL["cases"]:
        if min(case["outputs"]["app_u"]) > 1e-12:
            assert torch.equal(debias(given(case), eps=1e-12), debias(given(case)))


@pytest.mark.parametrize("case", MOMENTUM["cases"], ids=range(len(MOMENTUM["cases"])))
def test_released_momentum(case: dict[str, Any]) -> None:
    """The APP-U after each epoch of the released client."""
    value = torch.tensor(case["inputs"]["app_u_start"])
    assert len(case["inputs"]["epoch_means"]) == len(case["outputs"]["app_u_after_each_epoch"]) == 5
    for mean, after in zip(case["inputs"]["epoch_means"], case["outputs"]["app_u_after_each_epoch"], strict=True):
        value = app_u_momentum(value, torch.tensor(mean), case["inputs"]["gamma"])
        torch.testing.assert_close(value, torch.tensor(after), rtol=0, atol=MOMENTUM["tolerance"])


def test_momentum_of_the_sheet() -> None:
    """Five means of (0.2, 0.8) from (0.6, 0.4) end at 0.2 + 0.4 / 32."""
    value = torch.tensor([0.6, 0.4])
    for _ in range(5):
        value = app_u_momentum(value, torch.tensor([0.2, 0.8]))
    torch.testing.assert_close(value, torch.tensor([0.2125, 0.7875]))


# --- the rule in other methods


def client_streams(name: str, dpl: bool, probabilities: Tensor) -> Any:
    """What a client with these predictions trains on."""
    method = make_method(name, threshold=0.6, dpl=dpl, full_batch=True)
    data = FewDigits(scenario="all_clients", num_clients=2, partition="iid", num_labels=50)
    data.setup()
    context = RunContext(data, seed=0, rounds=1)
    site = LocalSite(method, context, data.client(0), Visit(), [])
    method.probabilities = lambda client, index: probabilities[: len(index)]
    return site, method.local_work(site)[0].streams


def biased(rows: int = 100) -> Tensor:
    """Predictions that favour class 0."""
    logits = 3.0 * torch.randn(rows, 10, generator=torch.Generator().manual_seed(0))
    logits[:, 0] += 3.0
    return logits.softmax(dim=1)


@pytest.mark.parametrize("name", ["fixmatch", "semifl", "feddb"])
@pytest.mark.parametrize("dpl", [False, True])
def test_confidence_and_labels_use_the_debiased_row(name: str, dpl: bool) -> None:
    """Both the threshold and the arg max look at the debiased rows, or both at the raw ones."""
    p = biased()
    site, streams = client_streams(name, dpl, p)
    rows = p[: len(site.data.unlabelled)]
    confidence, labels = (debias(rows) if dpl else rows).max(dim=1)
    keep = confidence >= 0.6
    assert 0 < int(keep.sum()) < len(keep)
    assert torch.equal(streams["unlabelled"].index, site.data.unlabelled[keep])
    assert torch.equal(streams["unlabelled"].fields["y"], labels[keep])
    assert streams["unlabelled"].batch_size == int(keep.sum())


def test_mix_labels_of_unconfident_images_are_debiased_too() -> None:
    """SemiFL-FedDPL: the labels of all mix partners, confident or not, come from the debiased rows."""
    p = biased()
    site, streams = client_streams("semifl", True, p)
    mix, position = streams["mix"], {int(i): k for k, i in enumerate(site.data.unlabelled)}
    rows = torch.tensor([position[int(i)] for i in mix.index])
    labels = debias(p[: len(site.data.unlabelled)]).argmax(dim=1)
    assert torch.equal(mix.fields["y"], labels[rows])
    assert len(mix) == len(streams["unlabelled"])
    assert not torch.equal(mix.fields["y"], p.argmax(dim=1)[rows])


def test_nothing_is_confident_where_a_class_never_occurs() -> None:
    """NaN rows select no image: the client trains on its labels, and no NaN reaches a loss."""
    p = biased()
    p[:, 3] = 0.0
    for name in ("fixmatch", "semifl", "feddb"):
        site, streams = client_streams(name, True, p)
        assert len(streams["unlabelled"]) == 0 and "mix" not in streams
        assert len(streams["labelled"]) == len(site.data.labelled)
    every_step = make_method("fedrgd", dpl=True)
    assert bool(every_step.debiased(p).isnan().all())
    assert not bool(every_step.select(every_step.debiased(p))[1].any())
