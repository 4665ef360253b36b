"""FedAvg on labelled data only: the lower bound, and with all clients labelled the upper bound."""

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.schedule import Roster
from methods import ops
from methods.base import Batch, Upload
from methods.serverside import ServerMomentum


class FedAvg(ServerMomentum):
    """Supervised federated averaging (McMahan et al., AISTATS 2017), weights n_i over the sum of n_i.

    With ``res_client_alpha`` it is FedAvg+ (CBAFed, Li et al., CVPR 2023, Eqs. 1, 3): every ``res_skip`` rounds the
    global model is drawn back to that of the last time. With one labelled client and one local epoch per round, rounds
    are that client's epochs. ``res_skip`` times k, plus one rounds end on a mix.

    | hyperparameter | paper (RSCFed tables) | released code | here |
    |---|---|---|---|
    | labelled learning rate | 0.03 | 0.03 | 0.03 |
    | momentum, weight decay, clipping | not given | 0.9, 5e-4, norm 5 | as the code |
    | local epochs, batch | 1, 64 | 1, 64 | 1, 64 |
    | momentum buffers | not given | one set per client, never reset | as the code (``reset_momentum``) |
    | ``server_momentum``, ``aggregation``, ``lr_schedule`` (FedDB, (FL)2: see ``ServerMomentum``) | - | - | off |
    | ``res_client_alpha`` of the old weights (CBAFed) | not given | 0.8 | 0: plain FedAvg |
    | ``res_skip`` rounds (CBAFed) | not given | 5 | 5 |
    | ``res_client_reference``, the first one (CBAFed) | after round 0 or before | after round 0 | ``first`` |

    No code was released for the bounds themselves: optimiser and bookkeeping are those of the labelled client.
    """

    scopes = {**ServerMomentum.scopes, "reference": "server"}

    def __init__(
        self,
        model: nn.Module,
        res_client_alpha: float = 0.0,
        res_skip: int = 5,
        res_client_reference: Literal["first", "initial"] = "first",
        lr_schedule: Literal["cosine", "constant"] = "constant",
        server_momentum: float = 0.0,
        aggregation: Literal["uniform", "size"] = "size",
        nesterov: bool = False,
        clip_norm: float | None = 5.0,
        local_epochs: int = 1,
        **base: Any,
    ) -> None:
        super().__init__(
            model,
            lr_schedule=lr_schedule,
            server_momentum=server_momentum,
            aggregation=aggregation,
            nesterov=nesterov,
            clip_norm=clip_norm,
            local_epochs=local_epochs,
            **base,
        )
        self.reference: nn.Module | None = None
        if res_client_alpha:
            self.reference = copy.deepcopy(model).requires_grad_(False)

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """The round's participants that hold labels."""
        return [[client for client in roster.sample(round) if client in roster.labelled]]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the labelled batch."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average, then the residual connection."""
        super().aggregate(uploads)
        self.connect(uploads[0].visit.round)

    def connect(self, round: int) -> None:
        """The residual connection over rounds."""
        if self.reference is not None:
            self.mix(self.reference, round)

    def mix(self, reference: nn.Module, index: int) -> None:
        """Draw the model back to ``reference`` after the 0-based round or epoch ``index``, if it is time."""
        h, first = self.hparams, self.hparams["res_client_reference"] == "first"
        ops.residual_connection(reference, self.model, index, h["res_client_alpha"], h["res_skip"], first)
