"""FedRGD: every group of clients keeps its own model; one bridging client per group links them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from datamodules.partition.roster import Roster
from methods.base import Upload, Visit
from methods.fixmatch import FixMatch
from methods.parts.aggregation import weighted_mean


class FedRGD(FixMatch):
    """Grouping-based averaging (Zhang et al., IEEE Big Data 2021) on the FixMatch loss, as a baseline of FedDB.

    The round's participants form ``num_groups`` random groups of equal size. A group's model is the mean over its
    clients (without a server model); the global model is the mean of the group models. With ``group_state="slots"`` the
    first client of a group starts the next round from the global model, the others from the group's model: models
    belong to group slots, not to clients. Evaluation uses the global model.

    The network should use group normalisation (``norm=group``, ``groups`` 32, at most one group per channel).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``num_groups`` | 2 (10 to 20 clients), 5 (47) | 2 (10), 3 (30) | 2 |
    | ``group_state`` | each user continues from its group | slots, two bridges | ``slots`` (SemiFL's: ``global``) |
    | when labels are made | every step | every step | every step |
    | ``unsup_norm`` | all images | all images | ``confident``, as in FedDB's other rows |
    | ``threshold`` | 0.95 | 0.95 | 0.95 |
    | ``server_momentum`` | none | none | 0; applies to the global model only |
    | ``full_batch``, ``local_epochs``, rates | mini-batches, own schedule | mini-batches | as in FedDB |

    Args:
        model: the network.
        num_groups: number of groups.
        group_state: ``slots``: each group keeps its model; ``global``: all clients start from the global model.
        unsup_norm: the unlabelled loss is a mean over the ``confident`` images of the batch, or over ``all``.
        full_batch: see ``FixMatch``.
        server_momentum: see ``ServerMomentum``.
    """

    scenario = "all_clients"
    eval_batch = 250
    every_step = True
    scopes = {**FixMatch.scopes, "slots": "server"}

    def __init__(
        self,
        model: nn.Module,
        num_groups: int = 2,
        group_state: Literal["slots", "global"] = "slots",
        unsup_norm: Literal["confident", "all"] = "confident",
        full_batch: bool = True,
        server_momentum: float = 0.0,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        count = self.hparams.num_groups if self.hparams.group_state == "slots" else 0
        self.slots = nn.ModuleList(copy.deepcopy(model).requires_grad_(False) for _ in range(count))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Return one cohort per group; the first client of each is its bridge."""
        clients, num_groups = roster.shuffled(round), self.hparams.num_groups
        self.groups = [clients[group::num_groups] for group in range(num_groups)]
        return self.groups

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send the global model to bridges, the group's model to all others."""
        is_bridge = visit.client == self.groups[visit.cohort][0]
        if is_bridge or not len(self.slots):
            return super().broadcast(server, visit)
        return {name: server[slot_name] for name, slot_name in self.in_slot(visit.cohort).items()}

    def in_slot(self, group: int) -> dict[str, str]:
        """Names of slot ``group``'s tensors, by their name in the global model."""
        names = [name for name in self.names("shared") if name.startswith("model.")]
        return {name: name.replace("model", f"slots.{group}", 1) for name in names}

    def mean_loss(self, losses: Tensor, keep: Tensor) -> Tensor:
        """See ``unsup_norm``."""
        return super().mean_loss(losses, keep) if self.hparams.unsup_norm == "confident" else (losses * keep).mean()

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Compute each group's mean and the mean of these; a group without uploads keeps its slot."""
        means: dict[int, dict[str, Tensor]] = {}
        for group in sorted({upload.visit.cohort for upload in uploads}):
            members = [upload for upload in uploads if upload.visit.cohort == group]
            means[group] = weighted_mean([upload.tensors for upload in members], self.weights(members))
        super().aggregate([Upload(Visit(cohort=group), mean, 1.0) for group, mean in means.items()])
        if len(self.slots):
            for group, mean in means.items():
                self.load_tensors({slot_name: mean[name] for name, slot_name in self.in_slot(group).items()})
