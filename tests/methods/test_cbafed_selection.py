"""Class-balanced selection: the released functions' numbers, closed forms, and what the sheet works out by hand."""

from typing import Any

import pytest
import torch

from golden_files import load
from methods.cbafed import (
    assign,
    balanced_thresholds,
    class_share,
    storage_order,
    tail_classes,
)

THRESHOLDS, SELECTION = load("cbafed/threshold_from_counts"), load("cbafed/pseudo_label_tail_selection")
SVHN = torch.tensor([15.0, 292, 986, 116, 63, 1285, 1352, 1438, 807, 267])


@pytest.mark.parametrize("case", THRESHOLDS["cases"], ids=lambda c: c["name"])
def test_released_thresholds(case: dict[str, Any]) -> None:
    """Scaled shares, their spread, thresholds and tail classes of every reference case."""
    given, out = case["inputs"], case["outputs"]
    if given["kind"] == "round":
        counts = torch.tensor(given["labelled_counts"]).float() + torch.tensor(given["unlabelled_counts"])
    else:
        counts = torch.tensor(given["counts"]).float()
    share = class_share(counts)
    assert torch.equal(share, torch.tensor(out["p_tilde"]))
    assert float(share.std()) == pytest.approx(out["std"], abs=1e-9)
    found = balanced_thresholds(counts, given["tau"], given["tau_h"])
    assert torch.equal(found, torch.tensor(out["thresholds"]))
    tail = tail_classes(counts, beta=10 * given["tail_cut"])
    assert tail.nonzero()[:, 0].tolist() == out["tail_classes"]


@pytest.mark.parametrize("classes", [5, 10, 20])
def test_a_class_at_the_border_is_no_tail(classes: int) -> None:
    """Exactly 0.3 / C of the images is not less than that."""
    counts = torch.full((classes,), 970 / (classes - 1))
    counts[0] = 1000 * 0.3 / classes
    counts[1] += 1000 - counts.sum()
    assert not tail_classes(counts).any()
    counts[0] -= 1
    assert tail_classes(counts).nonzero()[:, 0].tolist() == [0]


def test_thresholds_do_not_depend_on_the_unit_of_the_counts() -> None:
    """Ten times the counts: the same shares."""
    torch.testing.assert_close(balanced_thresholds(SVHN), balanced_thresholds(10 * SVHN))


@pytest.mark.parametrize(("classes", "literal"), [(10, 0.3), (100, 0.03), (7, 3 / 7)])
def test_tail_rules_agree_for_ten_classes_only(classes: int, literal: float) -> None:
    """Relative to 1 / C, the cut is 0.3 as released; read literally it is 3 / C: less for 100 classes, more for 7."""
    for rule, limit in (("share", 0.3), ("paper_scaled", literal)):
        for factor, rare in ((0.99, True), (1.01, False)):
            fraction = factor * limit / classes
            counts = torch.ones(classes, dtype=torch.float64)
            counts[0] = (classes - 1) * fraction / (1 - fraction)
            assert tail_classes(counts, 0.3, rule).tolist() == [rare] + [False] * (classes - 1)


@pytest.mark.parametrize("case", SELECTION["cases"], ids=lambda c: c["name"])
def test_released_selection(case: dict[str, Any]) -> None:
    """Kept samples, their labels, their order and the counts of every reference case."""
    given, out = case["inputs"], case["outputs"]
    probabilities = torch.tensor(given["logits"]).softmax(dim=1)
    torch.testing.assert_close(probabilities, torch.tensor(out["probabilities"]), rtol=0, atol=1e-6)
    classes = probabilities.shape[1]
    tail = torch.zeros(classes, dtype=torch.bool)
    tail[given["tail_classes"]] = True
    labels, confident, rescued = assign(probabilities, torch.tensor(given["thresholds"]), tail)
    size = given["batch_size"]
    kept = storage_order(confident, rescued, size)
    ours = [[i, int(labels[i])] for i in kept.tolist()]
    batches = [ours[a : a + size] for a in range(0, len(ours), size)]
    assert [b for b in batches if len(b) > 1] == out["train_batches_index_label"]
    assert len(kept) == out["num_train"]
    assert torch.bincount(labels[kept], minlength=classes).tolist() == out["class_counts"]


def test_the_second_class_is_tested_whatever_the_first_is() -> None:
    """A rare first class rescues nobody, a rare second class does, and only what is not confident."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.95, 0.04, 0.01], [0.2, 0.3, 0.5]])
    labels, confident, rescued = assign(p, torch.full((3,), 0.9), torch.tensor([False, True, False]))
    assert confident.tolist() == [False, False, True, False]
    assert rescued.tolist() == [True, False, False, True]
    assert labels.tolist() == [1, 1, 0, 1]


def test_worked_example() -> None:
    """The start of SVHN as the sheet prints it."""
    wanted = torch.tensor([0.7556, 0.7975, 0.9, 0.7709, 0.7629, 0.9, 0.9, 0.9, 0.8753, 0.7937])
    torch.testing.assert_close(balanced_thresholds(SVHN, 0.84, 0.9), wanted, rtol=0, atol=5e-5)
    assert float(class_share(SVHN).std()) == pytest.approx(0.0866, abs=5e-5)
    assert tail_classes(SVHN).nonzero()[:, 0].tolist() == [0, 3, 4]
