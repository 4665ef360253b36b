import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score, roc_auc_score

from benchmark.federation.metrics import class_accuracies, client_accuracies, pseudo_label_metrics, scores
from datamodules.common.errors import RunError
from golden_files import load


@pytest.fixture(autouse=True)
def no_warning_escapes():
    with warnings.catch_warnings(action="error"):
        yield


def oracle(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    p, y = probs.numpy().astype(np.float64), labels.numpy()
    predicted = p.argmax(1)
    aucs = [roc_auc_score(y == c, p[:, c]) for c in np.unique(y)]
    macro = {"average": "macro", "zero_division": 0}
    return {
        "acc": 100 * (predicted == y).mean(),
        "auc": 100 * float(np.mean(aucs)),
        "precision": 100 * precision_score(y, predicted, **macro),
        "recall": 100 * recall_score(y, predicted, labels=np.unique(y), **macro),
    }


def random_case(seed: int, n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    logits = torch.randn(n, classes, generator=g)
    logits[torch.arange(n), labels] += 1.0
    return logits.softmax(1), labels


def test_released_numbers():
    data = load("rscfed/metrics")
    probs, labels = data["inputs"]["probs"], data["inputs"]["labels"]
    found, _ = scores(probs, labels)
    expected = {name: 100 * value for name, value in data["outputs"].items()}
    expected["acc"] = expected.pop("accuracy")
    assert found == pytest.approx(expected, rel=data["tolerance"]["rtol"])
    assert 4 not in probs.argmax(1)


@pytest.mark.parametrize(("n", "classes"), [(700, 2), (2600, 37)])
@pytest.mark.parametrize("ties", [False, True])
def test_agrees_with_scikit_learn(n, classes, ties):
    """Ties count half; a class that is absent but predicted has precision 0, and neither recall nor AUC."""
    probs, labels = random_case(n, n, classes)
    if ties:
        probs = (probs * 8).round() / 8
    if classes > 2:
        labels[labels == 2] = 1
        assert 2 in probs.argmax(1)
    found, confusion = scores(probs, labels)
    assert found == pytest.approx(oracle(probs, labels), abs=1e-3)
    assert confusion.tolist() == confusion_matrix(labels, probs.argmax(1), labels=range(classes)).tolist()


def test_one_class_has_no_auc():
    probs, _ = random_case(5, 50, 3)
    labels = torch.ones(50, dtype=torch.int64)
    found, _ = scores(probs, labels)
    assert math.isnan(found["auc"])
    assert found["acc"] == pytest.approx(100 * float((probs.argmax(1) == 1).float().mean()))


def test_probabilities_that_are_not_finite_are_one_clear_error():
    with pytest.raises(RunError, match="is not finite: the model has diverged"):
        scores(torch.tensor([[0.5, torch.nan]]), torch.tensor([0]))


def test_accuracy_by_class():
    """Of class 2 there is no image, though it is predicted once."""
    found = class_accuracies(torch.tensor([[3, 1, 0], [2, 2, 1], [0, 0, 0]]))
    assert found[:2].tolist() == [75.0, 40.0] and math.isnan(found[2])


def test_clients_weigh_classes_as_their_images_do():
    """Ten clients with one class, ten with the other, one with both alike; the worst tenth of 21 are three."""
    counts = torch.tensor([[4, 0]] * 10 + [[0, 9]] * 10 + [[5, 5]])
    found = client_accuracies(torch.tensor([90.0, 30.0]), counts)
    assert found == pytest.approx({"acc_clients": (900 + 300 + 60) / 21, "acc_worst_clients": 30.0})
    assert [*client_accuracies(torch.tensor([90.0, 30.0]), counts[-1:]).values()] == [60.0, 60.0]
    known = torch.tensor([80.0, torch.nan])  # classes that the test set lacks tell nothing of a client
    assert client_accuracies(known, torch.tensor([[1, 99], [0, 7], [0, 0]]))["acc_clients"] == 80.0
    assert client_accuracies(known, torch.tensor([[0, 7], [0, 0]])) == {}


def shares(selected, correct, suffix=""):
    return pseudo_label_metrics({f"pseudo/selected{suffix}": selected, f"pseudo/correct{suffix}": correct})


def test_pseudo_label_shares():
    assert shares(0.9, 0.6) == pytest.approx(
        {"pseudo/wrong": 0.3, "pseudo/accuracy": 2 / 3, "pseudo/correct_per_wrong": 2.0}
    )
    assert shares(0.5, 0.5) == {"pseudo/wrong": 0.0, "pseudo/accuracy": 1.0}
    assert shares(0.0, 0.0) == {"pseudo/wrong": 0.0}


def test_pseudo_label_classes():
    def classes(selected, correct):
        return list(shares(selected, correct, "_by_class").values())

    assert classes([0.2] * 4, [0.2, 0.1, 0.0, 0.05]) == [[1.0, 0.5, 0.0, 0.25], pytest.approx(1.0)]
    assert classes([0.0, 0.3], [0.0, 0.1]) == [[None, 0.333333], 0.0]
    assert classes([0.5, 0.5, 0.0, 0.0], [0.0] * 4)[1] == pytest.approx(0.5)
    assert classes([0.0, 0.0], [0.0, 0.0]) == [[None, None]]
