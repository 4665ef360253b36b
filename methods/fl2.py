"""(FL)2: client-specific thresholds, sharpness-aware consistency, learning-status-aware aggregation."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from methods.base import Batch, Site, Stream, Upload
from methods.fixmatch import FixMatch
from methods.parts.tensors import divergence, masked_mean, set_gradient, wide

Tensors = Mapping[str, Tensor]


class FL2(FixMatch):
    """(FL)2: overcoming few labels in federated semi-supervised learning (Lee et al., NeurIPS 2024).

    CAT: a client keeps pseudo-labels above its own class-wise thresholds (Eqs. 7-10). SACR: on samples above
    ``threshold`` the prediction must not change at the worst nearby weights ``W* = W + eps`` (Eqs. 11-14):

    * L_p, the pseudo-label loss of the confident samples, gives the direction of steepest ascent (Eq. 11);
    * eps is a step of length rho in that direction (Eq. 12);
    * L_cs is the KL divergence between the predictions at W and at W* (Eq. 13);
    * the model descends along ``w_a grad L_a(W) + w_cs grad L_cs(W*)`` (Eq. 14); L_a is the loss of all kept samples.

    LSAA: less confident clients get more weight (Eq. 15). The variants of Fig. 4, and the paper's version where the
    released code differs, are ablations in ``methods.ablations.fl2``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``selection``, ``w_cs``, ``aggregation`` | Table 2 | all on | ``adaptive``, 1, ``lsaa`` |
    | ``rho`` | 0.1 (CIFAR-100: 1); 0.5 in App. C | 0.1 | 0.1, in the suite 1 on CIFAR-100 |
    | perturbation | Eq. 12 is SAM, the text ASAM | ASAM, eta 0.01 | as released |
    | ``threshold`` (tau_f), thresholds | 0.95, exclusive | 0.95, inclusive | 0.95, inclusive |
    | ``lambda_u`` (w_a), ``w_cs`` | 1, 1 | 1, 1 | 1, 1 |
    | gradient of L_cs | at W, both sides | at W*, target fixed | as released |
    | samples of L_cs, mean | all, none | high confidence, over the batch | as released |
    | batches | mask inside the batch | client's set filtered first | as released |
    | ``server_pretrain`` (calls) | absent | 10 (CIFAR-10), 2048 steps (SVHN) | 10, SVHN in the suite as released |
    | ``lr_schedule`` | cosine | constant: never advanced | ``cosine`` |
    | ``server_momentum`` | 0.5 | 0.5 | 0.5 |
    | ``lr``, ``momentum``, ``nesterov``, ``weight_decay`` | 0.03, 0.9, yes, 5e-4 | the same | the same |
    | ``batch_size``, ``local_epochs`` | 32, 5 | the same | the same |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 | the same | the same |
    | ``clip_norm`` | not given | 1, before weight decay | 1 |
    | fairness loss | named, no formula | absent | absent |

    Args:
        model: the network.
        selection: ``adaptive`` thresholds (CAT), or ``fixed`` at ``threshold`` (FixMatch).
        rho: size of the perturbation.
        w_cs: weight of the consistency term; 0: no SACR.
        aggregation: ``lsaa``, or ``uniform``.
        server_pretrain: see ``LabelsAtServer``.
    """

    scopes = {**FixMatch.scopes, "tau": "local"}
    tau: Tensor

    def __init__(
        self,
        model: nn.Module,
        selection: Literal["adaptive", "fixed"] = "adaptive",
        rho: float = 0.1,
        w_cs: float = 1.0,
        aggregation: Literal["lsaa", "uniform"] = "lsaa",
        server_pretrain: int = 10,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.automatic_optimization = False
        self.register_buffer("tau", torch.ones(()))  # a client without pseudo-labels counts as certain

    def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return pseudo-labels, and which are used: those that reach their class's threshold."""
        tau, thresholds = adaptive_thresholds(probabilities)
        self.tau.copy_(tau)
        if self.hparams.selection == "fixed":
            return super().select(probabilities)
        confidence, labels = probabilities.max(dim=1)
        return labels, confidence >= thresholds[labels]

    def pseudo_labelled(self, client: Site, p: Tensor, labels: Tensor, keep: Tensor) -> dict[str, Stream]:
        """Return the selected samples with labels ``y`` and the mask ``high`` of the consistency term."""
        self.log("tau", self.tau)
        streams = super().pseudo_labelled(client, p, labels, keep)
        high = self.consistent(client, labels, p)
        streams["unlabelled"].fields = {"y": labels[keep], "high": high[keep]}
        return streams

    def consistent(self, client: Site, labels: Tensor, probabilities: Tensor) -> Tensor:
        """Select the samples of the perturbation and the consistency term, bool ``[n]``: the highly confident ones."""
        return probabilities.amax(dim=1) >= self.hparams.threshold

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take one step along the gradient of Eq. 14, or of the supervised loss if there are no pseudo-labels."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        if self.hparams.w_cs and "unlabelled" in batch:
            loss = self.sharpness_aware_consistency(batch)
        else:
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        self.log("loss", loss.detach())

    def sharpness_aware_consistency(self, batch: Batch) -> Tensor:
        """Set the gradient to ``w_a grad L_a(W) + w_cs grad L_cs(W*)`` (Eq. 14) and return the loss.

        The target of L_cs, L_p and L_a share one forward pass at W.
        """
        h, samples = self.hparams, batch["unlabelled"]
        x, y, high = samples["strong"], samples["y"], samples["high"]
        w = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        logits = wide(self(x))
        losses = F.cross_entropy(logits, y, reduction="none")

        loss_p = masked_mean(losses, high)  # Eq. 11
        w_star = self.perturbed(w, gradients(loss_p, w, retain_graph=True), h.rho)  # Eq. 12
        loss = h.lambda_u * self.adaptive_loss(losses, samples) + self.labelled_loss(batch)
        logits_star = wide(functional_call(self.model, w_star, (x,)))
        loss_cs = self.consistency(samples, logits, logits_star)  # Eq. 13
        for name, slope in self.slopes(loss, h.w_cs * loss_cs, w, w_star).items():  # Eq. 14
            set_gradient(w[name], slope)
        self.log("loss_cs", loss_cs.detach())
        return loss.detach() + h.w_cs * loss_cs.detach()

    def perturbed(self, weights: Tensors, slopes: Tensors, rho: float) -> dict[str, Tensor]:
        """Return ``W* = W + eps`` as new leaf tensors, with eps along the gradient."""
        return moved(weights, asam(weights, slopes, rho))

    def slopes(self, loss: Tensor, loss_cs: Tensor, w: Tensors, w_star: Tensors) -> dict[str, Tensor]:
        """Gradient of ``loss`` at W plus that of ``loss_cs`` at W*."""
        at_w, at_star = gradients(loss, w), gradients(loss_cs, w_star)
        return {name: slope + at_star[name] for name, slope in at_w.items()}

    def adaptive_loss(self, losses: Tensor, samples: Tensors) -> Tensor:
        """L_a, from the ``losses [B]`` of the samples."""
        return losses.mean()

    def labelled_loss(self, batch: Batch) -> Tensor | float:
        """Cross-entropy on the client's own labels, if it has any."""
        if "labelled" not in batch:
            return 0.0
        return F.cross_entropy(wide(self(batch["labelled"]["x"])), batch["labelled"]["y"])

    def consistency(self, samples: Tensors, logits: Tensor, logits_star: Tensor) -> Tensor:
        """L_cs: KL(prediction at W || prediction at W*) of the highly confident samples, over the batch size."""
        return (divergence(logits.detach(), logits_star) * samples["high"]).mean()

    def make_upload(self, client: Site) -> Upload | None:
        """Return the model and, for LSAA, the client's mean confidence."""
        upload = super().make_upload(client)
        if upload is not None and self.hparams.aggregation == "lsaa":
            upload.stats["tau"] = self.tau.clone()
        return upload

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Return LSAA's weights, or uniform ones."""
        if self.hparams.aggregation != "lsaa":
            return super().weights(uploads)
        return lsaa_weights(torch.stack([upload.stats["tau"] for upload in uploads]).tolist())


def adaptive_thresholds(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """CAT: a client's mean confidence tau and its class thresholds ``tau p(c) / max p`` (Eqs. 7-9).

    The ratio is taken first, so that the most predicted class has exactly tau and a single sample reaches its
    threshold.

    Args:
        probabilities: ``[n, C]`` predictions on all of the client's samples, n > 0.

    Returns:
        tau, a scalar, and the thresholds ``[C]``.
    """
    confidence, mean = probabilities.amax(dim=1), probabilities.mean(dim=0)
    tau = confidence.mean().clamp(max=confidence.max())  # the mean of equal numbers may be rounded up
    return tau, tau * (mean / mean.max())


def lsaa_weights(taus: Sequence[float]) -> list[float]:
    """LSAA: ``(1 - tau_k) / sum (1 - tau_j)`` (Eq. 15); uniform if every tau is 1 (released code: 0 / 0)."""
    doubts = [max(1.0 - tau, 0.0) for tau in taus]
    total = sum(doubts)
    return [1.0 / len(taus)] * len(taus) if total == 0 else [doubt / total for doubt in doubts]


def gradients(loss: Tensor, weights: Tensors, retain_graph: bool = False) -> dict[str, Tensor]:
    """Gradients of the loss by tensor name; tensors that it does not depend on are left out."""
    slopes = torch.autograd.grad(loss, list(weights.values()), retain_graph=retain_graph, allow_unused=True)
    return {name: slope for name, slope in zip(weights, slopes, strict=True) if slope is not None}


def asam(parameters: Tensors, gradients: Tensors, rho: float, eta: float = 0.01) -> dict[str, Tensor]:
    """eps: ``rho s^2 g / (|s g| + 1e-16)`` with ``s = |w| + eta`` (Kwon et al., ICML 2021; (FL)2, released code).

    Every parameter with ``weight`` in its name is scaled, including that of batch norm; for all others s = 1. A zero
    gradient gives eps = 0. The inputs are not changed.

    Args:
        parameters: tensors by name; only those with a gradient are perturbed.
        gradients: gradient of the loss by the same names.
        rho: radius of the ball, relative to the weights.
        eta: added to the weights' magnitude, so that zero weights are perturbed too.
    """
    scales = {
        name: weight.detach().abs() + eta if "weight" in name else torch.ones_like(weight)
        for name, weight in parameters.items()
        if name in gradients
    }
    scaled = {name: scale * gradients[name] for name, scale in scales.items()}
    steps = {name: scale * scaled[name] for name, scale in scales.items()}
    factor = rho / (joint_norm(list(scaled.values())) + 1e-16)
    return {name: (wide(step) * factor).to(step.dtype) for name, step in steps.items()}


def joint_norm(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm over all tensors (at least one), in float32 or wider."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(wide(t)) for t in tensors]))


def moved(weights: Tensors, eps: Tensors) -> dict[str, Tensor]:
    """Return ``W + eps`` as new leaf tensors by name; copies where eps has no entry."""
    w_star = {name: weight + eps[name] if name in eps else weight.clone() for name, weight in weights.items()}
    return {name: weight.detach().requires_grad_() for name, weight in w_star.items()}
