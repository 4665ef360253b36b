"""FixMatch at clients that hold labels, with pseudo-labels from the local or the received model in every step."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from methods.parts.joint_steps import JointSteps
from methods.parts.tensors import one_hot


class ClientFixMatch(JointSteps):
    """FedAvg or FedProx with FixMatch, the baselines of SAGE (CVPR 2025) and ProxyFL (CVPR 2026, Table 1).

    The two rows differ in who makes the pseudo-labels: with global pseudo-labels (GPL) the received model, which is
    fixed for the whole visit; with local ones (LPL) the model being trained. An image is used if that model's largest
    probability reaches ``threshold``::

        t_i = onehot(argmax p(weak_i)),  m_i = 1[max p(weak_i) >= threshold]

    Other rows of these papers use this method too: ``lambda_u=0`` is FedAvg on labels, and ``prox_mu`` turns each into
    FedProx. FedDure's FixMatch is ``LocalSSL``; that of (FL)2 and FedDB is ``FixMatch``.

    | hyperparameter | paper (ProxyFL) | released code | here |
    |---|---|---|---|
    | ``pseudo_labels``: labelling model | rows LPL and GPL | neither row is released | ``global`` |
    | ``threshold`` | 0.95 | 0.95, inclusive (SAGE, ProxyFL) | 0.95, inclusive |
    | ``lambda_u`` | 1 | 1 | 1 |
    | unlabelled loss is a mean over | confident images | all | all |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 | as released |
    | steps per local epoch | not given | floor(unlabelled images / 128) | as released |
    | ``local_epochs`` | 5 | 5 | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none | as released |
    | optimiser state | not given | one for all clients and rounds | one per client (``share_momentum``: as released) |
    | ``prox_mu`` (FedProx) | not given | 0.001, unused | 0 |
    | aggregation | share of the data | 2000 n_l + n_l + n_u, nearly equal | sizes |

    Everything else follows ``JointSteps``.

    Args:
        pseudo_labels: which model makes them: the ``local`` one being trained, or the ``global`` one as received.
    """

    def __init__(self, model: nn.Module, pseudo_labels: Literal["local", "global"] = "global", **base: Any) -> None:
        super().__init__(model, **base)

    def targets(self, samples: Mapping[str, Tensor], local: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labelling model's classes, and where it is confident."""
        h = self.hparams
        p = local if h.pseudo_labels == "local" else self.received_predicts(samples["weak"])
        confidence, labels = p.max(dim=1)
        return one_hot(labels, p.shape[1]).to(p.dtype), confidence >= h.threshold
