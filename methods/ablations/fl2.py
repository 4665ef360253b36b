"""Variants of (FL)2's step: the curves of Fig. 4, and the paper's version where the released code differs."""

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.base import FSSLDataModule
from datamodules.partition.roster import Roster
from methods.base import Site, Stream
from methods.fl2 import FL2, Tensors, gradients, joint_norm, moved
from methods.parts.server import LABELLED_BATCH, POOL_BATCH, batches
from methods.parts.tensors import divergence, masked_mean, wide


class AllSelected(FL2):
    """Fig. 4, "all data": all selected samples enter the perturbation and the consistency term."""

    def consistent(self, client: Site, labels: Tensor, probabilities: Tensor) -> Tensor:
        """Select all samples."""
        return torch.ones_like(labels, dtype=torch.bool)


class CorrectlyLabelled(FL2):
    """Fig. 4, oracle: only correctly labelled samples enter them; the run is declared to use hidden labels."""

    uses_oracle = True

    def consistent(self, client: Site, labels: Tensor, probabilities: Tensor) -> Tensor:
        """Select the samples whose label is correct."""
        return client.oracle(client.data.unlabelled, labels)


class CATWithSAM(CorrectlyLabelled):
    """Fig. 4, CAT+SAM: L_p(W*) replaces the KL divergence beside L_a(W); the paper does not say how they combine."""

    def consistency(self, samples: Tensors, logits: Tensor, logits_star: Tensor) -> Tensor:
        """L_p at W*."""
        return masked_mean(F.cross_entropy(logits_star, samples["y"], reduction="none"), samples["high"])


class CATWithSAMInstead(CATWithSAM):
    """CAT+SAM in the other reading: samples of L_p(W*) do not count in L_a, still over the batch size."""

    def adaptive_loss(self, losses: Tensor, samples: Tensors) -> Tensor:
        """L_a without the samples of L_p."""
        return (losses * ~samples["high"]).sum() / len(losses)


class PlainSAM(FL2):
    """Eq. 12 as printed: SAM's perturbation, where the text and the released code use ASAM's."""

    def perturbed(self, weights: Tensors, slopes: Tensors, rho: float) -> dict[str, Tensor]:
        """See ``sam``."""
        return moved(weights, sam(weights, slopes, rho))


class WeakTarget(FL2):
    """The target of L_cs (Eq. 13) is the weak view's prediction at W; the released code computes it, then drops it."""

    def pseudo_labelled(self, client: Site, p: Tensor, labels: Tensor, keep: Tensor) -> dict[str, Stream]:
        """Return the streams of ``FL2`` with a weak view beside the strong one."""
        streams = super().pseudo_labelled(client, p, labels, keep)
        streams["unlabelled"].views = {"weak": "weak", "strong": "strong"}
        return streams

    def consistency(self, samples: Tensors, logits: Tensor, logits_star: Tensor) -> Tensor:
        """L_cs against the weak view."""
        with torch.no_grad():
            weak = wide(self(samples["weak"]))
        return super().consistency(samples, weak, logits_star)


class ServerStatistics(FL2):
    """Statistics of batch norm are those of the server's labelled images alone."""

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of these images, batch by batch."""
        return iter(torch.split(data.server.labelled, LABELLED_BATCH))


class AsWritten(FL2):
    """Eqs. 10, 11 and 13 and line 21 of Algorithm 1, where the released code differs; W* is the text's, by ASAM.

    Batches hold all samples, with a mask for the selected ones (Eq. 10); L_cs is a mean over the whole batch (Eq. 13);
    the prediction at W* is the fixed target, and the gradient is taken at W (Algorithm 1, line 21). Statistics of batch
    norm are those of the next round's active clients; before the first round, those of ``FL2``. Labels are made once
    per visit, and a sample at its threshold counts.
    """

    revision = 3
    retired = {"sbn_scope": "active"}
    active: Sequence[int] = ()
    """The clients of the next round, in the order of their ids."""

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Draw as ``FL2`` does, and store the next draw for the norm statistics, which this round ends with."""
        self.active = sorted(set().union(*super().select_clients(round + 1, roster)))
        return super().select_clients(round, roster)

    def norm_batches(self, data: FSSLDataModule) -> Iterator[Tensor]:
        """Yield the positions of the active clients' images, batch by batch, one client after the other."""
        if not self.active:
            yield from super().norm_batches(data)
        for client in map(data.client, self.active):
            yield from batches(torch.cat([client.labelled, client.unlabelled]), POOL_BATCH)

    def pseudo_labelled(self, client: Site, p: Tensor, labels: Tensor, keep: Tensor) -> dict[str, Stream]:
        """Return all samples with labels ``y``, the selected ones as ``keep``, and the mask ``high``."""
        streams = super().pseudo_labelled(client, p, labels, torch.ones_like(keep))
        streams["unlabelled"].fields = {**streams["unlabelled"].fields, "keep": keep}
        return streams

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """L_a: mean over the selected samples of the batch."""
        return masked_mean(F.cross_entropy(self(samples["strong"]), samples["y"], reduction="none"), samples["keep"])

    def adaptive_loss(self, losses: Tensor, samples: Tensors) -> Tensor:
        """L_a: mean over the selected samples of the batch."""
        return masked_mean(losses, samples["keep"])

    def consistency(self, samples: Tensors, logits: Tensor, logits_star: Tensor) -> Tensor:
        """L_cs: KL(prediction at W* || prediction at W) of all samples."""
        return divergence(logits_star.detach(), logits).mean()

    def slopes(self, loss: Tensor, loss_cs: Tensor, w: Tensors, w_star: Tensors) -> dict[str, Tensor]:
        """Gradient of both at W."""
        return gradients(loss + loss_cs, w)


def sam(parameters: Tensors, gradients: Tensors, rho: float) -> dict[str, Tensor]:
    """eps: ``rho g / (|g| + 1e-12)``, with one L2 norm over all parameters (Foret et al., ICLR 2021; (FL)2, Eq. 12).

    Args:
        parameters: tensors by name; only those with a gradient are perturbed.
        gradients: gradient of the loss by the same names.
        rho: radius of the ball.
    """
    slopes = {name: gradients[name] for name in parameters if name in gradients}
    factor = rho / (joint_norm(list(slopes.values())) + 1e-12)
    return {name: (wide(slope) * factor).to(slope.dtype) for name, slope in slopes.items()}
