"""FlexMatch: thresholds against its authors' code, how they move, and a status that stays with its client."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from allclients_visits import Toy, precise
from federations import rounds_until, run_rows, small_contract
from golden_files import load
from methods import flexmatch
from methods.ablations.flexmatch import Forgetful
from methods.client_fixmatch import ClientFixMatch
from methods.flexmatch import FlexMatch, flexible, learning_status

GOLDEN = load("allclients/flexmatch")
COUNTS = [
    case for case in GOLDEN["cases"] if "selected_per_class" in case["inputs"] and case["inputs"]["thresh_warmup"]
]
SEQUENCES = [case for case in GOLDEN["cases"] if "steps" in case["inputs"]]
CLOSE = {"rtol": 0.0, "atol": GOLDEN["tolerance"]}


@pytest.mark.parametrize("case", COUNTS)
def test_released_thresholds(case: dict[str, Any]) -> None:
    """From counts of selected images."""
    given, out = case["inputs"], case["outputs"]
    counts = precise(given["selected_per_class"])
    beta = learning_status(counts, given["unlabelled_images"], torch.zeros_like(counts))
    torch.testing.assert_close(beta, precise(out["classwise_acc"]), **CLOSE)
    torch.testing.assert_close(flexible(given["p_cutoff"], beta), precise(out["thresholds_convex"]), **CLOSE)


@pytest.mark.parametrize("case", SEQUENCES)
def test_released_sequence(case: dict[str, Any]) -> None:
    """Masks, what every image was last surely taken for, and how far the classes are learnt, batch by batch."""
    given = case["inputs"]
    method = client(given["unlabelled_images"], given["classes"], given["p_cutoff"])
    for step, out in zip(given["steps"], case["outputs"], strict=True):
        targets, mask = method.targets({"index": torch.tensor(step["idx"])}, precise(step["logits"]).softmax(dim=1))
        assert mask.tolist() == [bool(m) for m in out["mask"]]
        assert targets.argmax(dim=1).tolist() == precise(step["logits"]).argmax(dim=1).tolist()
        assert method.status.tolist() == out["selected_label"]
        torch.testing.assert_close(method.beta.double(), precise(out["classwise_acc_after"]), **CLOSE)


def client(images: int, classes: int = 3, threshold: float = 0.95) -> FlexMatch:
    """FlexMatch as a client that holds all images."""
    method = FlexMatch(Toy(), num_classes=classes, num_images=images, threshold=threshold)
    method.unlabelled = images
    return method


def sure_of(labels: list[int]) -> Tensor:
    """Probabilities that are sure of these classes."""
    return torch.eye(3)[labels] * 0.97 + 0.01


def test_a_client_with_one_image_is_never_held_to_a_threshold() -> None:
    """Its one entry is always equal to all entries."""
    method = client(1)
    for labels in ([0], [1], [1]):
        assert method.targets({"index": torch.tensor([0])}, sure_of(labels))[1].tolist() == [True]
    assert method.targets({"index": torch.tensor([0])}, torch.full((1, 3), 1 / 3))[1].tolist() == [True]
    assert method.beta.tolist() == [0.0] * 3


def test_the_status_stays_with_its_client_alone() -> None:
    """A client knows of its own images only, and in the next round still does; the ablation forgets."""
    run = small_contract("flexmatch", threshold=0.6)
    usual = rounds_until(run, 1)
    before = {client: state.tensors["status"].clone() for client, state in run.clients.items()}
    for client_id, status in before.items():
        own = run.data.client(client_id).unlabelled
        assert set(torch.nonzero(status >= 0).flatten().tolist()) <= set(own.tolist())
        assert bool((status >= 0).any())
        assert float(run.clients[client_id].tensors["beta"].max()) > 0
    usual += rounds_until(run, 2)
    assert all(bool((run.clients[k].tensors["status"][old >= 0] >= 0).all()) for k, old in before.items())
    forgetful = small_contract(Forgetful, threshold=0.6)
    rows = run_rows(forgetful)
    assert all(not state.tensors for state in forgetful.clients.values())
    assert rows[0] == usual[0] and rows[-1] != usual[-1]


def test_it_begins_open_and_ends_as_fixmatch() -> None:
    """Nothing learnt: all thresholds are 0. All classes learnt alike: all are the one of FixMatch."""
    method = client(6)
    half = torch.full((2, 3), 1 / 3)
    assert method.targets({"index": torch.tensor([0, 1])}, half)[1].tolist() == [True, True]
    method.targets({"index": torch.arange(6)}, sure_of([0, 0, 1, 1, 2, 2]))
    assert flexible(0.95, method.beta).tolist() == pytest.approx([0.95] * 3)
    assert method.targets({"index": torch.tensor([0, 1])}, half)[1].tolist() == [False, False]


def test_thresholds_rise_with_what_is_learnt() -> None:
    """Never above the threshold, and monotone in the number of a class's images."""
    before = torch.zeros(2)
    tops = [flexible(0.95, learning_status(torch.tensor([n, 10.0]), 40, before)) for n in range(11)]
    assert all(float(a[0]) <= float(b[0]) for a, b in pairwise(tops))
    assert float(torch.stack(tops).max()) <= 0.95
    assert learning_status(torch.tensor([0.0, 0.0]), 0, before).tolist() == [0.0, 0.0]


def test_without_learning_status_it_is_fixmatch_with_local_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """All classes count as learnt: bit for bit LPL."""
    monkeypatch.setattr(flexmatch, "flexible", lambda threshold, beta: torch.full_like(beta, threshold))
    lr = FlexMatch.contract_args["lr"]
    runs = [small_contract("flexmatch"), small_contract(ClientFixMatch, pseudo_labels="local", lr=lr)]
    for run in runs:
        run_rows(run)
    assert all(torch.equal(value, runs[1].server[name]) for name, value in runs[0].server.items())
