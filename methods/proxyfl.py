"""ProxyFL: classifier rows as proxies of the classes, tuned at the server and learnt from by undecided images."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, Site, StepNumber, Upload, Visit
from methods.parts.joint_steps import JointSteps
from methods.parts.losses import smoothed_divergence
from methods.parts.tensors import one_hot, wide

KEEP = 0.99  # of the prior, per round
ROWS = 4  # proxies per tuning step
FARTHEST = 100.0
LEAST = 1e-6


class ProxyFL(JointSteps):
    """ProxyFL: a proxy-guided framework for federated semi-supervised learning (Chen and Wang, CVPR 2026).

    The proxy w_c of a class is its row of the classifier. P is the prediction of the received model, which rests for
    the visit; an image is decided where P or the model in training is confident.

    Client: FixMatch on decided images with t_i = onehot(argmax P_i), and indecisive-categories proxy learning (ICPL),
    ``L = L_x + lambda_u (L_u + icpl_weight L_c)``. Each row z of the labelled, weak and strong views has a set of
    classes: argmax P if it is decided, all c with P_c > prior_c if not. It is drawn to its classes' proxies, and away
    from rows whose set has no class in common::

        pos_i = z_i . w_argmax (decided),  z_i . sum_{c in set} P_c w_c (undecided)
        L_c = mean_i -log( exp(pos_i) / (exp(pos_i) + sum_j exp(z_i . z_j)) )   over weak and strong views

    where z and w come from two linear heads, at length 1. Server: the mean of the models; global proxy tuning (GPT)
    moves its classifier rows, so that the clients' rows of a class are nearer to its proxy, by a margin, than to others;
    and the prior follows the classes that clients have met in their last local epoch.

    The paper's own formulas are ``AsPrinted`` in ``methods/ablations/proxyfl.py``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | who is decided | P above 0.95 | P or the local model from 0.95 on; labelled images: P | as the code |
    | label of an image that only the local model decides | - | argmax P | as the code |
    | set of a labelled image | its label | by P, as if it had none | as the code |
    | weights of an undecided image's proxies | local logits | P | as the code |
    | features and proxies | as they are | two linear heads, length 1; averaged, too | as the code |
    | rows that are drawn; mean | weak; decided and undecided apart | weak and strong; all | as the code |
    | rows that push | disjoint sets | disjoint sets and z_i . z_j >= 1e-6 | as the code |
    | L_u | KL(p, t), mean over decided | KL(t, p), mean over all | as the code |
    | ``icpl_weight`` | 1 | 1 | 1; 0: no ICPL, no heads |
    | prior | mean of the clients' shares of predicted classes, last round | 0.99 old + 0.01 pooled counts | as the code |
    | ``gpt_lr``; rows per step | 0.005, not given | 0.005, 4 (options 0.01, 10) | 0.005, 4 |
    | ``gpt_epochs`` | 100 (CIFAR-100: 10) | 30000 over the rounds: 100 (CIFAR-100: 10) | 100, suite; 0: no GPT |
    | margin | none | the widest gap to a nearest proxy, at most 100 | as the code |
    | ``threshold``, ``lambda_u`` | 0.95, 1 | 0.95 inclusive, 1 | as the code |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 | as the code |
    | ``local_epochs``, of floor(unlabelled images / 128) steps | 5 | 5 | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none | as the code |
    | optimiser state | not given | one for all clients and rounds | one per client (``share_momentum``: as the code) |
    | aggregation | share of the data | 2000 n_l + n_u, equal at all clients | sizes |

    The rest is ``JointSteps``'. Features are what the network's last linear layer gets.

    Args:
        icpl_weight: weight of L_c within the unlabelled loss.
        gpt_epochs: passes over the clients' proxies per round.
        gpt_lr: learning rate of GPT.
    """

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        icpl_weight: float = 1.0,
        gpt_epochs: int = 100,
        gpt_lr: float = 0.005,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
