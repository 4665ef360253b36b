"""FlexMatch: thresholds against its authors' code, and how they move."""

from typing import Any

import pytest
import torch

from allclients_visits import Toy, precise
from golden_files import load
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
    images = given["unlabelled_images"]
    method = FlexMatch(Toy(), num_classes=given["classes"], num_images=images, threshold=given["p_cutoff"])
    method.unlabelled = images
    for step, out in zip(given["steps"], case["outputs"], strict=True):
        targets, mask = method.targets({"index": torch.tensor(step["idx"])}, precise(step["logits"]).softmax(dim=1))
        assert mask.tolist() == [bool(m) for m in out["mask"]]
        assert targets.argmax(dim=1).tolist() == precise(step["logits"]).argmax(dim=1).tolist()
        assert method.status.tolist() == out["selected_label"]
        torch.testing.assert_close(method.beta.double(), precise(out["classwise_acc_after"]), **CLOSE)
