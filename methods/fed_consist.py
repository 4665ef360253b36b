"""Fed-Consist: mean-teacher consistency on unlabelled clients, a baseline of the RSCFed paper."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from methods.base import Upload
from methods.parts.aggregation import read_mode, share_weights
from methods.parts.mean_teacher import SharpenedTeacher


class FedConsist(SharpenedTeacher):
    """Consistency with an EMA teacher (Yang et al., MedIA 2021, as re-implemented for RSCFed, CVPR 2022, Sec. 4).

    Clients train as in RSCFed (Eqs. 1-4, see ``SharpenedTeacher``): labelled clients with cross-entropy; at unlabelled
    clients the student matches the sharpened prediction of the client's own teacher on another view. All clients take
    part in every round after the warm-up, and labelled clients share half of the weight. The hyperparameters of local
    training are in the tables of ``SharpenedTeacher`` and ``MeanTeacher``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``labelled_weight_mode`` | labelled clients share 50 % | not released | ``share:0.5``; the others by size |
    """

    def __init__(self, model: nn.Module, labelled_weight_mode: str = "share:0.5", **base: Any) -> None:
        super().__init__(model, **base)
        read_mode(labelled_weight_mode)

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Split the weight between labelled and unlabelled clients as ``labelled_weight_mode`` says."""
        sizes, labelled = [u.weight for u in uploads], [u.visit.labelled for u in uploads]
        return share_weights(sizes, labelled, self.hparams.labelled_weight_mode)
