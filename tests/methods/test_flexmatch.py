"""FlexMatch: thresholds against its authors' code, how they move, and a status that stays with its client."""

from typing import Any

import pytest
import torch

from allclients_visits import Toy, precise
from federations import rounds_until, run_rows, small_contract
from golden_files import load
from methods.ablations.flexmatch import Forgetful
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
