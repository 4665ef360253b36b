"""SemiFL: alternate training with fixed pseudo-labels and mixup."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, Site, Stream
from methods.fixmatch import FixMatch


class SemiFL(FixMatch):
    """SemiFL (Diao et al., NeurIPS 2022), the main baseline of (FL)2 (NeurIPS 2024).

    Confident images form the fix set, as many draws from all images, confident or not, the mix set; per batch and for
    one ``lam ~ Beta(mix_alpha, mix_alpha)`` the loss is ``CE(f(strong), y) + mix_weight (lam CE(f(m), y) + (1 - lam)
    CE(f(m), y'))`` with ``m = lam weak + (1 - lam) weak'``. The server fine-tunes the average on its labels.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold`` | 0.95 | 0.95, reached counts | 0.95 |
    | ``mix_alpha``, ``mix_weight`` | 0.75, 1 | 0.75 (not folded), 1 | 0.75, 1 |
    | ``semifl_mix_pool`` | all | ``all`` ((FL)2's repository: ``confident``) | ``all`` |
    | ``mix`` | yes | yes | true (false on text, and for the term with strong views alone) |
    | ``empty_client`` without a confident image | silent | dropped; (FL)2's repository keeps it | ``drop`` |
    | ``batch_size``, ``server_batch_size`` | 10, 10 | 10, 10 (250 above 1000 labels) | 10, 10 |
    | ``server_pretrain`` | none | none | 0 |
    | ``sbn_labelled_batch``, ``sbn_batch``, ``sbn_order`` | silent | one stream of 250, stored order | as (FL)2 |
    | other arguments | | | see ``FixMatch`` |
    """

    def __init__(
        self,
        model: nn.Module,
        mix: bool = True,
        mix_alpha: float = 0.75,
        mix_weight: float = 1.0,
        semifl_mix_pool: Literal["all", "confident"] = "all",
        empty_client: Literal["keep", "drop"] = "drop",
        batch_size: int = 10,
        **base: Any,
    ) -> None:
        super().__init__(model, empty_client=empty_client, batch_size=batch_size, **base)
        h = self.hparams
        self.require(
            mix_alpha=mix_alpha > 0,
            pl_time=not mix or h["pl_time"] == "round_start",
            unsup_norm=not mix or h["unsup_norm"] != "all",
        )

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """The fix set and, drawn with replacement, a mix set of the same size."""
        made = super().pseudo_labelled(client, probabilities)
        if not self.hparams["mix"] or not len(made["unlabelled"]):
            return made
        labels, keep = self.select(probabilities)
        made["unlabelled"].views = {"weak": "weak", "strong": "strong"}
        everyone = client.data.unlabelled
        pool = torch.arange(len(everyone), device=everyone.device)
        if self.hparams["semifl_mix_pool"] == "confident":
            pool = pool[keep]
        count, generator = (len(made["unlabelled"]),), client.generator("order/mix_pool")
        drawn = pool[torch.randint(len(pool), count, generator=generator).to(pool.device)]
        made["mix"] = self.fixed(everyone[drawn], {"weak": "weak"}, y=labels[drawn])
        return made

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The fix term (see ``FixMatch``) plus the mix term."""
        loss = super().training_step(batch, batch_idx)
        if "mix" in batch:
            loss = loss + self.hparams["mix_weight"] * self.mix_loss(batch["unlabelled"], batch["mix"])
        return loss

    def mix_loss(self, fix: Mapping[str, Tensor], mix: Mapping[str, Tensor]) -> Tensor:
        """Mixup of the two sets' weak views, paired by position; one lambda per batch, from torch's generator."""
        alpha = self.hparams["mix_alpha"]
        lam = float(torch.distributions.Beta(alpha, alpha).sample())
        logits = self(lam * fix["weak"] + (1.0 - lam) * mix["weak"])
        return lam * F.cross_entropy(logits, fix["y"]) + (1.0 - lam) * F.cross_entropy(logits, mix["y"])
