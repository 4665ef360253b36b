"""SemiFL: alternate training with fixed pseudo-labels and mixup."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, LocalWork, Site, Stream
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
    | ``semifl_mix_pool`` | all | ``all``, new in every epoch ((FL)2's repository: ``confident``, once) | ``all`` |
    | ``mix`` | yes | yes | true (false on text, and for the term with strong views alone) |
    | ``empty_client`` without a confident image | silent | dropped; (FL)2's repository keeps it | ``drop`` |
    | ``batch_size``, ``server_batch_size`` | 10, 10 | 10, 10 (250 above 1000 labels) | 10, 10 |
    | ``server_pretrain`` | none | none | 0 |
    | ``sbn_labelled_batch``, ``sbn_batch``, ``sbn_order`` | silent | one stream of 250, stored order | as (FL)2 |
    | other arguments | | | see ``FixMatch`` |
    """

    lam: Tensor

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
        self.require("above 0", mix_alpha=mix_alpha > 0)
        self.require("from 0", mix_weight=mix_weight >= 0)
        self.require("round_start, where mix is on", pl_time=not mix or h.pl_time == "round_start")
        self.require("confident or null, where mix is on", unsup_norm=not mix or h.unsup_norm != "all")
        self.register_buffer("lam", torch.ones(()), persistent=False)
        self.lambdas = np.random.default_rng()

    def local_work(self, client: Site) -> LocalWork:
        """As FixMatch; the mixing weights of this visit come from a random stream of its own."""
        self.lambdas = np.random.default_rng(client.generator("order/mix_lambda").initial_seed())
        return super().local_work(client)

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """The fix set and, drawn with replacement, a mix set of the same size.

        From all images, every pass draws other partners; from the confident ones, they are drawn once per visit.
        """
        made = super().pseudo_labelled(client, probabilities)
        if not self.hparams.mix or not len(made["unlabelled"]):
            return made
        labels, keep = self.select(probabilities)
        made["unlabelled"].views = {"weak": "weak", "strong": "strong"}
        everyone, count = client.data.unlabelled, len(made["unlabelled"])
        if self.hparams.semifl_mix_pool == "all":
            made["mix"] = self.fixed(everyone, {"weak": "weak"}, y=labels)
            made["mix"].resample, made["mix"].batch_size = count, made["unlabelled"].batch_size
            return made
        pool = torch.arange(len(everyone), device=everyone.device)[keep]
        drawn = torch.randint(len(pool), (count,), generator=client.generator("order/mix_pool"))
        partners = pool[drawn.to(pool.device)]
        made["mix"] = self.fixed(everyone[partners], {"weak": "weak"}, y=labels[partners])
        return made

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Draw the step's mixing weight."""
        if "mix" in batch:
            alpha = self.hparams.mix_alpha
            self.lam.fill_(self.lambdas.beta(alpha, alpha))

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """The fix term (see ``FixMatch``) plus the mix term."""
        loss = super().training_step(batch, batch_idx)
        if "mix" in batch:
            loss = loss + self.hparams.mix_weight * self.mix_loss(batch["unlabelled"], batch["mix"])
        return loss

    def mix_loss(self, fix: Mapping[str, Tensor], mix: Mapping[str, Tensor]) -> Tensor:
        """Mixup of the two sets' weak views, paired by position."""
        logits = self(self.lam * fix["weak"] + (1.0 - self.lam) * mix["weak"])
        return self.lam * F.cross_entropy(logits, fix["y"]) + (1.0 - self.lam) * F.cross_entropy(logits, mix["y"])
