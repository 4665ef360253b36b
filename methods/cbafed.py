"""CBAFed: fixed pseudo-labels under class-balanced thresholds, and residual weight connections."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Batch, Site, Stream, Upload, Visit
from methods.parts import ops
from methods.parts.aggregation import weighted_mean
from methods.parts.class_balance import assign, balanced_thresholds, batch_loss, storage_order, tail_classes
from methods.parts.residual import LabelledClients


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

    scopes = {"reference": "server", "thresholds": "server", "tail": "server", "previous": "local", "own": "personal"}
    thresholds: Tensor
    tail: Tensor

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
        self.require(res_server_alpha=0 <= res_server_alpha <= 1, pl_view=pl_view == "weak" or pl_set != "batch")
        ops.share_weights([1.0], [True], labelled_weight_mode)
        self.reference: nn.Module = copy.deepcopy(model).requires_grad_(False)
        self.previous = copy.deepcopy(self.reference)
        for name, value in self.statistics(torch.ones(num_classes)).items():
            self.register_buffer(name, value)
        self.own = nn.Module()
        for number, value in enumerate([] if bn_aggregate else model.buffers()):
            self.own.register_buffer(str(number), value.clone())

    def statistics(self, counts: Tensor) -> dict[str, Tensor]:
        """Thresholds ``[C]`` and tail classes (bool ``[C]``) that follow from class counts ``[C]``."""
        h, constant = self.hparams, self.hparams["pl_threshold"]
        balanced = balanced_thresholds(counts, h["cba_tau"], h["cba_tau_h"])
        tail = tail_classes(counts, h["tail_beta"], h["tail_rule"]) & h["tail_enabled"]
        return {"thresholds": balanced if constant is None else torch.full_like(balanced, constant), "tail": tail}

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """Labelled clients during warm-up, then everybody."""
        return super().plan(round, roster) if self.is_warmup(round) else [roster.sample(round)]

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """The global model, the thresholds and the tail classes."""
        return {**super().broadcast(server, visit), **{name: server[name] for name in ("thresholds", "tail")}}

    def learning_rate(self) -> float:
        """Clients with labels use ``lr``, the others ``lr_unlabelled``."""
        return float(self.hparams["lr" if self.visit.labelled else "lr_unlabelled"])

    def connects_epochs(self) -> bool:
        """Whether the present visit is a labelled client's with the residual connection over its epochs."""
        v = self.visit
        return v.labelled and (self.hparams["warmup_mode"] != "rounds" or not self.is_warmup(v.round))

    def epochs(self) -> int:
        """``labelled_epochs`` or ``local_epochs``; one in warm-up rounds, and on the last of several rebuilt sets."""
        if self.visit.labelled:
            return int(self.hparams["labelled_epochs"]) if self.connects_epochs() else 1
        return 1 if self.hparams["pl_set"] == "rebuilt" else super().epochs()

    def client_start(self, first: bool) -> None:
        """The received model is the reference of ``initial``; statistics that stay local are restored."""
        for mine, live in zip(self.own.buffers(), self.model.buffers(), strict=False):
            (mine if first else live).copy_(live if first else mine)
        self.previous.load_state_dict(self.model.state_dict())

    def client_prepare(self, client: Site) -> Mapping[str, Stream]:
        """Labels where there are some, else pseudo-labels of the received model."""
        h, data = self.hparams, client.data
        self.counts = torch.bincount(data.labels, minlength=len(self.thresholds)).to(self.thresholds)
        if len(data.labelled) and len(data.unlabelled):
            raise ConfigError("a client holds labelled and unlabelled images; set data.scenario=partial_clients")
        if not len(data.unlabelled):
            return self.streams(data)
        self.site = client
        self.tally("thresholds", self.thresholds)
        self.tally("tail", self.tail.float())
        if h["pl_set"] == "batch":
            fields, least = {"index": data.unlabelled}, h["min_batch"]
            return {"unlabelled": Stream(data.unlabelled, h["batch_size"], {"x": "weak"}, fields, min_batch=least)}
        for number in range(1, h["local_epochs"] if h["pl_set"] == "rebuilt" else 1):
            client.fit({"pseudo": self.labelled_once(client, number)}, 1)
        return {"pseudo": self.labelled_once(client, 0)}

    @torch.no_grad()
    def labelled_once(self, client: Site, number: int) -> Stream:
        """The kept images of the client in storage order, with pseudo-labels of the model in evaluation mode."""
        h, every, size = self.hparams, client.data.unlabelled, self.hparams["batch_size"]
        weak, block = h["pl_view"] == "weak", size * max(1, 256 // size)
        index = every[torch.randperm(len(every), generator=client.generator(f"order/pseudo/{number}"))]
        views = client.views("weak" if weak else "test", index, f"prepare/{number}", block)
        self.eval()
        parts = []
        for part, x in zip(torch.split(index, block), views, strict=True):
            with self.autocast():
                labels, confident, rescued = assign(self.predict(x), self.thresholds, self.tail)
            client.report_pseudo_labels(part, labels, confident | rescued, per_class=True)
            kept = storage_order(confident, rescued, size)
            parts.append((part[kept], labels[kept], x[kept] if weak else x[:0]))
        self.train()
        index, y, x = (torch.cat(column) for column in zip(*parts, strict=True))
        self.counts = torch.bincount(y, minlength=len(self.thresholds)).to(self.thresholds)
        fields = {"x": x, "y": y} if weak else {"y": y}
        return Stream(index, size, {} if weak else {"x": "weak"}, fields, shuffle=False, min_batch=h["min_batch"])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of labels or pseudo-labels; with ``batch``, see ``batch_loss``."""
        if "unlabelled" not in batch:
            return super().training_step({"labelled": batch.get("pseudo") or batch["labelled"]}, batch_idx)
        loss, labels, kept = batch_loss(ops.wide(self(batch["unlabelled"]["x"])), self.thresholds, self.tail)
        self.site.report_pseudo_labels(batch["unlabelled"]["index"], labels, kept, per_class=True)
        self.counts += torch.bincount(labels[kept], minlength=len(self.counts)) / self.epochs()
        return loss

    def on_local_epoch_end(self, epoch: int, epochs: int) -> None:
        """The residual connection of a labelled client."""
        if self.connects_epochs():
            self.mix(self.previous, epoch)

    def client_finish(self, client: Site) -> Upload | None:
        """The model, the class counts of what it was trained on, and their sum as weight."""
        upload = super().client_finish(client)
        if upload is not None:
            upload.stats["counts"] = self.counts
            if not client.visit.labelled and self.hparams["agg_counts"] == "selected":
                upload.weight = float(self.counts.sum())
            for mine, live in zip(self.own.buffers(), self.model.buffers(), strict=False):
                mine.copy_(live)
        return upload

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average by what was used, connect over rounds, and set the thresholds of the next round."""
        h, states, labelled = self.hparams, [u.tensors for u in uploads], [u.visit.labelled for u in uploads]
        weights = ops.share_weights([u.weight for u in uploads], labelled, h["labelled_weight_mode"])
        if uploads[0].visit.round == h["warmup_rounds"]:
            self.reference.load_state_dict(self.model.state_dict())
        if sum(weights):
            mean = weighted_mean(states, weights)
            if any(labelled) and not h["bn_aggregate"]:
                theirs = weighted_mean(states, [w * has for w, has in zip(weights, labelled, strict=True)])
                mean |= {n: theirs[n] for n in (f"model.{name}" for name, _ in self.model.named_buffers())}
            self.load_tensors(mean)
        self.connect(uploads[0].visit.round)
        counts = torch.stack([u.stats["counts"] for u in uploads]).sum(dim=0)
        if counts.sum():
            self.load_tensors(self.statistics(counts))

    def connect(self, round: int) -> None:
        """The residual connection over rounds: as FedAvg+ in the warm-up, then its own."""
        h, stage = self.hparams, round - self.hparams["warmup_rounds"]
        alpha, exact = h["res_server_alpha"], h["res_server_first_skip"] == "exact"
        if stage >= 0:
            ops.residual_connection(self.reference, self.model, stage, alpha, h["res_skip"], exact)
        elif h["warmup_mode"] == "rounds":
            self.mix(self.reference, round)
