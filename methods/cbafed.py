"""CBAFed: fixed pseudo-labels under class-balanced thresholds, and residual weight connections."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Batch, LocalWork, Pass, Site, Stream, Upload, Visit
from methods.parts.labelled_clients import LabelledClients, LabelledShare, residual_connection
from methods.parts.tensors import one_hot


class CBAFed(LabelledShare, LabelledClients):
    """Class balanced adaptive pseudo-labelling (Li et al., CVPR 2023).

    Warm-up is FedAvg+ on the labelled clients (Eqs. 1, 3). After it, all clients take part. An unlabelled client labels
    its images once per visit (Eqs. 4, 14), keeps the confident ones and those whose second class is rare (tail
    discovery, Eqs. 15, 16), and trains on them; a labelled client trains with the residual connection over its epochs.
    The server weights clients by the number of images they used (Eq. 20), applies the residual connection over rounds
    (Eq. 21), and derives the next round's thresholds from the class counts (Eqs. 6-13, 19). Until labelled clients have
    taken part (``warmup_rounds=0``), all classes count as equally frequent.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``warmup_rounds`` | not in the text | one of 501 epochs (CIFAR-100: 1001) | 501 of one epoch: the same |
    | connection in the warm-up | at the server | at the client | as the paper |
    | ``labelled_epochs``, ``local_epochs`` | 11, 1 | 11, 1 | 11, 1 |
    | ``lr``, ``lr_unlabelled`` | not in the text | 0.03, 0.02 | 0.03, 0.02 (ISIC 0.002, 0.001) |
    | ``cba_tau``, ``cba_tau_h`` | "usually 0.95" | 0.84; 0.90 (SVHN, ISIC), 0.95 | 0.84, 0.95 |
    | ``pl_threshold`` | adaptive | adaptive | ``None``: adaptive; a number: the same for all classes |
    | input for labelling | the image | a weak view, also used for training | as released |
    | ``tail_rule``, ``tail_beta`` | scaled share < beta / C | scaled share < 0.03 | ``share``, 0.3 (0: none) |
    | ``res_client_alpha``, ``res_skip`` | not in the text | 0.8, 5 | 0.8, 5 |
    | ``res_client_reference`` | after epoch 0 or before | after epoch 0 | ``first`` (``initial``) |
    | ``res_server_alpha`` | not in the text | 0.5 | 0.5 |
    | first connection over rounds | 5 rounds | 6 rounds: from the warm-up | as released |
    | ``agg_counts`` | images used | images used | ``selected`` (``size``) |
    | ``labelled_weight_mode`` | sizes | sizes, ISIC ten-fold | ``plain`` (``multiplier:10``, ``share:0.5``) |
    | batch-norm statistics | not in the text | averaged like weights | as released |
    | momentum buffers | not in the text | kept per client, including from the warm-up | kept (``reset_momentum``) |
    | clipping, weight decay | not in the text | 5, 5e-4 | 5, 5e-4 |
    """

    uploads_needed = "mean"
    scopes = {"reference": "server", "thresholds": "server", "tail": "server", "previous": "local", "counts": "local"}
    thresholds: Tensor
    """T(c), ``[C]``."""
    tail: Tensor
    """Which classes are tail classes, bool ``[C]``."""
    counts: Tensor
    """Images per class that the client trains on in this visit, sigma(c), ``[C]``."""

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        warmup_rounds: int = 501,
        labelled_epochs: int = 11,
        lr_unlabelled: float = 0.02,
        cba_tau: float = 0.84,
        cba_tau_h: float = 0.95,
        pl_threshold: float | None = None,
        tail_rule: Literal["share", "paper_scaled"] = "share",
        tail_beta: float = 0.3,
        res_client_alpha: float = 0.8,
        res_server_alpha: float = 0.5,
        agg_counts: Literal["selected", "size"] = "selected",
        labelled_weight_mode: str = "plain",
        min_batch: int = 2,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require_thresholds("cba_tau", "cba_tau_h", "pl_threshold")
        self.reference: nn.Module = copy.deepcopy(model).requires_grad_(False)
        self.previous = copy.deepcopy(self.reference)
        for name, value in self.statistics(torch.ones(num_classes)).items():
            self.register_buffer(name, value)
        self.register_buffer("counts", torch.zeros(num_classes))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """All labelled clients during warm-up, then the round's participants.

        Raises:
            ConfigError: no client holds labels.
        """
        self.require_labels(roster)
        return [list(roster.labelled) if self.is_warmup(round) else roster.sample(round)]

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send the global model, the thresholds and the tail classes."""
        return {**super().broadcast(server, visit), "thresholds": server["thresholds"], "tail": server["tail"]}

    def learning_rate(self) -> float:
        """Return ``lr`` for clients with labels, ``lr_unlabelled`` for the others."""
        return float(self.hparams.lr if self.visit.labelled else self.hparams.lr_unlabelled)

    # A client's visit

    def local_work(self, client: Site) -> LocalWork:
        """Train on labels or on pseudo-labels: a client holds images of one kind.

        Raises:
            ConfigError: a client holds images of both kinds.
        """
        data = client.data
        if len(data.labelled) and len(data.unlabelled):
            raise ConfigError(
                "a client holds labelled and unlabelled images; set data.scenario=partial_clients, and leave out "
                "data.unlabelled_only"
            )
        self.counts.copy_(class_counts(data.labels, len(self.counts)))
        if not len(data.unlabelled):
            return [Pass(self.streams(data))] * (self.hparams.labelled_epochs if self.connects_epochs() else 1)
        self.tally("thresholds", self.thresholds)
        self.tally("tail", self.tail.float())
        return self.unlabelled_work(client)

    def unlabelled_work(self, client: Site) -> LocalWork:
        """Train all epochs on one set, labelled once by the received model."""
        return [self.pseudo_labelled(client)] * int(self.hparams.local_epochs)

    @torch.no_grad()
    def pseudo_labelled(self, client: Site, number: int = 0) -> Pass:
        """Label the client's images with the current model; one epoch over those that are kept.

        The views that are labelled are the views that are trained on. The kept images are in storage order.

        Args:
            client: the site.
            number: of the random streams for the order and the views.
        """
        h, images = self.hparams, client.data.unlabelled
        order = torch.randperm(len(images), generator=client.generator(f"order/pseudo/{number}"))
        index = images[order.to(images.device)]
        size = h.batch_size * max(1, 256 // h.batch_size)
        blocks = []
        self.eval()
        for part, x in zip(torch.split(index, size), self.labelled_views(client, index, number, size), strict=True):
            with self.autocast():
                labels, confident, rescued = assign(self.predict(x), self.thresholds, self.tail)  # Eqs. 4, 14 to 16
            client.report_pseudo_labels(part, labels, confident | rescued)
            blocks.append((x, labels, confident, rescued))

        views, labels, confident, rescued = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        kept = storage_order(confident, rescued, h.batch_size)  # Eq. 17
        fields = {"x": views[kept], "y": labels[kept]}
        self.counts.copy_(class_counts(fields["y"], len(self.counts)))  # Eq. 19
        return Pass({"pseudo": Stream(index[kept], h.batch_size, {}, fields, shuffle=False, min_batch=h.min_batch)})

    def labelled_views(self, client: Site, index: Tensor, number: int, block: int) -> Iterable[Tensor]:
        """Return the views that the model labels: weak views."""
        return client.views("weak", index, f"prepare/{number}", block)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross-entropy on labels (Eq. 2) or on pseudo-labels (Eq. 18)."""
        (samples,) = batch.values()
        return F.cross_entropy(self(samples["x"]), samples["y"])

    def connects_epochs(self) -> bool:
        """Whether this visit applies the residual connection over epochs (labelled clients only)."""
        return self.visit.labelled and not self.is_warmup(self.visit.round)

    def on_train_start(self) -> None:
        """Store the received model, with ``initial`` the first reference of Eq. 1."""
        super().on_train_start()
        self.previous.load_state_dict(self.model.state_dict())

    def on_train_epoch_end(self) -> None:
        """Apply the residual connection of a labelled client (Eq. 1)."""
        super().on_train_epoch_end()
        if self.connects_epochs():
            self.mix(self.previous, self.current_epoch)

    def make_upload(self, client: Site) -> Upload | None:
        """Return the model and the class counts of its training images, weighted by their sum."""
        upload = super().make_upload(client)
        if upload is not None:
            upload.stats["counts"] = self.counts.clone()
            if self.hparams.agg_counts == "selected":
                upload.weight = float(self.counts.sum())
        return upload

    # The server's round

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average by images used, apply the residual connection, and set the next round's thresholds."""
        round = uploads[0].visit.round
        if round == self.hparams.warmup_rounds:  # the warm-up model is stage 2's first reference in Eq. 21
            self.reference.load_state_dict(self.model.state_dict())
        super().aggregate(uploads)  # Eq. 20, then Eqs. 3, 21
        counts = torch.stack([u.stats["counts"] for u in uploads]).sum(dim=0)  # Eq. 7
        if counts.sum() > 0:
            self.load_tensors(self.statistics(counts))  # Eqs. 8 to 13

    def connect(self, round: int) -> None:
        """Apply the residual connection over rounds: FedAvg+'s in the warm-up (Eq. 3), then CBAFed's (Eq. 21)."""
        h = self.hparams
        if self.is_warmup(round):
            self.mix(self.reference, round)
        else:
            stage = round - h.warmup_rounds
            residual_connection(self.reference, self.model, stage, h.res_server_alpha, h.res_skip, first=False)

    def statistics(self, counts: Tensor) -> dict[str, Tensor]:
        """Compute thresholds ``[C]`` and tail classes (bool ``[C]``) from class counts ``[C]``."""
        h = self.hparams
        thresholds = balanced_thresholds(counts, h.cba_tau, h.cba_tau_h)
        if h.pl_threshold is not None:
            thresholds = torch.full_like(thresholds, h.pl_threshold)
        return {"thresholds": thresholds, "tail": tail_classes(counts, h.tail_beta, h.tail_rule)}


def class_counts(labels: Tensor, num_classes: int, kept: Tensor | None = None) -> Tensor:
    """Count images per class, int64 ``[C]``, from labels ``[N]`` (Eqs. 6, 19), without a host sync.

    Args:
        labels: int64 ``[N]``.
        num_classes: C.
        kept: bool ``[N]``, images to count; default: all.
    """
    members = one_hot(labels, num_classes)
    if kept is not None:
        members = members & kept[:, None]
    return members.sum(dim=0)


def class_share(counts: Tensor) -> Tensor:
    """Class shares ``[C]``, scaled so that their mean is 0.1 for any number of classes (Eq. 13)."""
    return counts / counts.sum() * (len(counts) / 10)


def balanced_thresholds(counts: Tensor, tau: float = 0.84, tau_h: float = 0.95) -> Tensor:
    """``min(share + tau - std, tau_h)`` per class with the unbiased std of the scaled shares, ``[C]`` (Eqs. 6-13).

    Args:
        counts: images per class, float ``[C]``, C > 1.
        tau: added to a class's scaled share less the standard deviation of all.
        tau_h: upper bound of the thresholds; there is no lower bound.
    """
    share = class_share(counts)
    return (share + tau - share.std()).clamp_max(tau_h)


def tail_classes(counts: Tensor, beta: float = 0.3, rule: str = "share") -> Tensor:
    """Mark classes with less than ``beta / C`` of the images, bool ``[C]`` (released code).

    With ``paper_scaled`` the scaled share is compared with ``beta / C``, as Eq. 16 literally says.
    """
    cut = beta / 10.0 if rule == "share" else beta / len(counts)
    return class_share(counts) < cut


def assign(probabilities: Tensor, thresholds: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return pseudo-labels ``[B]``, which are confident, and which are kept for their second class (bool ``[B]``).

    Args:
        probabilities: ``[B, C]``.
        thresholds: ``[C]``; the first class is confident strictly above its own (Eq. 14).
        tail: bool ``[C]``; an image that is not confident is kept if its second class is one of them (Eq. 16).
    """
    confidence, first = probabilities.max(dim=1)
    second = probabilities.scatter(1, first[:, None], 0.0).argmax(dim=1)  # Eq. 15
    confident = confidence > thresholds[first]
    rescued = (confidence <= thresholds[first]) & tail[second]
    return torch.where(rescued, second, first), confident, rescued


def storage_order(confident: Tensor, rescued: Tensor, batch_size: int) -> Tensor:
    """Positions of the kept samples: batch by batch of the loader, the confident ones first in each (released code).

    Their number is read back to the host, since it decides how many steps the client takes.
    """
    kept = (confident | rescued).nonzero()[:, 0]
    batch = kept // batch_size
    return kept[(2 * batch + rescued[kept]).argsort(stable=True)]
