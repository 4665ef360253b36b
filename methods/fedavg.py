"""FedAvg on labelled data only: the lower bound, or with all clients labelled the upper bound."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from methods.base import Upload
from methods.parts.labelled_clients import LabelledClients
from methods.parts.server import ServerMomentum


class FedAvg(LabelledClients, ServerMomentum):
    """Supervised federated averaging (McMahan et al., AISTATS 2017), weighted by n_i / sum n_i, where n_i are all
    images of a client, labelled or not.

    With ``res_client_alpha`` it is FedAvg+ (CBAFed, Li et al., CVPR 2023, Eqs. 1, 3): every ``res_skip`` rounds the
    global model is mixed with the one after the last mix. With one labelled client and one local epoch per round,
    rounds are that client's epochs. To end on a mix, choose a number of rounds of the form k * ``res_skip`` + 1.

    | hyperparameter | paper (RSCFed tables) | released code | here |
    |---|---|---|---|
    | labelled learning rate | 0.03 | 0.03 | 0.03 |
    | momentum, weight decay, clipping | not given | 0.9, 5e-4, norm 5 | as released |
    | local epochs, batch | 1, 64 | 1, 64 | 1, 64 |
    | momentum buffers | not given | one set per client, never reset | as released (``reset_momentum``) |
    | ``server_momentum`` (see ``ServerMomentum``), ``lr_schedule`` (see ``RoundSchedule``) | - | - | 0, ``constant`` |
    | ``aggregation`` (FedDB, (FL)2: ``uniform``) | - | - | ``size`` |
    | ``res_client_alpha`` of the old weights (CBAFed) | not given | 0.8 | 0: plain FedAvg |
    | ``res_skip`` rounds (CBAFed) | not given | 5 | 5 |
    | ``res_client_reference``, the first one (CBAFed) | after round 0 or before | after round 0 | ``first`` |

    No code was released for the bounds; optimiser and bookkeeping follow the labelled clients' code.

    Args:
        aggregation: clients weigh by their numbers of images n_i (``size``), or all alike (``uniform``).
    """

    scopes = {**ServerMomentum.scopes, **LabelledClients.scopes}

    def __init__(
        self,
        model: nn.Module,
        lr_schedule: Literal["cosine", "constant"] = "constant",
        server_momentum: float = 0.0,
        aggregation: Literal["uniform", "size"] = "size",
        nesterov: bool = False,
        clip_norm: float | None = 5.0,
        local_epochs: int = 1,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Weigh clients by their numbers of images, or with ``aggregation=uniform`` alike."""
        uniform = self.hparams.aggregation == "uniform"
        return super().weights(uploads) if uniform else [upload.weight for upload in uploads]
