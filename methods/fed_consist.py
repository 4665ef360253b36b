"""Fed-Consist: mean-teacher consistency on unlabelled clients, a baseline of the RSCFed paper."""

from methods.parts.labelled_clients import LabelledShare
from methods.parts.mean_teacher import SharpenedTeacher


class FedConsist(LabelledShare, SharpenedTeacher):
    """Consistency with an EMA teacher (Yang et al., MedIA 2021, as re-implemented for RSCFed, CVPR 2022, Sec. 4).

    Clients train as in RSCFed (Eqs. 1-4, see ``SharpenedTeacher``): labelled clients with cross-entropy; at unlabelled
    clients the student matches the sharpened prediction of the client's own teacher on another view. All clients take
    part in every round after the warm-up, and labelled clients share half of the weight. The hyperparameters of local
    training are in the tables of ``SharpenedTeacher`` and ``MeanTeacher``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``labelled_weight_mode`` | labelled clients share 50 % | not released | ``share:0.5``; the others by size |
    """
