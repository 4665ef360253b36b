"""ProxyFL as its paper writes it, where the released code differs, and with the released weights of clients."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods.base import Batch, Site, Upload
from methods.parts.losses import masked_mean
from methods.parts.tensors import one_hot
from methods.proxyfl import ProxyFL, class_sets, classifier, icpl


class AsPrinted(ProxyFL):
    """The paper's formulas.

    - Decided is what the received model alone is sure of, and L_u is a mean over these images.
    - ICPL takes features and proxies as they are. A labelled image's set is its label. An undecided one is drawn to
      proxies in proportion to the local model's logits; negative ones count as 0, and the weights sum to 1, for
      else they would push. Weak views are drawn; any disjoint row pushes; decided and undecided rows have a mean each.
      Products of features have any size: networks without norms want a lower rate.
    - The prior is the mean of the clients' shares of classes, of the last round alone.
    - GPT has no margin.

    L_u stays KL(t, p): the other way round, as printed, it is infinite for one-hot labels. GPT stays in steps of four
    rows, since the paper says nothing of steps, and class counts stay the code's.
    """

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.feat_proj = self.proxy_proj = None

    def decided(self, local: Tensor, p: Tensor) -> Tensor:
        """Unlabelled images that the received model is confident of."""
        sure: Tensor = p.amax(dim=1) > self.hparams.threshold
        return sure

    def mean_loss(self, losses: Tensor, decided: Tensor) -> Tensor:
        """L_u: over decided images."""
        return masked_mean(losses, decided)

    def proxy_learning(self, batch: Batch, out: Mapping[str, Tensor], p: Tensor, decided: Tensor) -> Tensor:
        """L_c of weak views."""
        sets = class_sets(p, decided, self.prior)
        pull = out["weak"].detach().clamp_min(0) * sets
        weights = torch.where(decided[:, None], sets.to(p.dtype), pull / pull.sum(dim=1, keepdim=True).clamp_min(1e-12))
        every, drawn, first = [sets, sets], [weights, torch.zeros_like(weights)], 0
        if "labelled" in batch:
            own = one_hot(batch["labelled"]["y"], sets.shape[1])
            every, drawn, first = [own, *every], [own.to(p.dtype), *drawn], len(own)
        z, w = out["features"].to(self.dtype), classifier(self.model).weight
        losses = icpl(z, w, torch.cat(drawn), torch.cat(every), least=-torch.inf)[first : first + len(p)]
        return masked_mean(losses, decided) + masked_mean(losses, ~decided)

    def next_prior(self, counts: Tensor) -> Tensor:
        """Mean of the shares of those clients that have met any class."""
        met = counts.sum(dim=1, keepdim=True)
        shares = (counts / met.clamp_min(1)).sum(dim=0) / (met > 0).sum().clamp_min(1)
        return torch.where(met.sum() > 0, shares, self.prior)

    def margin(self, proxies: Tensor) -> float:
        """None."""
        return 0.0


class ReleasedWeights(ProxyFL):
    """A client's model weighs ``2000 n_l + n_l + n_u``, as in the released code; in ``ProxyFL`` it weighs n_l + n_u.

    There the list of labelled images is repeated so that drawing from it never ends, and then counted. Where clients
    are of one size, as in the released partition, both are the plain mean.
    """

    repeats: ClassVar[int] = 2000

    def make_upload(self, client: Site) -> Upload | None:
        """As ``ProxyFL``; a labelled image counts 2000 times more."""
        upload = super().make_upload(client)
        if upload is not None:
            upload.weight += self.repeats * len(client.data.labelled)
        return upload
