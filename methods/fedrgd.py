"""FedRGD: every group of clients keeps its own model; the groups meet in one bridging client each."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Upload, Visit
from methods.fixmatch import FixMatch
from methods.parts.aggregation import weighted_mean


class FedRGD(FixMatch):
    """Grouping-based averaging (Zhang et al., IEEE Big Data 2021) on the FixMatch loss, as a baseline of FedDB.

    The round's participants form ``num_groups`` equal random groups. A group's model is the mean over its clients
    (without a server model), the global model is the mean of the group models. With ``group_state="slots"`` the first
    client of a group starts the next round from the global model, the others from what the group's places held: models
    travel on with the place, not with the client. Evaluation uses the global model, that of slot 0.

    The network should have group normalisation (``norm=group``, ``groups`` 32, at most one group per channel).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``num_groups`` | 2 (10 to 20 clients), 5 (47) | 2 (10), 3 (30) | 2 |
    | ``group_state`` | each user continues from its group | slots, two bridges | ``slots`` (SemiFL's: ``global``) |
    | ``pl_time`` | every step | every step | ``every_step`` |
    | ``unsup_norm`` | all images | all images | ``confident``, as FedDB's other rows |
    | ``threshold`` | 0.95 | 0.95 | 0.95 |
    | ``server_momentum`` | none | none | 0 (only ``global`` may have it) |
    | ``full_batch``, ``local_epochs``, rates | mini-batches, own schedule | mini-batches | as FedDB |

    Raises:
        ConfigError: momentum at the server together with slots.
    """

    scenario = "all_clients"
    eval_batch = 250
    scopes = {**FixMatch.scopes, "slots": "server"}

    def __init__(
        self,
        model: nn.Module,
        num_groups: int = 2,
        group_state: Literal["slots", "global"] = "slots",
        pl_time: Literal["round_start", "every_step"] = "every_step",
        unsup_norm: Literal["confident", "all"] | None = "confident",
        full_batch: bool = True,
        server_momentum: float = 0.0,
        **base: Any,
    ) -> None:
        super().__init__(
            model,
            pl_time=pl_time,
            unsup_norm=unsup_norm,
            full_batch=full_batch,
            server_momentum=server_momentum,
            **base,
        )
        self.require(num_groups=num_groups >= 1)
        if group_state == "slots" and server_momentum:
            raise ConfigError(
                f"server_momentum={server_momentum} with group_state=slots: the server sends several models, none of "
                "which has a predecessor; choose server_momentum=0 or group_state=global"
            )
        count = num_groups if group_state == "slots" else 0
        self.slots = nn.ModuleList(copy.deepcopy(model).requires_grad_(False) for _ in range(count))

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """One cohort per group; the first client of each is its bridge."""
        super().plan(round, roster)
        drawn, count = roster.shuffled(round), self.hparams["num_groups"]
        self.groups = [drawn[g::count] for g in range(count)]
        return self.groups

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """The global model for bridges, the group's for all others."""
        bridge = visit.client == self.groups[visit.cohort][0]
        source = "model" if bridge or not len(self.slots) else f"slots.{visit.cohort}"
        return {name: server[name.replace("model", source, 1)] for name in self.names("shared")}

    @torch.no_grad()
    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Means of the groups, and their mean; a group without uploads keeps its slots."""
        members = [[u for u in uploads if u.visit.cohort == g] for g in range(len(self.groups))]
        means = [weighted_mean([u.tensors for u in group], self.weights(group)) for group in members if group]
        super().aggregate([Upload(Visit(cohort=g), mean, 1.0) for g, mean in enumerate(means)])
        present = [g for g, group in enumerate(members) if group]
        for slot, mean in zip(present, means, strict=True) if len(self.slots) else ():
            self.load_tensors({name.replace("model", f"slots.{slot}", 1): value for name, value in mean.items()})
