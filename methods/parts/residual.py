"""Training on labelled clients with a residual weight connection: what FedAvg(+) and CBAFed share."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, Upload
from methods.parts import ops


class LabelledClients(FedMethod, ABC):
    """Cross-entropy on clients that hold labels; a model may be drawn back to an earlier one from time to time.

    Args:
        model: the network.
        res_client_alpha: weight of the old model in a residual connection (CBAFed, Eqs. 1, 3); 0: none.
        res_skip: rounds or epochs between two connections.
        res_client_reference: the first old model is that after the first round or epoch, or the initial one.
    """

    scopes = {"reference": "server"}

    def __init__(
        self,
        model: nn.Module,
        res_client_alpha: float = 0.0,
        res_skip: int = 5,
        res_client_reference: Literal["first", "initial"] = "first",
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require(res_client_alpha=0 <= res_client_alpha <= 1, res_skip=res_skip >= 1)
        self.reference: nn.Module | None = None
        if res_client_alpha:
            self.reference = copy.deepcopy(model).requires_grad_(False)

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """The round's participants that hold labels.

        Raises:
            ConfigError: nobody does.
        """
        if not roster.labelled:
            raise ConfigError("no client holds labels; choose data.scenario=partial_clients, or --method server_only")
        return [[client for client in roster.sample(round) if client in roster.labelled]]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the labelled batch."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average, then connect."""
        super().aggregate(uploads)
        self.connect(uploads[0].visit.round)

    @abstractmethod
    def connect(self, round: int) -> None:
        """The residual connection of the global model after the aggregation of ``round``."""

    def mix(self, reference: nn.Module, index: int) -> None:
        """Draw the model back to ``reference`` after the 0-based round or epoch ``index``, if it is time."""
        h, first = self.hparams, self.hparams["res_client_reference"] == "first"
        ops.residual_connection(reference, self.model, index, h["res_client_alpha"], h["res_skip"], first)
