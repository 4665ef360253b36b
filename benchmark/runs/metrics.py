"""Scores of a classifier on a test set."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_auroc,
    multiclass_precision,
    multiclass_recall,
)

from datamodules.common.errors import NOT_FINITE, DataError, RunError


def pseudo_label_shares(selected: float, correct: float) -> dict[str, float]:
    """What follows from the shares of selected and of correctly selected pseudo-labels ((FL)2, Fig. 3).

    Args:
        selected: selected / all, in [0, 1].
        correct: selected and right / all.

    Returns:
        ``wrong`` / all; ``accuracy`` = correct / selected and ``correct_per_wrong``, left out where they divide by 0.
    """
    wrong = selected - correct
    shares = {"wrong": wrong}
    if selected:
        shares["accuracy"] = correct / selected
    if wrong > 0:
        shares["correct_per_wrong"] = correct / wrong
    return shares


def pseudo_label_classes(selected: Sequence[float], correct: Sequence[float]) -> dict[str, Any]:
    """What follows from those shares by class (as labelled).

    Args:
        selected: images selected under each class / all images, ``[C]``.
        correct: those among them that are right / all images, ``[C]``.

    Returns:
        ``accuracy_by_class`` = correct / selected, ``None`` where nothing was selected, and ``balance``: the entropy of
        the selected classes over log C; 1 for equal shares, 0 for one class alone, left out if nothing was selected.
    """
    accuracy = [round(c / s, 6) if s else None for s, c in zip(selected, correct, strict=True)]
    total = sum(selected)
    entropy = -sum(s / total * log(s / total) for s in selected if s)
    return {"accuracy_by_class": accuracy} | ({"balance": entropy / log(len(selected))} if total else {})


def classification_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, AUC, precision and recall in percent, as the RSCFed tables report them.

    * ``acc``: share of samples whose most probable class is right;
    * ``auc``: exact area under the one-vs-rest ROC curve, unweighted mean over the classes that occur in
      ``labels`` (the others have no such curve); NaN if only one class occurs;
    * ``precision``, ``recall``: unweighted means over the classes that occur in labels or predictions. A
      class that is never predicted has precision 0, one that never occurs has recall 0. So recall is the
      balanced accuracy if every class occurs.

    Args:
        probs: class probabilities [N, C].
        labels: true classes [N], int64, on the same device.

    Raises:
        DataError: shapes that do not fit, no sample, or labels outside 0..C-1.
        RunError: probabilities that are not finite or not in [0, 1].
    """
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
        raise DataError(
            f"metrics: probabilities {list(probs.shape)} and labels {list(labels.shape)} do not fit; "
            "give [N, C] and [N] with N > 0"
        )
    classes = probs.shape[1]
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= classes:
        raise DataError(f"metrics: labels run from {low} to {high}, but the model has {classes} classes")
    if not bool(probs.isfinite().all()):
        raise RunError(f"metrics: a class probability {NOT_FINITE}: the model has diverged; lower the learning rate")
    least, most = (float(bound) for bound in probs.aminmax())
    if least < 0.0 or most > 1.0:
        raise RunError(
            f"metrics: class probabilities run from {least} to {most} instead of 0 to 1; apply a softmax to logits"
        )
    predicted = probs.argmax(dim=1)
    # A curve needs the column of its own class only, so dropping absent classes changes no other curve.
    present, renumbered = torch.unique(labels, return_inverse=True)
    auc = torch.tensor(torch.nan)
    if len(present) > 1:
        auc = multiclass_auroc(probs[:, present], renumbered, len(present), validate_args=False)
    scores = {
        "acc": multiclass_accuracy(predicted, labels, classes, average="micro", validate_args=False),
        "auc": auc,
        "precision": multiclass_precision(predicted, labels, classes, average="macro", validate_args=False),
        "recall": multiclass_recall(predicted, labels, classes, average="macro", validate_args=False),
    }
    return {name: 100.0 * float(score) for name, score in scores.items()}
