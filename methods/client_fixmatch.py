"""FixMatch at clients that hold labels: the local or the received model labels, in every step."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from methods.parts.joint_steps import JointSteps
from methods.parts.tensors import one_hot


class ClientFixMatch(JointSteps):
    """FedAvg or FedProx with FixMatch, the baselines of SAGE (CVPR 2025) and ProxyFL (CVPR 2026, Table 1).

    Who labels is the difference between two rows: with global pseudo-labels (GPL) it is the received model, which rests
    for the whole visit; with local ones (LPL) it is the model in training. An image counts where that model's largest
    probability reaches ``threshold``::

        t_i = onehot(argmax p(weak_i)),  m_i = 1[max p(weak_i) >= threshold]

    Other rows of these papers are this method, too: ``lambda_u=0`` is FedAvg on labels, and ``prox_mu`` makes FedProx
    of each. FedDure's FixMatch is ``LocalSSL``, that of (FL)2 and FedDB is ``FixMatch``.

    | hyperparameter | paper (ProxyFL) | released code | here |
    |---|---|---|---|
    | ``pseudo_labels``: who labels | rows LPL and GPL | neither row is released | ``global`` |
    | ``threshold`` | 0.95 | 0.95, inclusive (SAGE, ProxyFL) | 0.95, inclusive |
    | ``lambda_u`` | 1 | 1 | 1 |
    | what the unlabelled loss is a mean over | confident images | all | all |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 | as the code |
    | steps per local epoch | not given | floor(unlabelled images / 128) | as the code |
    | ``local_epochs`` | 5 | 5 | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none | as the code |
    | optimiser state | not given | one for all clients and rounds | one per client (``share_momentum``: as the code) |
    | ``prox_mu`` (FedProx) | not given | 0.001, unused | 0 |
    | aggregation | share of the data | 2000 n_l + n_u, equal at all clients | sizes |

    The rest is ``JointSteps``'.

    Args:
        pseudo_labels: who makes them: the ``local`` model as it stands, or the ``global`` one as it was received.
    """

    def __init__(self, model: nn.Module, pseudo_labels: Literal["local", "global"] = "global", **base: Any) -> None:
        super().__init__(model, **base)

    def targets(self, samples: Mapping[str, Tensor], local: Tensor) -> tuple[Tensor, Tensor]:
        """The labelling model's classes where it is confident."""
        h = self.hparams
        p = local if h.pseudo_labels == "local" else self.received_predicts(samples["weak"])
        confidence, labels = p.max(dim=1)
        return one_hot(labels, p.shape[1]).to(p.dtype), confidence >= h.threshold
