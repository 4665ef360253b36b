"""SAGE: confident local pseudo-labels are mixed with global ones according to the two models' confidence gap."""

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

    Local models are overconfident, global ones undecided. The model being trained gives an image confidence c_l and
    class y_l; the received model, which is fixed, gives c_g and y_g. Collaborative pseudo-labels: an image is used if
    either model is confident. Confidence-driven soft correction: the wider the gap, the less the local label weighs::

        m_i = 1[c_l >= threshold or c_g >= threshold]
        lambda_i = exp(-kappa |c_l - c_g|)
        t_i = lambda_i onehot(y_l) + (1 - lambda_i) onehot(y_g)   if c_l >= threshold
        t_i = onehot(y_g)                                         otherwise

    The paper's text was not available to us: the table's first column is what ProxyFL (CVPR 2026) reports about SAGE.

    | hyperparameter | paper (according to ProxyFL) | released code | here |
    |---|---|---|---|
    | ``kappa`` | not available | ln 2 / 0.05; an option 0.5 is ignored | ln 2 / 0.05 |
    | gap and lambda_i | not available | clipped to [1e-6, 1], the gap plus 1e-6 | as released |
    | ``threshold`` | 0.95 | 0.95, inclusive | 0.95, inclusive |
    | ``lambda_u`` | not available | 1 | 1 |
    | unlabelled loss is a mean over | not available | all images | all |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 | as released |
    | ``local_epochs``, of floor(unlabelled images / 128) steps | 5 | 5 | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none | as released |
    | optimiser state | not given | one for all clients and rounds | one per client (``share_momentum``: as released) |
    | aggregation | share of the data | 2000 n_l + n_l + n_u, nearly equal | sizes |

    Everything else follows ``JointSteps``.

    Args:
        kappa: decay of the local label's weight with the gap.
    """

    def __init__(self, model: nn.Module, kappa: float = KAPPA, **base: Any) -> None:
        super().__init__(model, **base)

    def targets(self, samples: Mapping[str, Tensor], local: Tensor) -> tuple[Tensor, Tensor]:
        """Return corrected labels, and where either model is confident."""
        c_l, y_l = local.max(dim=1)
        c_g, y_g = self.received_predicts(samples["weak"]).max(dim=1)
        m_l, m_g = c_l >= self.hparams.threshold, c_g >= self.hparams.threshold
        weight = soft_correction(c_l, c_g, self.hparams.kappa) * m_l
        self.tally("sage/weight", weight.mean())
        t_l, t_g = one_hot(y_l, local.shape[1]), one_hot(y_g, local.shape[1])
        return weight[:, None] * t_l + (1.0 - weight[:, None]) * t_g, m_l | m_g


def soft_correction(c_l: Tensor, c_g: Tensor, kappa: float = KAPPA) -> Tensor:
    """lambda: the local label's weight, from the two models' confidences, ``[N]`` each."""
    gap = ((c_l - c_g).abs() + LEAST).clamp(LEAST, 1.0)
    return torch.exp(-kappa * gap).clamp(LEAST, 1.0)
