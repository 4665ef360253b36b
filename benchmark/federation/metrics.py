"""Metrics of a round: what hooks have logged, and a classifier's scores, overall, by class and by client."""

from collections.abc import Iterable, Mapping
from math import ceil, log
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix, multiclass_precision, multiclass_recall

from datamodules.common.errors import NOT_FINITE, RunError
from methods.parts.engine_state import different_shapes

Sums = dict[str, tuple[Tensor, Tensor]]
"""By name: a weighted sum, and the sum of the weights."""


def pseudo_label_metrics(means: Mapping[str, Any]) -> dict[str, Any]:
    """Derive metrics from the shares of selected and correctly selected pseudo-labels ((FL)2, Fig. 3).

    Args:
        means: may have ``pseudo/selected`` and ``pseudo/correct``, shares of all pseudo-labels in [0, 1], and the same
            by class (as labelled), ``[C]``, as ``..._by_class``.

    Returns:
        under ``pseudo/``: ``wrong`` / all; ``accuracy`` = correct / selected and ``correct_per_wrong``, left out if
        they would divide by 0; ``accuracy_by_class``, ``None`` where nothing was selected; and ``balance``: the entropy
        of the selected classes over log C, 1 for equal shares, 0 for a single class, left out if nothing was selected.
    """
    found: dict[str, Any] = {}
    selected, correct = means.get("pseudo/selected"), means.get("pseudo/correct")
    if selected is not None and correct is not None:
        wrong = found["wrong"] = selected - correct
        if selected:
            found["accuracy"] = correct / selected
        if wrong > 0:
            found["correct_per_wrong"] = correct / wrong
    selected, correct = means.get("pseudo/selected_by_class"), means.get("pseudo/correct_by_class")
    if selected is not None and correct is not None:
        found["accuracy_by_class"] = [round(c / s, 6) if s else None for s, c in zip(selected, correct, strict=True)]
        if total := sum(selected):
            entropy = -sum(s / total * log(s / total) for s in selected if s)
            found["balance"] = entropy / log(len(selected))
    return {f"pseudo/{name}": value for name, value in found.items()}


def sum_logged(parts: Iterable[tuple[str, Sums]]) -> Sums:
    """Logged sums and weights, added in order.

    Args:
        parts: where each was logged, for the message, and what was logged.

    Raises:
        RunError: a value is logged in two shapes.
    """
    total: Sums = {}
    first: dict[str, str] = {}
    for where, sums in parts:
        for name, (value, weight) in sums.items():
            if name not in total:
                total[name], first[name] = (value, weight), where
            elif (before := total[name])[0].shape == value.shape:
                total[name] = before[0] + value, before[1] + weight
            else:
                raise RunError(different_shapes(name, before[0].shape, first[name], value.shape, where))
    return total


def recorded_means(sums: Sums) -> dict[str, Any]:
    """Means for a round's row, fetched from the device in one read, and metrics of pseudo-labels.

    A scalar is a number, a vector (per class) is a list. What is larger, or has no weight, is left out.
    """
    flat = [part.detach().to(torch.float64).flatten() for name in sorted(sums) for part in sums[name]]
    numbers = torch.split(torch.cat(flat).cpu(), [len(part) for part in flat]) if flat else ()
    means: dict[str, Any] = {}
    for name, total, weight in zip(sorted(sums), numbers[::2], numbers[1::2], strict=True):
        by, dimensions = float(weight), sums[name][0].ndim
        if by and dimensions == 0:
            means[name] = float(total) / by
        elif by and dimensions == 1:
            means[name] = [round(value / by, 6) for value in total.tolist()]
    return {**means, **pseudo_label_metrics(means)}


def scores(probs: Tensor, labels: Tensor) -> tuple[dict[str, float], Tensor]:
    """Accuracy, AUC, precision and recall in percent, as reported in RSCFed's tables, and the confusion matrix.

    * ``acc``: share of samples whose most probable class is correct;
    * ``auc``: exact area under the one-vs-rest ROC curve, unweighted mean over the classes that occur in
      ``labels`` (others have no such curve); NaN if only one class occurs;
    * ``precision``: unweighted mean over the classes that occur in labels or predictions; a class that is never
      predicted has precision 0;
    * ``recall``: unweighted mean over the classes that occur in ``labels``, the balanced accuracy.

    Args:
        probs: class probabilities [N, C].
        labels: true classes [N], int64.

    Returns:
        the metrics, and the samples by true class (rows) and most probable class (columns), int64 ``[C, C]``.

    Raises:
        RunError: probabilities are not finite or not in [0, 1].
    """
    probs, labels = probs.cpu(), labels.cpu()
    if not bool(probs.isfinite().all()):
        raise RunError(f"metrics: a class probability {NOT_FINITE}: the model has diverged; lower the learning rate")
    least, most = (float(bound) for bound in probs.aminmax())
    if least < 0.0 or most > 1.0:
        raise RunError(
            f"metrics: class probabilities run from {least} to {most} instead of 0 to 1; apply a softmax to logits"
        )
    classes = probs.shape[1]
    predicted = probs.argmax(dim=1)
    confusion = multiclass_confusion_matrix(predicted, labels, classes, validate_args=False)
    present = confusion.sum(dim=1) > 0
    recalls = multiclass_recall(predicted, labels, classes, average="none", validate_args=False)[present]
    metrics = {
        "acc": confusion.diagonal().sum() / len(labels),
        "auc": _auc(probs, labels),
        "precision": multiclass_precision(predicted, labels, classes, validate_args=False),
        "recall": (recalls / present.sum()).sum(),
    }
    return {name: 100.0 * float(value) for name, value in metrics.items()}, confusion


def class_accuracies(confusion: Tensor) -> Tensor:
    """Compute the accuracy on each class in percent, float64 [C]; NaN for a class without samples.

    Args:
        confusion: see ``scores``.
    """
    return 100.0 * confusion.diagonal().double() / confusion.sum(dim=1)


def client_accuracies(by_class: Tensor, counts: Tensor) -> dict[str, float]:
    """Convert accuracies by class to accuracies of clients with other class shares than the test set, in percent.

    A client's accuracy weights the classes by its own images: the expected accuracy of the global model on test images
    with the client's class shares, as in FedRoD (Chen and Chao, ICLR 2022). Classes that are not in the test set are
    left out, and so are clients that have no others.

    Args:
        by_class: ``class_accuracies``, [C].
        counts: images per client and class, labelled or not, [K, C].

    Returns:
        ``acc_clients``: mean over the clients; ``acc_worst_clients``: mean over the worst tenth (at least one), as in
        q-FFL (Li et al., ICLR 2020). Empty if no client is left.
    """
    known = by_class.isfinite()
    held = counts[:, known].double()
    held = held[held.sum(dim=1) > 0]
    if not len(held):
        return {}
    accuracies = ((held * by_class[known]).sum(dim=1) / held.sum(dim=1)).sort().values
    worst = accuracies[: ceil(len(accuracies) / 10)]
    return {"acc_clients": float(accuracies.mean()), "acc_worst_clients": float(worst.mean())}


def _auc(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean over the classes in ``labels`` of the area under the one-vs-rest ROC curve, 0-dim.

    The area is the share of pairs of a positive and a negative sample in which the positive one is more probable, where
    ties count half (Mann and Whitney, 1947). Pairs are counted in whole numbers.
    """
    areas = []
    for label in torch.unique(labels).tolist():
        column, positive = probs[:, label], labels == label
        above, below = column[positive], torch.from_numpy(np.sort(column[~positive].numpy()))
        if not len(below):
            return torch.tensor(torch.nan)
        won = torch.searchsorted(below, above).sum() + torch.searchsorted(below, above, right=True).sum()
        areas.append(won.double() / (2 * len(above) * len(below)))
    return torch.stack(areas).mean()
