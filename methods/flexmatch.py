"""FlexMatch at clients: class-wise thresholds that follow what each client has learnt of each class."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.base import SiteData
from methods.base import StepNumber, Stream
from methods.parts.joint_steps import JointSteps
from methods.parts.tensors import one_hot


class FlexMatch(JointSteps):
    """FedAvg with FlexMatch (Zhang et al., NeurIPS 2021), a baseline of SAGE (CVPR 2025) and ProxyFL (CVPR 2026).

    A client remembers of each of its unlabelled images the class that the model in training was last sure of: s = -1 at
    first, then the class of a weak view whose probability reached ``threshold``. With sigma_c, the number of images
    of class c, a class is learnt to the degree beta_c, and an image counts where it reaches its class's threshold::

        beta_c = sigma_c / max(max_k sigma_k, number of images with s = -1)
        t_i = onehot(argmax p(weak_i)),  m_i = 1[max p(weak_i) >= threshold * beta / (2 - beta)]

    beta is that before the step; the step then updates s, and beta after it. A class that was never met has the
    threshold 0. While s is the same for all images (one class, or none), beta keeps its value, which is 0 at first.

    | hyperparameter | paper (ProxyFL) | released code | here |
    |---|---|---|---|
    | ``threshold`` | 0.95 | not released; 0.95 (FlexMatch's) | 0.95 |
    | beta: warm-up, convex map | not given | on, on (FlexMatch's) | as released |
    | beta while all s are equal | not given | stays (FlexMatch's) | as released |
    | s and beta between visits | not given | not released | stay with the client |
    | ``lambda_u`` | 1 | not released | 1 |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 (SAGE) | as released |
    | ``local_epochs``, of floor(unlabelled images / 128) steps | 5 | 5 (SAGE) | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none (SAGE) | the same |
    | optimiser state | not given | one for all (SAGE) | one per client (``share_momentum``: as released) |

    The ablation ``methods.ablations.flexmatch.Forgetful`` resets s and beta in every visit. Everything else follows
    ``JointSteps``.
    """

    scopes = {**JointSteps.scopes, "status": "personal", "beta": "personal"}
    contract_args = {**JointSteps.contract_args, "lr": 0.002}  # at first every pseudo-label counts
    status: Tensor
    beta: Tensor
    unlabelled = StepNumber()

    def __init__(self, model: nn.Module, num_classes: int, num_images: int, **base: Any) -> None:
        super().__init__(model, **base)
        self.register_buffer("status", torch.full((num_images,), -1, dtype=torch.int16))
        self.register_buffer("beta", torch.zeros(num_classes))

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """As in ``JointSteps``; note how many unlabelled images there are."""
        self.unlabelled = len(data.unlabelled)
        return super().streams(data)

    def targets(self, samples: Mapping[str, Tensor], local: Tensor) -> tuple[Tensor, Tensor]:
        """The local model's classes where they reach the thresholds of this moment; then s and beta move."""
        confidence, labels = local.max(dim=1)
        mask = confidence >= flexible(self.hparams.threshold, self.beta.to(local.dtype))[labels]
        index, sure = samples["index"], confidence >= self.hparams.threshold
        self.status[index] = torch.where(sure, labels.to(self.status.dtype), self.status[index])
        counts = one_hot(self.status, len(self.beta)).sum(dim=0)
        self.beta.copy_(learning_status(counts, self.unlabelled, self.beta))
        return one_hot(labels, local.shape[1]).to(local.dtype), mask


def learning_status(counts: Tensor, images: Tensor | float, before: Tensor) -> Tensor:
    """beta ``[C]``: how far each class is learnt (FlexMatch, Eqs. 6, 11); the images of no class count like one class.

    Args:
        counts: sigma ``[C]``, images whose last sure prediction is of the class.
        images: number of all images.
        before: beta so far, kept while all images are of one class, or all of none.
    """
    most = torch.maximum(counts.max(), images - counts.sum())
    return torch.where(most >= images, before, counts / most.clamp_min(1))


def flexible(threshold: float, beta: Tensor) -> Tensor:
    """Thresholds ``[C]``: the convex map of beta times the threshold (FlexMatch, Eq. 12 with x / (2 - x))."""
    return threshold * beta / (2.0 - beta)
