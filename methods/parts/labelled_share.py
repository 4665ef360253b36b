"""How much clients with labels weigh in the average."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from methods.base import FedMethod, Upload
from methods.parts.aggregation import read_mode, share_weights


class LabelledShare(FedMethod):
    """Weights of labelled and unlabelled clients, from their numbers of images.

    Args:
        model: the network.
        labelled_weight_mode: ``share:x``: the labelled clients weigh x together, the others 1 - x; ``multiplier:k``:
            an image of a labelled client counts k-fold; ``plain``: all images count alike.
    """

    def __init__(self, model: nn.Module, labelled_weight_mode: str = "share:0.5", **base: Any) -> None:
        super().__init__(model, **base)
        read_mode(labelled_weight_mode)

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Split the weight between labelled and unlabelled clients as ``labelled_weight_mode`` says."""
        sizes, labelled = [u.weight for u in uploads], [u.visit.labelled for u in uploads]
        return share_weights(sizes, labelled, self.hparams.labelled_weight_mode)
