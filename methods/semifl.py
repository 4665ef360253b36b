"""SemiFL: alternate training with fixed pseudo-labels and mixup."""

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, LocalWork, Site, StepNumber, Stream, Upload
from methods.fixmatch import FixMatch, has_batches

ALPHA = 0.75


class SemiFL(FixMatch):
    """SemiFL (Diao et al., NeurIPS 2022), the main baseline of (FL)2 (NeurIPS 2024).

    The confident images form the fix set; the mix set has as many draws from all images, confident or not. Per batch,
    with one ``lam ~ Beta(0.75, 0.75)``, the loss is ``CE(f(strong), y) + mix_weight (lam CE(f(m), y) + (1 - lam)
    CE(f(m), y'))`` with ``m = lam weak + (1 - lam) weak'``. The server fine-tunes the average on its labels.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold`` | 0.95 | 0.95, inclusive | 0.95 |
    | parameter of the Beta distribution | 0.75 | 0.75 (not folded) | 0.75 |
    | ``mix_weight`` | 1 | 1 | 1 ((FL)2's row on text: 0, no mix set) |
    | mix partners | all images | all, redrawn in every epoch ((FL)2's repository: confident ones, once) | as released |
    | a client without a confident image | not given | dropped ((FL)2's repository keeps it) | as released |
    | ``batch_size``, ``server_batch_size`` | 10, 10 | 10, 10 (250 above 1000 labels) | 10, 10 |
    | ``server_pretrain`` | none | none | 0 |
    | batches of the norm statistics | not given | of 250, in one stream (``NormsInOneStream``) | as (FL)2 |
    | ``lr``, ``momentum``, ``nesterov``, ``weight_decay`` | 0.03, 0.9, yes, 5e-4 | the same | the same |
    | ``clip_norm``, ``local_epochs``, ``server_epochs`` | not given, 5, 5 | 1, 5, 5 | as released |
    | ``server_momentum``, ``lr_schedule`` | 0.5, cosine | the same | the same |

    Two ablations are in ``methods.ablations.semifl``: ``AsInFL2`` is the version in (FL)2's repository, and
    ``NormsInOneStream`` has the norm statistics of SemiFL's own.

    Args:
        model: the network.
        mix_weight: weight of the mix term; 0: no mix term and no mix set.
        batch_size: images per step of each stream.
    """

    lam = StepNumber()

    def __init__(self, model: nn.Module, mix_weight: float = 1.0, batch_size: int = 10, **base: Any) -> None:
        super().__init__(model, **base)
        self.lambdas = np.random.default_rng()
        self.trains = True

    def local_work(self, client: Site) -> LocalWork:
        """As in ``FixMatch``; mixing weights come from a separate random stream per visit."""
        self.lambdas = np.random.default_rng(client.generator("order/mix_lambda").initial_seed())
        return super().local_work(client)

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """See ``FixMatch``."""
        streams = super().visit_streams(client)
        self.trains = any(has_batches(streams, name) for name in streams)
        return streams

    def pseudo_labelled(self, client: Site, p: Tensor, labels: Tensor, keep: Tensor) -> dict[str, Stream]:
        """Return the fix set, and a mix set of as many draws with replacement, redrawn in every local epoch."""
        streams = super().pseudo_labelled(client, p, labels, keep)
        fix = streams["unlabelled"]
        if self.hparams.mix_weight and len(fix):
            fix.views = {"weak": "weak", "strong": "strong"}
            streams["mix"] = self.mix_set(client, labels, keep)
        return streams

    def mix_set(self, client: Site, labels: Tensor, keep: Tensor) -> Stream:
        """Draw partners from all of the client's images, labelled by their arg max."""
        mix = self.fixed(client.data.unlabelled, {"weak": "weak"}, y=labels)
        mix.resample = int(keep.sum())
        return mix

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Draw the step's mixing weight."""
        if "mix" in batch:
            self.lam = self.lambdas.beta(ALPHA, ALPHA)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the loss of ``FixMatch`` (the fix term, and labels if any) plus the mix term.

        The mix term is the mixup loss of the two sets' weak views, paired by position.
        """
        loss = super().training_step(batch, batch_idx)
        if "mix" in batch:
            lam, fix, mix = self.lam, batch["unlabelled"], batch["mix"]
            logits = self(lam * fix["weak"] + (1.0 - lam) * mix["weak"])
            mixed = lam * F.cross_entropy(logits, fix["y"]) + (1.0 - lam) * F.cross_entropy(logits, mix["y"])
            loss = loss + self.hparams.mix_weight * mixed
        return loss

    def make_upload(self, client: Site) -> Upload | None:
        """Return the model, unless the client had nothing to train on."""
        return super().make_upload(client) if self.trains else None
