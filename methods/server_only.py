"""Server-only: training on the server's labels without any client."""

import torch.nn.functional as F
from torch import Tensor

from datamodules.partition.roster import Roster
from methods.base import Batch
from methods.parts.server import LabelsAtServer, RoundSchedule


class ServerOnly(LabelsAtServer, RoundSchedule):
    """Only the server's steps of (FL)2 (NeurIPS 2024) and SemiFL: the baseline without communication.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | clients per round | - | - | none |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 | the same | the same |
    | images for the statistics of batch norm | - | - | all, labelled or not, as in the other rows |
    """

    needs_labels = True

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Select no client."""
        return [[]]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
