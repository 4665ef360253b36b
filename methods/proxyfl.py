"""ProxyFL: classifier rows as proxies of the classes, tuned at the server and used as targets for undecided images."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from methods.base import Batch, Site, StepNumber, Upload, Visit
from methods.models.backbone import Backbone
from methods.parts.joint_steps import JointSteps
from methods.parts.tensors import one_hot, smoothed_divergence

KEEP = 0.99  # decay of the prior per round
ROWS = 4  # proxies per tuning step
FARTHEST = 100.0
LEAST = 1e-6


class ProxyFL(JointSteps):
    """ProxyFL: a proxy-guided framework for federated semi-supervised learning (Chen and Wang, CVPR 2026).

    The proxy w_c of class c is its row of the classifier. P is the prediction of the received model, which is fixed for
    the visit. An image is decided if P or the model being trained is confident.

    Client: FixMatch on decided images with t_i = onehot(argmax P_i), plus indecisive-categories proxy learning (ICPL),
    ``L = L_x + lambda_u (L_u + icpl_weight L_c)``. Each row z of the labelled, weak and strong views has a set of
    classes: argmax P if decided, otherwise all c with P_c > prior_c. It is pulled towards its classes' proxies and
    pushed away from rows whose set has no class in common with its own::

        pos_i = z_i . w_argmax (decided),  z_i . sum_{c in set} P_c w_c (undecided)
        L_c = mean_i -log( exp(pos_i) / (exp(pos_i) + sum_j exp(z_i . z_j)) )   over weak and strong views

    where z and w come from two linear heads and have length 1. Server: it averages the models; global proxy tuning
    (GPT) then moves the average's classifier rows so that the clients' rows of a class are nearer to its proxy, by a
    margin, than to others; and the prior moves towards the classes that clients counted in their last local epoch.

    The paper's printed formulas are ``AsPrinted`` in ``methods/ablations/proxyfl.py``, next to ``ReleasedWeights``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | who is decided | P above 0.95 | P or the local model from 0.95 on; labelled images: P | as released |
    | label of an image decided by the local model only | - | argmax P | as released |
    | compared with the prior | global logits | P | as released |
    | set of a labelled image | its label | by P, ignoring its label | as released |
    | weights of an undecided image's proxies | local logits | P | as released |
    | features and proxies | as they are | two linear heads, length 1; also averaged | as released |
    | rows that are pulled; mean | weak; decided and undecided apart | weak and strong; all | as released |
    | rows that push away | disjoint sets | disjoint sets and z_i . z_j >= 1e-6 | as released |
    | L_u | KL(p, t), mean over decided | KL(t, p), mean over all | as released |
    | ``icpl_weight`` | 1 | 1 | 1; 0: no ICPL, no heads |
    | prior | mean of the clients' shares, last round | 0.99 old + 0.01 pooled counts | as released |
    | ``gpt_lr``; rows per step | 0.005, not given | 0.005, 4 (options 0.01, 10) | 0.005, 4 |
    | ``gpt_epochs`` | 100 (CIFAR-100: 10) | the same (total / rounds) | 100, in the suite as released (0: no GPT) |
    | margin | none | largest distance to a nearest proxy, at most 100 | as released |
    | ``threshold``, ``lambda_u`` | 0.95, 1 | 0.95 inclusive, 1 | as released |
    | ``batch_size``, ``unlabelled_bs`` | 128, not given | 128, 256 | as released |
    | ``local_epochs``, of floor(unlabelled images / 128) steps | 5 | 5 | 5 |
    | ``lr``, ``momentum``, ``weight_decay``, ``clip_norm`` | 0.1, not given | 0.1, 0.9, 1e-4, none | as released |
    | optimiser state | not given | one for all clients and rounds | one per client (``share_momentum``: as released) |
    | aggregation | share of the data | 2000 n_l + n_l + n_u, nearly equal | sizes (``ReleasedWeights``: as released) |

    Everything else follows ``JointSteps``. Features are the input of the network's last linear layer.

    Args:
        icpl_weight: weight of L_c within the unlabelled loss.
        gpt_epochs: passes over the clients' proxies per round.
        gpt_lr: learning rate of GPT.
    """

    scopes = {**JointSteps.scopes, "prior": "server", "counts": "local"}
    last_epoch = StepNumber()
    prior: Tensor
    counts: Tensor

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
        self.register_buffer("prior", torch.full((num_classes,), 1.0 / num_classes))
        self.register_buffer("counts", torch.zeros(num_classes))
        size = classifier(self.model).in_features
        self.feat_proj = nn.Linear(size, size) if self.hparams.icpl_weight else None
        self.proxy_proj = nn.Linear(size, size, bias=False) if self.hparams.icpl_weight else None

    def configure_optimizers(self) -> Any:
        """Return one optimiser for the network and the heads."""
        return self.make_optimizer([p for p in self.parameters() if p.requires_grad])

    # At a client.

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send the model and the prior."""
        return {**super().broadcast(server, visit), "prior": server["prior"]}

    def on_train_epoch_start(self) -> None:
        """Count classes in the last local epoch only."""
        self.last_epoch = float(self.trainer.current_epoch + 1 == self.trainer.max_epochs)

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return logits by field, and ``features [R, d]`` of all rows: labelled, weak, strong."""
        features: list[Tensor] = []
        with classifier(self.model).register_forward_pre_hook(lambda _, inputs: features.append(inputs[0])):
            out = super().outputs(batch)
        return {**out, "features": features[-1]}

    def unlabelled_loss(self, batch: Batch, out: Mapping[str, Tensor]) -> Tensor:
        """Return ``L_u + icpl_weight L_c``."""
        h, samples = self.hparams, batch["unlabelled"]
        local, p = out["weak"].detach().softmax(dim=1), self.received_predicts(samples["weak"])
        decided, labels = self.decided(local, p), p.argmax(dim=1)
        self.report_pseudo_labels(samples["index"], labels, decided)
        self.count(batch, labels, decided)
        targets = one_hot(labels, p.shape[1]).to(p.dtype)
        loss = self.mean_loss(smoothed_divergence(targets, out["strong"]), decided)  # L_u
        if h.icpl_weight:
            with torch.autocast(self.device.type, enabled=False):  # products are compared with 1e-6
                learnt = self.proxy_learning(batch, out, p, decided)  # L_c
            self.log("loss_icpl", learnt.detach())
            loss = loss + h.icpl_weight * learnt
        return loss

    def decided(self, local: Tensor, p: Tensor) -> Tensor:
        """Mark unlabelled images on which either model is confident, bool ``[N]``."""
        return torch.maximum(local.amax(dim=1), p.amax(dim=1)) >= self.hparams.threshold

    def mean_loss(self, losses: Tensor, decided: Tensor) -> Tensor:
        """L_u: mean over all images, where undecided ones count as 0."""
        return (decided * losses).mean()

    def count(self, batch: Batch, labels: Tensor, decided: Tensor) -> None:
        """Count the classes of labelled and decided images over the steps of the last epoch."""
        classes = len(self.counts)
        counts = (one_hot(labels, classes) & decided[:, None]).sum(dim=0)
        if "labelled" in batch:
            counts = counts + one_hot(batch["labelled"]["y"], classes).sum(dim=0)
        self.counts += self.last_epoch * counts

    def proxy_learning(self, batch: Batch, out: Mapping[str, Tensor], p: Tensor, decided: Tensor) -> Tensor:
        """L_c, where labelled rows only push others away.

        Args:
            batch: the batch.
            out: see ``outputs``.
            p: the received model's probabilities of the weak views, ``[N, C]``.
            decided: ``[N]``.
        """
        predictions, decisions = [p, p], [decided, decided]  # of the weak and the strong views
        if "labelled" in batch:
            p_x = self.received_predicts(batch["labelled"]["x"])
            predictions, decisions = [p_x, *predictions], [p_x.amax(dim=1) >= self.hparams.threshold, *decisions]
        p_rows, decided_rows = torch.cat(predictions), torch.cat(decisions)
        sets = class_sets(p_rows, decided_rows, self.prior)
        weights = torch.where(decided_rows[:, None], sets.to(p_rows.dtype), p_rows * sets)
        assert self.feat_proj is not None and self.proxy_proj is not None
        z, w = self.feat_proj(out["features"].to(self.dtype)), self.proxy_proj(classifier(self.model).weight)
        return icpl(F.normalize(z), F.normalize(w), weights, sets)[-2 * len(p) :].mean()

    def make_upload(self, client: Site) -> Upload | None:
        """Return the model and the client's class counts."""
        upload = super().make_upload(client)
        if upload is not None:
            upload.stats["counts"] = self.counts.clone()
        return upload

    # At the server.

    @torch.no_grad()
    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average the models, update the prior and run GPT."""
        super().aggregate(uploads)
        self.prior.copy_(self.next_prior(torch.stack([upload.stats["counts"] for upload in uploads])))
        self.tally("prior", self.prior)
        if self.hparams.gpt_epochs:
            proxies = classifier(self.model).weight
            name = next(name for name, parameter in self.named_parameters() if parameter is proxies)
            rows = torch.stack([upload.tensors[name] for upload in uploads])
            tuned = self.tuned(rows.cpu(), proxies.cpu())
            self.tally("gpt/stretch", (tuned.norm(dim=1) / proxies.cpu().norm(dim=1)).mean())
            proxies.copy_(tuned)

    def next_prior(self, counts: Tensor) -> Tensor:
        """Move the prior slowly towards the pooled class counts ``[M, C]`` of the clients."""
        pooled = counts.sum(dim=0)
        moved = KEEP * self.prior + (1.0 - KEEP) * pooled / pooled.sum().clamp_min(1)
        return torch.where(pooled.sum() > 0, moved, self.prior)

    def tuned(self, rows: Tensor, proxies: Tensor) -> Tensor:
        """Run GPT of proxies ``[C, d]`` on the clients' rows ``[M, C, d]``, in ``gpt_epochs`` shuffled passes.

        The shuffling does not depend on client ids.
        """
        rows = rows[rows.sum(dim=(1, 2)).argsort()]
        orders = (torch.randperm(rows.shape[0] * rows.shape[1]) for _ in range(self.hparams.gpt_epochs))
        return tuned_proxies(rows, proxies, orders, self.hparams.gpt_lr, self.margin(proxies))

    def margin(self, proxies: Tensor) -> float:
        """Return the largest distance of a proxy ``[C, d]`` to its nearest one, at most 100."""
        gaps = distances(proxies, proxies).fill_diagonal_(torch.inf)
        return min(float(gaps.amin(dim=1).max()), FARTHEST)


def classifier(model: Backbone) -> nn.Linear:
    """Return the last linear layer of a network's head; its rows are the proxies.

    Raises:
        ConfigError: there is none.
    """
    layers = [layer for layer in model.head.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ConfigError(
            f"ProxyFL: the head of {type(model).__name__} has no linear layer, whose rows are the proxies; choose a "
            "network that ends in one"
        )
    return layers[-1]


def class_sets(p: Tensor, decided: Tensor, prior: Tensor) -> Tensor:
    """Each row's possible classes, bool ``[R, C]``: the most probable one if decided, else all above the prior."""
    return torch.where(decided[:, None], one_hot(p.argmax(dim=1), p.shape[1]), p > prior)


def icpl(z: Tensor, w: Tensor, weights: Tensor, sets: Tensor, least: float = LEAST) -> Tensor:
    """L_c of every row, ``[R]``.

    Args:
        z: rows ``[R, d]``.
        w: proxies ``[C, d]``.
        weights: weights of the proxies that pull each row, ``[R, C]``.
        sets: possible classes of each row, bool ``[R, C]``.
        least: pairs of rows with a smaller product do not push each other.
    """
    positive = (weights * (z @ w.T)).sum(dim=1)
    members, products = sets.to(z.dtype), z @ z.T
    pushing = (members @ members.T == 0) & (products >= least)
    negatives = products.masked_fill(~pushing, -torch.inf)
    return torch.cat([positive[:, None], negatives], dim=1).logsumexp(dim=1) - positive


def tuned_proxies(rows: Tensor, proxies: Tensor, orders: Iterable[Tensor], lr: float, margin: float) -> Tensor:
    """GPT: SGD on the cross-entropy of negative distances, with the margin added to the own class's distance.

    Args:
        rows: proxies of the clients, ``[M, C, d]``.
        proxies: initial proxies, ``[C, d]``.
        orders: the order of the ``M C`` rows for every pass, counted client by client; four rows per step.
        lr: learning rate.
        margin: added to the distance of the own class.
    """
    clients, classes = rows.shape[:2]
    rows, labels = rows.flatten(0, 1), torch.arange(classes).repeat(clients)
    margins, tuned = margin * F.one_hot(labels, classes), proxies.detach().clone()
    for order in orders:
        for batch in torch.split(order, ROWS):
            with torch.enable_grad():
                tuned.requires_grad_()
                loss = F.cross_entropy(-(distances(rows[batch], tuned) + margins[batch]), labels[batch])
                (slope,) = torch.autograd.grad(loss, tuned)
            tuned = tuned.detach() - lr * slope
    return tuned


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances ``[A, B]`` of vectors ``[A, d]`` and ``[B, d]``, without matrix products (cancellation)."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
