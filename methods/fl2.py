"""(FL)2: client-specific thresholds, sharpness-aware consistency, learning-status-aware aggregation."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from datamodules.common.errors import ConfigError
from methods.base import Batch, Site, Stream, Upload
from methods.fixmatch import FixMatch
from methods.parts import perturbation as perturb
from methods.parts.losses import masked_mean
from methods.parts.tensors import set_gradient, wide


class FL2(FixMatch):
    """(FL)2: overcoming few labels in federated semi-supervised learning (Lee et al., NeurIPS 2024).

    CAT: a client keeps pseudo-labels above its own class-wise thresholds (Eqs. 7-10). SACR: on samples above
    ``threshold`` the prediction must not change at the worst nearby weights ``W* = W + eps`` (Eqs. 11-14):

    * L_p, the pseudo-label loss of the confident samples, says where the loss rises fastest (Eq. 11);
    * eps is a step of length rho in that direction (Eq. 12);
    * L_cs is the KL divergence between the predictions at W and at W* (Eq. 13);
    * a step follows ``w_a grad L_a(W) + w_cs grad L_cs(W*)`` (Eq. 14), L_a being the loss of all kept samples.

    LSAA: clients that are less sure weigh more (Eq. 15).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``selection``, ``sacr``, ``aggregation`` | Table 2 | all on | ``adaptive``, true, ``lsaa`` |
    | ``rho`` | 0.1 (CIFAR-100: 1); 0.5 in App. C | 0.1 | 0.1, in the suite 1 on CIFAR-100 |
    | ``eta``, ``perturbation`` | Eq. 12 is SAM, the text ASAM | 0.01, ASAM | 0.01, ``asam`` |
    | ``threshold`` (tau_f), thresholds | 0.95, exceeded | 0.95, reached | 0.95, reached |
    | ``lambda_u`` (w_a), ``w_cs`` | 1, 1 | 1, 1 | 1, 1 |
    | ``cs_grad`` | at W, both sides | at W*, target fixed | ``perturbed`` |
    | ``cs_mask``, ``cs_mean`` | none, none | high confidence, over the batch | true, ``batch`` |
    | ``client_batches`` | mask inside the batch | client's set filtered first | ``selected`` |
    | ``server_pretrain`` (calls) | absent | 10 (CIFAR-10), 2048 steps (SVHN) | 10, in the suite as the code |
    | ``lr_schedule`` | cosine | constant: never advanced | ``cosine`` |
    | ``server_momentum`` | 0.5 | 0.5 | 0.5 |
    | fairness loss | named, no formula | absent | absent |
    | ``sacr_mask``, ``sam_mode`` | Fig. 4: all data, oracle, CAT+SAM | absent | ``high_conf``, null |

    Args:
        model: the network.
        selection: thresholds: ``adaptive`` (CAT) or ``fixed`` at ``threshold`` (FixMatch).
        sacr: whether the consistency term is used.
        aggregation: ``lsaa``, or as ``ServerMomentum`` says.
        sacr_mask: samples that shape the perturbation and the term: ``high_conf``, ``all`` selected ones, or those
            labelled ``correct``-ly, a diagnostic that needs the hidden labels and makes the run a declared oracle.
        perturbation: ``asam``, ``sam``, or ``none`` (eps = 0).
        rho: size of the perturbation.
        eta: see ``perturb.asam``.
        w_cs: weight of the term.
        sam_mode: ``null``: the term is a KL divergence. ``add``: it is L_p(W*) instead (CAT+SAM); ``replace``: and the
            masked samples no longer count in L_a.
        kl_target: view that the target distribution comes from.
        cs_grad: ``perturbed``: gradient at W* with the prediction at W fixed; ``original``: at W, that at W* fixed.
        cs_mask: whether ``sacr_mask`` restricts the KL term too; else the whole batch counts there.
        cs_mean: divide the KL term by the ``batch`` or by the ``masked`` samples.
        client_batches: batches of ``selected`` samples, or of all samples with the others ``masked``.
        server_pretrain: see ``LabelsAtServer``.
    """

    scopes = {**FixMatch.scopes, "tau": "local"}
    tau: Tensor

    def __init__(
        self,
        model: nn.Module,
        selection: Literal["adaptive", "fixed"] = "adaptive",
        sacr: bool = True,
        aggregation: Literal["lsaa", "uniform", "size"] = "lsaa",
        sacr_mask: Literal["high_conf", "all", "correct"] = "high_conf",
        perturbation: Literal["asam", "sam", "none"] = "asam",
        rho: float = 0.1,
        eta: float = 0.01,
        w_cs: float = 1.0,
        sam_mode: Literal["add", "replace"] | None = None,
        kl_target: Literal["strong", "weak"] = "strong",
        cs_grad: Literal["perturbed", "original"] = "perturbed",
        cs_mask: bool = True,
        cs_mean: Literal["batch", "masked"] = "batch",
        client_batches: Literal["selected", "masked"] = "selected",
        server_pretrain: int = 10,
        **base: Any,
    ) -> None:
        super().__init__(model, server_pretrain=server_pretrain, aggregation=aggregation, **base)
        h = self.hparams
        self.require("from 0", rho=rho >= 0, eta=eta >= 0, w_cs=w_cs >= 0)
        self.require("round_start", pl_time=h.pl_time == "round_start")
        self.require("confident or null", unsup_norm=h.unsup_norm != "all")
        if cs_grad == "original" and (kl_target == "weak" or sam_mode):
            raise ConfigError("cs_grad=original differentiates at W: it needs kl_target=strong and no sam_mode")
        self.automatic_optimization = False
        self.uses_oracle = sacr_mask == "correct"
        self.register_buffer("tau", torch.ones(()))  # a client that labels nothing counts as sure

    def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels and which are used: those that reach their class's threshold."""
        tau, thresholds = adaptive_thresholds(probabilities)
        self.tau.copy_(tau)
        if self.hparams.selection == "fixed":
            return super().select(probabilities)
        confidence, labels = probabilities.max(dim=1)
        return labels, confidence >= thresholds[labels]

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """The selected samples with their labels ``y`` and the mask ``high`` of the consistency term."""
        h, index = self.hparams, client.data.unlabelled
        labels, keep = self.select(probabilities)
        client.report_pseudo_labels(index, labels, keep)
        self.log("tau", self.tau)
        fields = {"y": labels}
        if h.sacr:
            fields["high"] = self.consistent(client, labels, keep, probabilities)
        if h.client_batches == "masked":
            fields["keep"] = keep
        else:
            index = index[keep]
            fields = {name: values[keep] for name, values in fields.items()}
        views = {"strong": "strong"}
        if h.kl_target == "weak":
            views["weak"] = "weak"
        return {"unlabelled": self.fixed(index, views, **fields)}

    def consistent(self, client: Site, labels: Tensor, keep: Tensor, probabilities: Tensor) -> Tensor:
        """Samples that shape the perturbation and the consistency term (``sacr_mask``), bool ``[n]``."""
        if self.hparams.sacr_mask == "all":
            return keep
        if self.hparams.sacr_mask == "correct":
            return client.oracle(client.data.unlabelled, labels) & keep
        confident: Tensor = probabilities.amax(dim=1) >= self.hparams.threshold
        return confident

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """L_a alone: mean cross-entropy over the selected samples of the batch."""
        if "keep" not in samples:
            return super().unlabelled_loss(samples)
        losses = F.cross_entropy(self(samples["strong"]), samples["y"], reduction="none")
        return masked_mean(losses, samples["keep"])

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step: along the gradient of Eq. 14 on pseudo-labels, of FixMatch's loss elsewhere."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        if "high" in batch.get("unlabelled", {}):
            loss = self.sharpness_aware_consistency(batch)
        else:
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        self.log("loss", loss.detach())

    def sharpness_aware_consistency(self, batch: Batch) -> Tensor:
        """Leave ``w_a grad L_a(W) + w_cs grad L_cs(W*)`` (Eq. 14) as the gradient; returns the value of the loss.

        The target, L_p and L_a share one forward pass at W.
        """
        h, samples = self.hparams, batch["unlabelled"]
        weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        logits = self.logits_at(None, samples["strong"])
        losses = F.cross_entropy(logits, samples["y"], reduction="none")
        nearby = self.perturbed(weights, masked_mean(losses, samples["high"]))
        adaptive = self.adaptive_loss(batch, losses)
        if h.cs_grad == "original":
            with torch.no_grad():
                target = self.logits_at(nearby, samples["strong"])
            consistency = self.consistency(samples, target, logits)
            total = gradients(adaptive + h.w_cs * consistency, weights)
        else:
            total = gradients(adaptive, weights)
            leaves = {name: value.requires_grad_() for name, value in nearby.items()}
            target = logits if h.kl_target == "strong" else self.fixed_logits(samples["weak"])
            consistency = self.consistency(samples, target, self.logits_at(leaves, samples["strong"]))
            for name, slope in gradients(h.w_cs * consistency, leaves).items():
                total[name] = total[name] + slope if name in total else slope
        for name, gradient in total.items():
            set_gradient(weights[name], gradient)
        self.log("loss_cs", consistency.detach())
        loss: Tensor = adaptive + h.w_cs * consistency
        return loss

    def logits_at(self, weights: dict[str, Tensor] | None, images: Tensor) -> Tensor:
        """Logits ``[B, C]``, float32 or wider, of the network with other weights (by name), or with its own."""
        logits: Tensor = self.model(images) if weights is None else functional_call(self.model, weights, (images,))
        return wide(logits)

    @torch.no_grad()
    def fixed_logits(self, images: Tensor) -> Tensor:
        """Logits ``[B, C]`` at W without history."""
        return self.logits_at(None, images)

    def perturbed(self, weights: Mapping[str, Tensor], pseudo_loss: Tensor) -> dict[str, Tensor]:
        """``W* = W + eps`` without history, eps along the gradient of L_p (Eqs. 11, 12)."""
        h = self.hparams
        slopes = gradients(pseudo_loss, weights, retain_graph=True)
        at = {name: weight.detach() for name, weight in weights.items()}
        if h.perturbation == "none":
            eps: dict[str, Tensor] = {}
        elif h.perturbation == "asam":
            eps = perturb.asam(at, slopes, h.rho, h.eta)
        else:
            eps = perturb.sam(at, slopes, h.rho)
        return {name: value + eps[name] if name in eps else value.clone() for name, value in at.items()}

    def adaptive_loss(self, batch: Batch, losses: Tensor) -> Tensor:
        """``w_a L_a``, from the ``losses [B]`` of the batch, and the loss of the labels where there are any."""
        samples = batch["unlabelled"]
        counts = samples.get("keep", torch.ones_like(samples["high"]))
        used = counts & ~samples["high"] if self.hparams.sam_mode == "replace" else counts
        loss: Tensor = self.hparams.lambda_u * (losses * used).sum() / counts.sum().clamp_min(1)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self.logits_at(None, batch["labelled"]["x"]), batch["labelled"]["y"])
        return loss

    def consistency(self, samples: Mapping[str, Tensor], target: Tensor, logits: Tensor) -> Tensor:
        """L_cs: KL(target || prediction) over the masked samples (Eq. 13), or their cross-entropy (``sam_mode``)."""
        h, mask = self.hparams, samples["high"]
        if h.sam_mode:
            return masked_mean(F.cross_entropy(logits, samples["y"], reduction="none"), mask)
        if not h.cs_mask:
            mask = torch.ones_like(mask)
        log_target, log_prediction = target.detach().log_softmax(dim=1), logits.log_softmax(dim=1)
        divergence = (log_target.exp() * (log_target - log_prediction)).sum(dim=1)
        return masked_mean(divergence, mask) if h.cs_mean == "masked" else (divergence * mask).mean()

    def make_upload(self, client: Site) -> Upload | None:
        """The model and, for LSAA, the client's mean confidence."""
        upload = super().make_upload(client)
        if upload is not None and self.hparams.aggregation == "lsaa":
            upload.stats["tau"] = self.tau.clone()
        return upload

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """LSAA, unless switched off."""
        if self.hparams.aggregation != "lsaa":
            return super().weights(uploads)
        return lsaa_weights(torch.stack([upload.stats["tau"] for upload in uploads]).tolist())


def adaptive_thresholds(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """CAT: mean confidence tau of a client, and its thresholds ``tau p(c) / max p`` per class (Eqs. 7-9).

    The ratio comes first: so the most predicted class has exactly tau, and a lone sample reaches its threshold.

    Args:
        probabilities: ``[n, C]`` predictions on all of the client's samples, n > 0.

    Returns:
        tau, a scalar, and the thresholds ``[C]``.
    """
    confidence, mean = probabilities.amax(dim=1), probabilities.mean(dim=0)
    tau = confidence.mean().clamp(max=confidence.max())  # a mean of equal numbers may round above them
    return tau, tau * (mean / mean.max())


def lsaa_weights(taus: Sequence[float]) -> list[float]:
    """LSAA: ``(1 - tau_k) / sum (1 - tau_j)`` (Eq. 15); uniform if every tau is 1 (released code: 0 / 0)."""
    doubts = [max(1.0 - tau, 0.0) for tau in taus]
    total = sum(doubts)
    return [1.0 / len(taus)] * len(taus) if total == 0 else [doubt / total for doubt in doubts]


def gradients(loss: Tensor, at: Mapping[str, Tensor], retain_graph: bool = False) -> dict[str, Tensor]:
    """Gradient of the loss with respect to tensors by name; those that it does not depend on have none."""
    found = torch.autograd.grad(loss, list(at.values()), retain_graph=retain_graph, allow_unused=True)
    return {name: gradient for name, gradient in zip(at, found, strict=True) if gradient is not None}
