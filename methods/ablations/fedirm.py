"""Variants of FedIRM."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from methods.fedirm import FedIRM, relation_matrix
from methods.parts.tensors import wide


class SmoothedTwoViews(FedIRM):
    """Labelled clients learn from two views with smoothed labels, as in FedIRM's released code.

    RSCFed's authors, whose tables this suite follows, do not say what theirs used; the other rows have one view.
    """

    views = {**FedIRM.views, "labelled": {"x": "weak", "x2": "weak"}}

    def labelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of both views' cross-entropies; the relation matrix is the first view's."""
        logits = wide(self(samples["x"]))
        self.tally("relation", relation_matrix(logits.detach(), samples["y"]))
        first = F.cross_entropy(logits, samples["y"], label_smoothing=0.1)
        return first + F.cross_entropy(self(samples["x2"]), samples["y"], label_smoothing=0.1)
