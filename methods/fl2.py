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
from methods.parts import ops
from methods.parts import perturbation as perturb


class FL2(FixMatch):
    """(FL)2: overcoming few labels in federated semi-supervised learning (Lee et al., NeurIPS 2024).

    CAT: a client keeps pseudo-labels above its own class-wise thresholds (Eqs. 7-10). SACR: on samples above
    ``threshold`` the prediction must not change at the worst nearby weights ``W*`` (Eqs. 11-14); the step follows
    ``w_a grad L_a(W) + w_cs grad L_cs(W*)``. LSAA: clients that are less sure weigh more (Eq. 15).

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
        self.require(rho=rho >= 0, eta=eta >= 0)
        self.require(pl_time=self.hparams["pl_time"] == "round_start", unsup_norm=self.hparams["unsup_norm"] != "all")
        if cs_grad == "original" and (kl_target == "weak" or sam_mode):
            raise ConfigError("cs_grad=original differentiates at W: it needs kl_target=strong and no sam_mode")
        self.uses_oracle = sacr_mask == "correct"
        self.tau = torch.ones(())

    def client_start(self, first: bool) -> None:
        """A client that labels nothing counts as sure."""
        self.tau = torch.ones((), device=self.device)

    def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels and which are used: those that reach their class's threshold."""
        self.tau, thresholds = adaptive_thresholds(probabilities)
        if self.hparams["selection"] == "fixed":
            return super().select(probabilities)
        confidence, labels = probabilities.max(dim=1)
        return labels, confidence >= thresholds[labels]

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """The selected samples with their labels ``y`` and the mask ``high`` of the consistency term."""
        h, index = self.hparams, client.data.unlabelled
        labels, keep = self.select(probabilities)
        client.report_pseudo_labels(index, labels, keep)
        self.log("tau", self.tau)
        high = keep if h["sacr_mask"] == "all" else probabilities.amax(dim=1) >= h["threshold"]
        if h["sacr_mask"] == "correct":
            high = client.oracle(index, labels) & keep
        fields = {"y": labels, "high": high}
        if h["client_batches"] == "masked":
            fields["keep"] = keep
        else:
            index, fields = index[keep], {name: values[keep] for name, values in fields.items()}
        views = {"strong": "strong"} | ({"weak": "weak"} if h["kl_target"] == "weak" else {})
        return {"unlabelled": self.fixed(index, views, **fields)}

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """L_a alone: mean cross-entropy over the selected samples of the batch."""
        if "keep" not in samples:
            return super().unlabelled_loss(samples)
        losses = F.cross_entropy(self(samples["strong"]), samples["y"], reduction="none")
        return masked_mean(losses, samples["keep"])

    def local_step(self, batch: Batch, batch_idx: int, optimizer: Any) -> None:
        """A step with the consistency term on pseudo-labels, an ordinary one elsewhere."""
        if not self.hparams["sacr"] or "high" not in batch.get("unlabelled", {}):
            return super().local_step(batch, batch_idx, optimizer)
        for parameter, gradient in self.sacr_gradients(batch).items():
            ops.set_gradient(parameter, gradient)
        self.clip(self.model.parameters())
        optimizer.step()

    def sacr_gradients(self, batch: Batch) -> dict[nn.Parameter, Tensor]:
        """``w_a grad L_a(W) + w_cs grad L_cs(W*)``; the target, L_p and L_a share one forward pass at W."""
        h, samples = self.hparams, batch["unlabelled"]
        images, y, high = samples["strong"], samples["y"], samples["high"]
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        logits = self.logits_at(None, images)
        losses = F.cross_entropy(logits, y, reduction="none")
        nearby = self.displaced(parameters, gradients(masked_mean(losses, high), parameters, retain_graph=True))
        counts = samples.get("keep", torch.ones_like(high))
        used = losses * (counts & ~high if h["sam_mode"] == "replace" else counts)
        loss = h["lambda_u"] * used.sum() / counts.sum().clamp_min(1)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self.logits_at(None, batch["labelled"]["x"]), batch["labelled"]["y"])
        if h["cs_grad"] == "original":
            with torch.no_grad():
                target = self.logits_at(nearby, images)
            consistency = self.consistency(samples, target, logits)
            total = gradients(loss + h["w_cs"] * consistency, parameters)
        else:
            own = gradients(loss, parameters)
            leaves = {name: value.requires_grad_() for name, value in nearby.items()}
            with torch.no_grad():
                target = logits if h["kl_target"] == "strong" else self.logits_at(None, samples["weak"])
            consistency = self.consistency(samples, target, self.logits_at(leaves, images))
            pulled = gradients(h["w_cs"] * consistency, leaves)
            total = own | {name: own[name] + slope if name in own else slope for name, slope in pulled.items()}
        self.log("loss", (loss + h["w_cs"] * consistency).detach())
        self.log("loss_cs", consistency.detach())
        return {parameters[name]: gradient for name, gradient in total.items()}

    def logits_at(self, weights: dict[str, Tensor] | None, images: Tensor) -> Tensor:
        """Logits ``[B, C]``, float32 or wider, of the network with other weights (by name), or with its own."""
        with self.autocast():
            logits: Tensor = self.model(images) if weights is None else functional_call(self.model, weights, (images,))
        return ops.wide(logits)

    def displaced(self, parameters: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``W* = W + eps`` without history."""
        h, at = self.hparams, {name: p.detach() for name, p in parameters.items()}
        if h["perturbation"] == "none":
            return {name: value.clone() for name, value in at.items()}
        asam = h["perturbation"] == "asam"
        eps = perturb.asam(at, slopes, h["rho"], h["eta"]) if asam else perturb.sam(at, slopes, h["rho"])
        return {name: value + eps[name] if name in eps else value.clone() for name, value in at.items()}

    def consistency(self, samples: Mapping[str, Tensor], target: Tensor, logits: Tensor) -> Tensor:
        """L_cs: KL(target || prediction) over the masked samples (Eq. 13), or their cross-entropy (``sam_mode``)."""
        h, mask = self.hparams, samples["high"]
        if h["sam_mode"]:
            return masked_mean(F.cross_entropy(logits, samples["y"], reduction="none"), mask)
        if not h["cs_mask"]:
            mask = torch.ones_like(mask)
        logs = target.detach().log_softmax(dim=1), logits.log_softmax(dim=1)
        divergence = (logs[0].exp() * (logs[0] - logs[1])).sum(dim=1)
        return masked_mean(divergence, mask) if h["cs_mean"] == "masked" else (divergence * mask).mean()

    def client_finish(self, client: Site) -> Upload | None:
        """The model and, for LSAA, the client's mean confidence."""
        upload = super().client_finish(client)
        if upload is not None and self.hparams["aggregation"] == "lsaa":
            upload.stats["tau"] = self.tau
        return upload

    def weights(self, uploads: Sequence[Upload]) -> list[float]:
        """LSAA, unless switched off."""
        if self.hparams["aggregation"] != "lsaa":
            return super().weights(uploads)
        return lsaa_weights([float(u.stats["tau"]) for u in uploads])


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


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values ``[B]`` where the mask is set; 0, with gradient 0, where it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def gradients(loss: Tensor, at: Mapping[str, Tensor], retain_graph: bool = False) -> dict[str, Tensor]:
    """Gradient of the loss with respect to tensors by name; those that it does not depend on have none."""
    found = torch.autograd.grad(loss, list(at.values()), retain_graph=retain_graph, allow_unused=True)
    return {name: gradient for name, gradient in zip(at, found, strict=True) if gradient is not None}
