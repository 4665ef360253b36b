"""SAGE: where the local model is confident, its label and the global model's are mixed by how far the two are apart."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from methods.parts.joint_steps import JointSteps
from methods.parts.tensors import one_hot

KAPPA = 13.862943649291992  # ln 2 / 0.05 in single precision: a gap of 0.05 halves the local label's weight
LEAST = 1e-6


class SAGE(JointSteps):
    """Mind the gap: confidence discrepancy can guide FSSL across pseudo-mismatch (Liu et al., CVPR 2025).

    Local models are overconfident, global ones undecided. The model in training gives an image the confidence c_l and
    the class y_l, the received model, which rests, c_g and y_g. Collaborative pseudo-labels: an image counts where
    either is confident. Confidence-driven soft correction: the local label weighs the less, the wider the gap::

        m_i = 1[c_l >= threshold or c_g >= threshold]
        lambda_i = exp(-kappa |c_l - c_g|)
        t_i = lambda_i onehot(y_l) + (1 - lambda_i) onehot(y_g)   if c_l >= threshold
        t_i = onehot(y_g)                                         otherwise

    The paper's text was not available to us: the table's first column is what ProxyFL (CVPR 2026) says of SAGE.

    | hyperparameter | paper (as ProxyFL has it) | released code | here |
    |---|---|---|---|
    | ``kappa`` | not available | ln 2 / 0.05; an option 0.5 is not read | ln 2 / 0.05 |
    | gap and lambda_i | not available | clipped to [1e-6, 1], the gap after adding 1e-6 | as the code |
    | ``threshold`` | 0.95 | 0.95, inclusive | 0.95, inclusive |
    | ``lambda_u`` | not available | 1 | 1 |
    | what the unlabelled loss is a mean over | not available | all images | all |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 | as the code |
    | ``local_epochs``, of floor(unlabelled images / 128) steps | 5 | 5 | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none | as the code |
    | optimiser state | not given | one for all clients and rounds | one per client (``share_momentum``: as the code) |
    | aggregation | share of the data | 2000 n_l + n_u, equal at all clients | sizes |

    The rest is ``JointSteps``'.

    Args:
        kappa: how fast the local label's weight falls with the gap.
    """

    def __init__(self, model: nn.Module, kappa: float = KAPPA, **base: Any) -> None:
        super().__init__(model, **base)
        self.require("from 0", kappa=kappa >= 0)

    def targets(self, samples: Mapping[str, Tensor], local: Tensor) -> tuple[Tensor, Tensor]:
        """Corrected labels, and where either model is confident."""
        c_l, y_l = local.max(dim=1)
        c_g, y_g = self.received_predicts(samples["weak"]).max(dim=1)
        m_l, m_g = c_l >= self.hparams.threshold, c_g >= self.hparams.threshold
        weight = soft_correction(c_l, c_g, self.hparams.kappa) * m_l
        self.tally("sage/weight", weight.mean())
        t_l, t_g = (one_hot(labels, local.shape[1]) for labels in (y_l, y_g))
        return weight[:, None] * t_l + (1.0 - weight[:, None]) * t_g, m_l | m_g


def soft_correction(c_l: Tensor, c_g: Tensor, kappa: float = KAPPA) -> Tensor:
    """lambda: what the local label weighs, from the two models' confidences, ``[N]`` each."""
    gap = ((c_l - c_g).abs() + LEAST).clamp(LEAST, 1.0)
    return torch.exp(-kappa * gap).clamp(LEAST, 1.0)
