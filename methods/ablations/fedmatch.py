"""FedMatch as in other authors' code, and with the downloads of its own code for labels at the clients."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim.optimizer import ParamsT

from methods.base import Batch, LocalWork, Site, Upload, Visit
from methods.fedmatch import FedMatch, differs, flat, sparse_bytes, unflat


class OwnEntriesKept(FedMatch):
    """FedMatch whose clients keep their own entries where the server's are within ``delta``.

    This follows the released code with labels at the clients; with labels at the server that code copies the whole
    model, as our default does.
    """

    revision = 2  # 1 cut small entries of the client's psi alone before it compared them
    scopes = {**FedMatch.scopes, "server_weights": "local"}
    server_weights: Tensor  # the server's weights, before the client merges its own

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.register_buffer("server_weights", flat(self.model.parameters()))

    def local_work(self, client: Site) -> LocalWork:
        """Train as in FedMatch; uploads are compared with the server's weights."""
        work = super().local_work(client)
        self.held_by_server |= self.by_name(self.server_weights.clone())
        return work

    def remember(self, uploads: Sequence[Upload]) -> dict[int, dict[str, Tensor]]:
        """Keep all weights of every client."""
        sigma = [f"model.{name}" for name in self.sigma()]
        return {
            upload.visit.client: {"psi": self.flat_psi(upload), "sigma": flat(upload.tensors[name] for name in sigma)}
            for upload in uploads
        }

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send as in FedMatch, with the weights merged with the client's own."""
        sent = super().broadcast(server, visit)
        sent["server_weights"] = flat(sent[f"model.{name}"] for name, _ in self.model.named_parameters())
        return sent | {name: value for name, (value, _) in self.merged(sent["server_weights"], visit.client).items()}

    def merged(self, server_weights: Tensor, client: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Merge the server's weights with the client's own; by name, the result and a mask of the server's entries.

        The server's entries are taken, as they are, where they differ from the client's by more than ``delta``; on both
        sides entries of psi up to ``l1_threshold`` then count as 0. Empty if the client has no weights yet.
        """
        new, merged = self.by_name(server_weights), {}
        for name, old in self.kept(client).items():
            taken = differs(self.compared(name, new[name]), self.compared(name, old), self.hparams.delta)
            merged[name] = torch.where(taken, new[name], old), taken
        return merged

    def kept(self, client: int) -> dict[str, Tensor]:
        """Return the client's own weights by name: those of its last upload, if any."""
        if client not in self.memory:
            return {}
        psi, sigma = unflat(self.memory[client]["psi"], self.psi()), unflat(self.memory[client]["sigma"], self.sigma())
        return {f"model.{name}": value for name, value in (psi | sigma).items()}

    def by_name(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a vector of all entries into the network's parameters, by their names in messages."""
        return unflat(vector, {f"model.{name}": value for name, value in self.model.named_parameters()})

    def sent_bytes(self, sent: Mapping[str, Tensor], visit: Visit) -> int:
        """Count only the entries that the client takes from the server."""
        masks = {name: taken for name, (_, taken) in self.merged(sent["server_weights"], visit.client).items()}
        rest = {name: tensor for name, tensor in sent.items() if name not in masks and name != "server_weights"}
        return super().sent_bytes(rest, visit) + sparse_bytes(masks, sent)


class FedDuresOptimiser(OwnEntriesKept):
    """The released recipe in FedDure's setting: Adam, and Cutout on labelled images.

    FedDure does not say how it ran FedMatch.
    """

    contract_data = {"pipeline": "randaugment_levels_cutout"}
    views = {**FedMatch.views, "labelled": {"x": "cutout"}}

    def make_optimizer(self, parameters: ParamsT, lr: float | None = None) -> torch.optim.Optimizer:
        """Return Adam with the method's hyperparameters; its steps may be captured in a CUDA graph."""
        rate, decay = self.learning_rate() if lr is None else lr, self.hparams.weight_decay
        return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=True, capturable=True)


class InertClients(FedMatch):
    """The reduced copy in FedCon's public code, which (FL)2 says it ran, and whose clients never take a step.

    There is no psi and there are no helpers; at a client only running statistics of batch norm change, by two weak
    views of each unlabelled image.
    """

    revision = 2
    sums = ()
    views = {**FedMatch.views, "unlabelled": {"x": "weak", "x2": "weak"}}

    def configure_optimizers(self) -> Any:
        """Return one optimiser for all parameters."""
        return self.make_optimizer(self.sigma().values())

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Train all parameters on labels; unlabelled images only get a forward pass in training mode."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = self.descend(self.optimizers(), self.labelled_loss(batch["labelled"]))
        if "unlabelled" in batch:
            with torch.no_grad():
                for view in ("x", "x2"):
                    self(batch["unlabelled"][view])
        self.log("loss", loss)


class SemiFLsCopy(FedMatch):
    """The copy in SemiFL's public code, which FedDB may have used.

    Only weights of convolutions are decomposed, into parts drawn independently; nothing else ever trains, neither the
    classifier nor the norms.
    """

    sums = (_ConvNd,)

    def first_psi(self, sigma: Tensor) -> Tensor:
        """Normal with variance 2 / fan_out."""
        return nn.init.kaiming_normal_(torch.empty_like(sigma), mode="fan_out", nonlinearity="relu")

    def sigma(self) -> dict[str, nn.Parameter]:
        """Return only the parts sigma."""
        return {name: p for name, p in super().sigma().items() if name.endswith(".original")}
