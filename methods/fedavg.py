"""FedAvg on labelled data only: the lower bound, and with all clients labelled the upper bound."""

import torch.nn.functional as F
from torch import Tensor

from datamodules.schedule import Roster
from methods.base import Batch, FedMethod


class FedAvg(FedMethod):
    """Supervised federated averaging (McMahan et al., AISTATS 2017), weights n_i over the sum of n_i.

    | hyperparameter | paper (RSCFed tables) | released code | here |
    |---|---|---|---|
    | labelled learning rate | 0.03 | 0.03 | 0.03 |
    | momentum, weight decay, clipping | not given | 0.9, 5e-4, norm 5 | as the code |
    | local epochs, batch | 1, 64 | 1, 64 | 1, 64 |
    | momentum buffers | not given | one set per client, never reset | as the code (``reset_momentum``) |

    No code was released for the bounds themselves: optimiser and bookkeeping are those of the labelled client.
    """

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """The round's participants that hold labels."""
        return [[client for client in roster.sample(round) if client in roster.labelled]]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the labelled batch."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
