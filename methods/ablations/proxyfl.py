"""ProxyFL as its paper writes it, where the released code differs, and with the released weights of clients."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods.base import Batch, Site, Upload
from methods.parts.tensors import masked_mean, one_hot
from methods.proxyfl import ProxyFL, class_sets, classifier, icpl


class AsPrinted(ProxyFL):
    """The paper's formulas.

    - Only the received model decides an image, and L_u is a mean over decided images.
    - ICPL uses features and proxies as they are. A labelled image's set is its label. An undecided image is pulled to
      proxies in proportion to the local model's logits; negative logits count as 0, and the weights sum to 1, since
      otherwise they could push. Only weak views are pulled; any row with a disjoint set pushes; decided and undecided
      rows are averaged separately. Products of features are unbounded: networks without norms need a lower rate.
    - The prior is the mean of the clients' class shares in the last round only.
    - GPT has no margin.

    L_u remains KL(t, p): as printed, the other way round, it is infinite for one-hot labels. GPT keeps steps of four
    rows, since the paper does not mention steps, and class counts are the code's.
    """

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.feat_proj = self.proxy_proj = None

    def decided(self, local: Tensor, p: Tensor) -> Tensor:
        """Mark unlabelled images on which the received model is confident."""
        return p.amax(dim=1) > self.hparams.threshold

    def mean_loss(self, losses: Tensor, decided: Tensor) -> Tensor:
        """L_u: mean over decided images."""
        return masked_mean(losses, decided)

    def proxy_learning(self, batch: Batch, out: Mapping[str, Tensor], p: Tensor, decided: Tensor) -> Tensor:
        """L_c over weak views."""
        sets = class_sets(p, decided, self.prior)
        pull = out["weak"].detach().clamp_min(0) * sets
        weights = torch.where(decided[:, None], sets.to(p.dtype), pull / pull.sum(dim=1, keepdim=True).clamp_min(1e-12))
        all_sets, all_weights = [sets, sets], [weights, torch.zeros_like(weights)]  # of the weak and the strong views
        if "labelled" in batch:
            y = one_hot(batch["labelled"]["y"], sets.shape[1])
            all_sets, all_weights = [y, *all_sets], [y.to(p.dtype), *all_weights]
        z, w = out["features"].to(self.dtype), classifier(self.model).weight
        losses = icpl(z, w, torch.cat(all_weights), torch.cat(all_sets), least=-torch.inf)[-2 * len(p) : -len(p)]
        return masked_mean(losses, decided) + masked_mean(losses, ~decided)

    def next_prior(self, counts: Tensor) -> Tensor:
        """Average the class shares of the clients with any counts."""
        sums = counts.sum(dim=1, keepdim=True)
        shares = (counts / sums.clamp_min(1)).sum(dim=0) / (sums > 0).sum().clamp_min(1)
        return torch.where(sums.sum() > 0, shares, self.prior)

    def margin(self, proxies: Tensor) -> float:
        """Return 0: there is no margin."""
        return 0.0


class ReleasedWeights(ProxyFL):
    """A client's model weighs ``2000 n_l + n``, as in the released code; in ``ProxyFL`` it weighs ``n_l + n``.

    Here n_l is the length of a client's list of labelled images and n that of its list of unlabelled ones, in which the
    labelled ones stand again. The released code repeats the first list so that drawing from it never ends, and then
    counts it. Where clients are of one size, as in the released partition, both are the plain mean.
    """

    repeats: ClassVar[int] = 2000

    def make_upload(self, client: Site) -> Upload | None:
        """As ``ProxyFL``, but for the weight."""
        upload = super().make_upload(client)
        if upload is not None:
            upload.weight = float(self.repeats * len(client.data.labelled) + len(client.data.unlabelled))
        return upload
