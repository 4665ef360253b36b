"""CBAFed: fixed pseudo-labels under class-balanced thresholds, and residual weight connections."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Batch, LocalWork, Pass, Site, Stream, Upload, Visit
from methods.parts.aggregation import read_mode, share_weights, weighted_mean
from methods.parts.class_balance import (
    assign,
    balanced_thresholds,
    batch_loss,
    class_counts,
    storage_order,
    tail_classes,
)
from methods.parts.residual import LabelledClients, residual_connection
from methods.parts.rosters import require_labels
from methods.parts.tensors import wide


class CBAFed(LabelledClients):
    """Class balanced adaptive pseudo-labelling (Li et al., CVPR 2023).

    Warm-up is FedAvg+ on the labelled clients (Eqs. 1, 3). Then everybody takes part: an unlabelled client labels its
    images once per visit (Eqs. 4, 14), keeps the confident ones and those whose second class is rare (tail discovery,
    Eqs. 15, 16), and trains on them; a labelled client trains with the residual connection over its epochs. The server
    weighs by the images that were used (Eq. 20), connects over rounds (Eq. 21), and derives the next round's
    thresholds from the class counts (Eqs. 6-13, 19). Until labelled clients have taken part (``warmup_rounds=0``), all
    classes count as equally frequent.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``warmup_rounds`` | not in the text | one of 501 epochs (CIFAR-100: 1001) | 501 of one epoch: the same |
    | ``warmup_mode`` | connection at the server | at the client | ``rounds``; ``local_then_avg`` as a stage-2 visit |
    | ``labelled_epochs``, ``local_epochs`` | 11, 1 | 11, 1 | 11, 1 |
    | ``lr``, ``lr_unlabelled`` | not in the text | 0.03, 0.02 | 0.03, 0.02 (ISIC 0.002, 0.001) |
    | ``cba_tau``, ``cba_tau_h`` | "usually 0.95" | 0.84; 0.90 (SVHN, ISIC), 0.95 | 0.84, 0.95 |
    | ``pl_threshold`` | adaptive | adaptive | ``None``: adaptive; a number: one for all classes |
    | ``pl_set`` | fixed | fixed | ``fixed``; Fig. 3: ``rebuilt`` before each epoch, ``batch`` by batch |
    | ``pl_view`` | the image | a weak view, trained on as it is | ``weak``; ``clean``: fresh views; not for ``batch`` |
    | ``tail_enabled`` | yes | yes (off for SVHN, ISIC in a comment) | true |
    | ``tail_rule``, ``tail_beta`` | scaled share < beta / C | scaled share < 0.03 | ``share`` (``paper_scaled``), 0.3 |
    | ``res_client_alpha``, ``res_skip`` | not in the text | 0.8, 5 | 0.8, 5 |
    | ``res_client_reference`` | after epoch 0 or before | after epoch 0 | ``first`` (``initial``) |
    | ``res_server_alpha`` | not in the text | 0.5 | 0.5 |
    | ``res_server_first_skip`` | 5 rounds | 6 rounds: from the warm-up | ``released`` (``exact``) |
    | ``agg_counts`` | images used | images used | ``selected`` (``size``) |
    | ``labelled_weight_mode`` | sizes | sizes, ISIC ten-fold | ``plain`` (``multiplier:10``, ``share:0.5``) |
    | ``bn_aggregate`` | not in the text | as weights | true; false: own at clients, labelled ones' at the server |
    | momentum buffers | not in the text | kept per client, also from the warm-up | kept (``reset_momentum``) |
    | clipping, weight decay | not in the text | 5, 5e-4 | 5, 5e-4 |
    """

    scopes = {
        "reference": "server",
        "thresholds": "server",
        "tail": "server",
        "previous": "local",
        "counts": "local",
        "own": "personal",
    }
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
        warmup_mode: Literal["rounds", "local_then_avg"] = "rounds",
        labelled_epochs: int = 11,
        lr_unlabelled: float = 0.02,
        cba_tau: float = 0.84,
        cba_tau_h: float = 0.95,
        pl_threshold: float | None = None,
        pl_set: Literal["fixed", "rebuilt", "batch"] = "fixed",
        pl_view: Literal["weak", "clean"] = "weak",
        tail_enabled: bool = True,
        tail_rule: Literal["share", "paper_scaled"] = "share",
        tail_beta: float = 0.3,
        res_client_alpha: float = 0.8,
        res_server_alpha: float = 0.5,
        res_server_first_skip: Literal["released", "exact"] = "released",
        agg_counts: Literal["selected", "size"] = "selected",
        labelled_weight_mode: str = "plain",
        bn_aggregate: bool = True,
        min_batch: int = 2,
        **base: Any,
    ) -> None:
        super().__init__(model, res_client_alpha=res_client_alpha, min_batch=min_batch, **base)
        self.require("from 0 to 1", res_server_alpha=0 <= res_server_alpha <= 1)
        self.require_thresholds("cba_tau", "cba_tau_h", "pl_threshold")
        self.require("weak, where pl_set is batch", pl_view=pl_view == "weak" or pl_set != "batch")
        read_mode(labelled_weight_mode)
        self.reference: nn.Module = copy.deepcopy(model).requires_grad_(False)
        self.previous = copy.deepcopy(self.reference)
        for name, value in self.statistics(torch.ones(num_classes)).items():
            self.register_buffer(name, value)
        self.register_buffer("counts", torch.zeros(num_classes))
        self.own = nn.Module()
        if not bn_aggregate:
            for number, value in enumerate(model.buffers()):
                self.own.register_buffer(str(number), value.clone())
        self.site: Site | None = None

    def statistics(self, counts: Tensor) -> dict[str, Tensor]:
        """Thresholds ``[C]`` and tail classes (bool ``[C]``) that follow from class counts ``[C]``."""
        h = self.hparams
        thresholds = balanced_thresholds(counts, h.cba_tau, h.cba_tau_h)
        if h.pl_threshold is not None:
            thresholds = torch.full_like(thresholds, h.pl_threshold)
        tail = tail_classes(counts, h.tail_beta, h.tail_rule)
        if not h.tail_enabled:
            tail = torch.zeros_like(tail)
        return {"thresholds": thresholds, "tail": tail}

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Labelled clients during warm-up, then everybody.

        Raises:
            ConfigError: no client holds labels.
        """
        require_labels(roster)
        if self.is_warmup(round):
            return super().select_clients(round, roster)
        return [roster.sample(round)]

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """The global model, the thresholds and the tail classes."""
        sent = super().broadcast(server, visit)
        return {**sent, "thresholds": server["thresholds"], "tail": server["tail"]}

    def learning_rate(self) -> float:
        """Clients with labels use ``lr``, the others ``lr_unlabelled``."""
        return float(self.hparams.lr if self.visit.labelled else self.hparams.lr_unlabelled)

    @torch.no_grad()
    def local_work(self, client: Site) -> LocalWork:
        """A labelled client's epochs over its labels, or an unlabelled client's over the images that it labels itself.

        Raises:
            ConfigError: a client holds images of both kinds.
        """
        h, data = self.hparams, client.data
        if len(data.labelled) and len(data.unlabelled):
            raise ConfigError("a client holds labelled and unlabelled images; set data.scenario=partial_clients")
        self.take_up_statistics(client.visit)
        self.counts.copy_(class_counts(data.labels, len(self.counts)))
        if not len(data.unlabelled):
            epochs = h.labelled_epochs if self.connects_epochs() else 1
            return [Pass(self.streams(data))] * epochs

        self.tally("thresholds", self.thresholds)
        self.tally("tail", self.tail.float())
        if h.pl_set == "batch":
            self.site = client
            fields = {"index": data.unlabelled}
            everything = Stream(data.unlabelled, h.batch_size, {"x": "weak"}, fields, min_batch=h.min_batch)
            return [Pass({"unlabelled": everything})] * h.local_epochs
        if h.pl_set == "fixed":
            return [self.pseudo_labelled(client, 0)] * h.local_epochs
        # Rebuilt: the sets before the last have the numbers 1, 2, ..., so that a single epoch is that of a fixed set.
        numbers = [(epoch + 1) % h.local_epochs for epoch in range(h.local_epochs)]
        return [partial(self.pseudo_labelled, client, number) for number in numbers]

    @torch.no_grad()
    def pseudo_labelled(self, client: Site, number: int) -> Pass:
        """One epoch over the training set that the model chooses as it stands: Eqs. 4 and 14 to 17.

        The kept images are in storage order; the model labels them in evaluation mode.

        Args:
            client: the site.
            number: of the random streams for the order and the views.
        """
        h, everyone = self.hparams, client.data.unlabelled
        order = torch.randperm(len(everyone), generator=client.generator(f"order/pseudo/{number}"))
        index = everyone[order.to(everyone.device)]
        weak = h.pl_view == "weak"
        block = h.batch_size * max(1, 256 // h.batch_size)
        views = client.views("weak" if weak else "test", index, f"prepare/{number}", block)

        labels, confident, rescued, images = [], [], [], []
        self.eval()
        for part, x in zip(torch.split(index, block), views, strict=True):
            with self.autocast():
                y, sure, rare = assign(self.predict(x), self.thresholds, self.tail)
            client.report_pseudo_labels(part, y, sure | rare)
            labels.append(y)
            confident.append(sure)
            rescued.append(rare)
            if weak:
                images.append(x)

        kept = storage_order(torch.cat(confident), torch.cat(rescued), h.batch_size)
        fields = {"y": torch.cat(labels)[kept]}
        self.counts.copy_(class_counts(fields["y"], len(self.counts)))  # Eq. 19
        if weak:
            fields["x"] = torch.cat(images)[kept]
        fresh = {} if weak else {"x": "weak"}
        return Pass({"pseudo": Stream(index[kept], h.batch_size, fresh, fields, shuffle=False, min_batch=h.min_batch)})

    @torch.no_grad()
    def on_train_start(self) -> None:
        """The received model is the first old one of a labelled client's connection with ``initial``."""
        super().on_train_start()
        if self.connects_epochs():
            self.previous.load_state_dict(self.model.state_dict())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of labels or of pseudo-labels (Eqs. 2, 18)."""
        if "unlabelled" in batch:
            return self.self_labelled_step(batch["unlabelled"])
        samples = batch["pseudo"] if "pseudo" in batch else batch["labelled"]
        return F.cross_entropy(self(samples["x"]), samples["y"])

    def self_labelled_step(self, samples: Mapping[str, Tensor]) -> Tensor:
        """The batch is labelled by the model that it trains (Fig. 3); an epoch's share of what is kept is counted."""
        loss, labels, kept = batch_loss(wide(self(samples["x"])), self.thresholds, self.tail)
        self.counts.add_(class_counts(labels, len(self.counts), kept) / self.hparams.local_epochs)
        if self.site is not None:
            self.site.report_pseudo_labels(samples["index"], labels, kept)
        return loss

    def on_train_epoch_end(self) -> None:
        """The residual connection of a labelled client (Eq. 1)."""
        super().on_train_epoch_end()
        if self.connects_epochs():
            self.mix(self.previous, self.current_epoch)

    def on_train_end(self) -> None:
        """The step reports to no site any more."""
        super().on_train_end()
        self.site = None

    def connects_epochs(self) -> bool:
        """Whether the present visit is a labelled client's with the residual connection over its epochs."""
        over_rounds = self.hparams.warmup_mode == "rounds" and self.is_warmup(self.visit.round)
        return self.visit.labelled and not over_rounds

    def make_upload(self, client: Site) -> Upload | None:
        """The model, the class counts of what it was trained on, and their sum as weight."""
        upload = super().make_upload(client)
        if upload is None:
            return None
        upload.stats["counts"] = self.counts.clone()
        if not client.visit.labelled and self.hparams.agg_counts == "selected":
            upload.weight = float(self.counts.sum())
        self.keep_statistics()
        return upload

    def take_up_statistics(self, visit: Visit) -> None:
        """With ``bn_aggregate=false`` a client goes on with its own batch-norm statistics, once it has some."""
        if self.hparams.bn_aggregate:
            return
        if visit.first:
            self.keep_statistics()
        for mine, live in zip(self.own.buffers(), self.model.buffers(), strict=True):
            live.copy_(mine)

    def keep_statistics(self) -> None:
        """With ``bn_aggregate=false`` a client keeps its batch-norm statistics for its next visit."""
        if self.hparams.bn_aggregate:
            return
        for mine, live in zip(self.own.buffers(), self.model.buffers(), strict=True):
            mine.copy_(live)

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average by what was used, connect over rounds, and set the thresholds of the next round."""
        round = uploads[0].visit.round
        if round == self.hparams.warmup_rounds:  # the warm-up model is stage 2's first reference in Eq. 21
            self.reference.load_state_dict(self.model.state_dict())
        self.average(uploads)
        self.connect(round)
        counts = torch.stack([u.stats["counts"] for u in uploads]).sum(dim=0)  # Eq. 7
        if counts.sum() > 0:
            self.load_tensors(self.statistics(counts))  # Eqs. 8 to 13

    def average(self, uploads: Sequence[Upload]) -> None:
        """The mean of the clients' models, weighted by the images that were used (Eq. 20)."""
        states, labelled = [u.tensors for u in uploads], [u.visit.labelled for u in uploads]
        weights = share_weights([u.weight for u in uploads], labelled, self.hparams.labelled_weight_mode)
        if sum(weights) == 0:
            return
        mean = weighted_mean(states, weights)
        if not self.hparams.bn_aggregate and any(labelled):
            of_labelled = [weight if has else 0.0 for weight, has in zip(weights, labelled, strict=True)]
            theirs = weighted_mean(states, of_labelled)
            for name, _ in self.model.named_buffers(prefix="model"):
                mean[name] = theirs[name]
        self.load_tensors(mean)

    def connect(self, round: int) -> None:
        """The residual connection over rounds: as FedAvg+ in the warm-up (Eq. 3), then its own (Eq. 21)."""
        h = self.hparams
        if self.is_warmup(round):
            if h.warmup_mode == "rounds":
                self.mix(self.reference, round)
            return
        stage = round - h.warmup_rounds
        exact = h.res_server_first_skip == "exact"
        residual_connection(self.reference, self.model, stage, h.res_server_alpha, h.res_skip, first=exact)
