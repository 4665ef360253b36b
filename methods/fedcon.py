"""FedCon: contrastive learning without negatives at the clients, labels and a consistency term at the server."""

import copy
from collections.abc import Sequence
from math import cos, pi
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from datamodules.base import SiteData
from datamodules.common.streams import SERVER
from methods.base import Batch, LocalWork, Pass, Site, Stream
from methods.parts.labels_at_server import LabelsAtServer
from methods.parts.lars import LARS
from methods.parts.rosters import require_server_labels
from methods.parts.schedules import exponential_ramp
from methods.parts.server_momentum import ServerMomentum
from methods.parts.static_norms import StaticNorms
from methods.parts.teacher import ema_update
from methods.parts.tensors import wide

PRESETS: dict[str, dict[str, Any]] = {
    "table": {
        "optimizer": "sgd",
        "lr": 0.03,
        "lr_schedule": "cosine",
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "server_lr": 0.03,
        "server_sgd_momentum": 0.9,
        "server_nesterov": True,
        "server_weight_decay": 5e-4,
        "clip": True,
        "drop_incomplete": False,
        "rate_warmup": False,
        "batch_size": 32,
        "local_epochs": 5,
        "server_epochs": 5,
    },
    "fedcon_repo": {
        "optimizer": "lars",
        "lr": 0.3 * 10 / 256,
        "lr_schedule": "constant",
        "momentum": 0.0,
        "nesterov": False,
        "weight_decay": 1.5e-6,
        "server_lr": 0.01,
        "server_sgd_momentum": 0.5,
        "server_nesterov": False,
        "server_weight_decay": 0.0,
        "clip": False,
        "drop_incomplete": True,
        "rate_warmup": True,
        "batch_size": 50,
        "local_epochs": 1,
        "server_epochs": 1,
    },
}
INHERITED = (
    "lr",
    "lr_schedule",
    "momentum",
    "nesterov",
    "weight_decay",
    "batch_size",
    "local_epochs",
    "server_epochs",
)
"""What the bases know by the same name."""

EPOCH = 1000
"""Batches that count as one round in the schedule of the mean student (released code)."""


class FedCon(LabelsAtServer, StaticNorms, ServerMomentum):
    """Federated contrastive learning with a consistency term (Long et al., 2021, arXiv 2109.04533).

    Only the backbone travels, with its batch-norm statistics. A client learns without any label or pseudo-label, like
    BYOL: with its online encoder f (the backbone), a predictor h and a target encoder f' that follows f, ::

        L = D(h(f(x1)), f'(x2)) / 2 + D(h(f(x2)), f'(x1)) / 2,    D(p, z) = -mean cos(p, z)

    for two views of the same kind, without gradient through f'. h and f' stay at the client. The server keeps the
    classifier and trains the averaged backbone with it (teacher t), beside a student s, without gradient through s: ::

        L = (CE(t(x1), y) + CE(t(x2), y)) / 2 + w(r) (KL(s(x2) || t(x1)) + KL(s(x1) || t(x2))) / 2

    The rows of (FL)2 (NeurIPS 2024, Table 1) were made with this method's public PyTorch code, after changes that were
    not published; the column "paper" is what (FL)2 says of them (Table 4).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``preset`` | - | - | ``table``: trained as the methods beside it; ``fedcon_repo``: all of the code's values |
    | ``consistency``: who s is | not given | t once more; an average of t is kept and unused | ``teacher_twice`` |
    | ``ramp_rounds`` of w(r) | not given | 100, as exp(-5 (1 - r/100)^2) | 100 |
    | ``target_decay`` of f' | not given | 0.999 after every step | 0.999 |
    | ``projector_width`` of h | not given | 12288, with batch norm and ReLU | 12288 |
    | ``optimizer`` of the clients | SGD | LARS without momentum, decay 1.5e-6 | ``sgd`` |
    | ``lr``, ``rate_warmup`` | 0.03, none | 0.0117; a warm-up of ten epochs begins anew in every round | 0.03, false |
    | ``batch_size``, ``local_epochs``, ``drop_incomplete`` | 32, 5, not given | 50, 1, yes | 32, 5, false |
    | ``server_lr``, ``server_sgd_momentum`` | 0.03, 0.9 | 0.01, 0.5, new in every round | 0.03, 0.9, new likewise |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 | 10, 1 | 10, 5 |
    | ``lr_schedule`` | cosine | constant | ``cosine`` |
    | ``clip`` gradients at norm 1 | not given | none | true (``fedcon_repo``: false) |
    | ``server_momentum`` of the average | 0.5 in a row for all methods | none | 0 |
    | ``server_pretrain``: the round begins at the server | not given | yes; it is tested before the clients | 1 |
    | ``reset_momentum`` | not given | every optimiser is new in every round | true |
    | statistics of batch norm | not given | running ones, averaged with the weights | as the network has them |

    An argument of ``None`` has the value of the preset. In ``fedcon_repo`` a client's backbone hardly moves: its rate
    is 0.0117 in the first step, 0 in the second, and grows to a tenth of 0.0117 at the end of the visit, each times a
    thousandth of a weight's size.

    Args:
        model: the network.
        preset: see the table.
        consistency: ``teacher_twice``, or ``ema_student``: an average of t over the server's steps, with a decay from
            0.9996 to 1 over 20 rounds.
        ramp_rounds: see the table.
        target_decay: see the table.
        projector_width: see the table.
        optimizer: ``sgd`` or ``lars``.
        server_lr: learning rate of the server; follows ``lr_schedule`` too.
        server_sgd_momentum: momentum of the server's optimiser (``server_momentum`` is that of the average).
        server_nesterov: Nesterov momentum of it.
        server_weight_decay: weight decay of it.
        clip: see the table.
        drop_incomplete: leave out batches that are not full, at the server and at the clients.
        rate_warmup: the warm-up of the released code.
        min_batch: batch norm in h needs two images.
        server_pretrain: see ``LabelsAtServer``.
    """

    contract_args = {"projector_width": 64}
    scopes = {
        **ServerMomentum.scopes,
        "model.head": "server",
        "student": "server",
        "projector": "personal",
        "target": "personal",
    }
    views = {"labelled": {"x": "weak", "x2": "weak"}, "unlabelled": {"x": "weak", "x2": "weak"}}
    ramp: Tensor
    student_decay: Tensor
    rate: Tensor

    def __init__(
        self,
        model: nn.Module,
        preset: Literal["table", "fedcon_repo"] = "table",
        consistency: Literal["teacher_twice", "ema_student"] = "teacher_twice",
        ramp_rounds: int = 100,
        target_decay: float = 0.999,
        projector_width: int = 12288,
        optimizer: Literal["sgd", "lars"] | None = None,
        lr: float | None = None,
        lr_schedule: Literal["cosine", "constant"] | None = None,
        momentum: float | None = None,
        nesterov: bool | None = None,
        weight_decay: float | None = None,
        server_lr: float | None = None,
        server_sgd_momentum: float | None = None,
        server_nesterov: bool | None = None,
        server_weight_decay: float | None = None,
        clip: bool | None = None,
        drop_incomplete: bool | None = None,
        rate_warmup: bool | None = None,
        batch_size: int | None = None,
        local_epochs: int | None = None,
        server_epochs: int | None = None,
        min_batch: int = 2,
        server_momentum: float = 0.0,
        server_pretrain: int = 1,
        reset_momentum: bool = True,
        **base: Any,
    ) -> None:
        given = locals()
        values = {name: value if given[name] is None else given[name] for name, value in PRESETS[preset].items()}
        super().__init__(
            model,
            min_batch=min_batch,
            server_momentum=server_momentum,
            server_pretrain=server_pretrain,
            reset_momentum=reset_momentum,
            **{name: values[name] for name in INHERITED},
            **base,
        )
        h = self.hparams
        h.update(values)
        h.update({"clip_norm": h.clip_norm if h.clip else None})
        self.require("from 0 to 1", target_decay=0 <= target_decay <= 1)
        self.require("from 1", projector_width=projector_width >= 1)
        self.require("from 0", server_lr=h.server_lr >= 0, server_weight_decay=h.server_weight_decay >= 0)
        self.require("0 or more and below 1", server_sgd_momentum=0 <= h.server_sgd_momentum < 1)
        self.require("false with sgd", rate_warmup=not h.rate_warmup or h.optimizer == "lars")
        self.projector = predictor(self.model.feature_dim, projector_width)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.target.head = nn.Identity()
        self.student = copy.deepcopy(self.model).requires_grad_(False) if consistency == "ema_student" else None
        for name in ("ramp", "student_decay", "rate"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64), persistent=False)
        self.warmup_steps = 0

    def configure_optimizers(self) -> Any:
        """At the server over backbone and classifier, at a client over backbone and predictor."""
        h, rate = self.hparams, self.learning_rate()
        if self.visit.client == SERVER:
            return torch.optim.SGD(
                self.model.parameters(),
                rate,
                h.server_sgd_momentum,
                weight_decay=h.server_weight_decay,
                nesterov=h.server_nesterov,
                fused=True,
            )
        parameters = [*self.backbone(), *self.projector.parameters()]
        return self.client_optimizer(parameters, rate)

    def client_optimizer(self, parameters: Sequence[nn.Parameter], rate: float) -> Optimizer:
        """SGD or LARS with the clients' constants; LARS takes its rate from ``self.rate``."""
        h = self.hparams
        if h.optimizer == "lars":
            self.rate.fill_(rate)
            return LARS(parameters, self.rate, h.momentum, h.weight_decay)
        return torch.optim.SGD(
            parameters, rate, h.momentum, weight_decay=h.weight_decay, nesterov=h.nesterov, fused=True
        )

    def learning_rate(self) -> float:
        """Rate of the visit's round, at the server from ``server_lr``.

        The server's visit at the end of a round is its step of the next one (``server_round``); the cosine has it one
        round behind that one's clients, so that the last step has a rate above 0.
        """
        h = self.hparams
        return self.scheduled(h.server_lr if self.visit.client == SERVER else h.lr)

    def backbone(self) -> list[nn.Parameter]:
        """The network's parameters without the classifier's."""
        return [p for name, p in self.model.named_parameters() if not name.startswith("head.")]

    # A visit.

    def local_work(self, client: Site) -> LocalWork:
        """All images, in two views; the first backbone that a client is sent becomes its target encoder."""
        streams = self.streams(client.data)
        streams.pop("labelled", None)
        self.warmup_steps = 10 * sum(len(stream) // stream.batch_size for stream in streams.values())
        if client.visit.first:
            sent = {name: value for name, value in self.model.state_dict().items() if not name.startswith("head.")}
            self.target.load_state_dict(sent)
        return [Pass(streams)] * int(self.hparams.local_epochs)

    def server_step(self, server: Site) -> None:
        """As in every method with labels at the server; here it must have some, since clients look at no labels.

        Raises:
            ConfigError: it has none.
        """
        require_server_labels(server.data)
        super().server_step(server)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """As in the base; batches that are not full may be left out."""
        streams = super().streams(data)
        for stream in streams.values():
            stream.min_batch = stream.batch_size if self.hparams.drop_incomplete else stream.min_batch
        return streams

    def on_train_start(self) -> None:
        """w(r) of the server's round."""
        self.ramp.fill_(exponential_ramp(self.server_round(), self.hparams.ramp_rounds))

    def server_round(self) -> int:
        """The round that the server's visit begins: it comes before the clients, which is after those of the last."""
        return 0 if self.visit.before_first_round else self.visit.round + 1

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Numbers that change with every step: the student's decay, and the rate of the warm-up."""
        step = self.trainer.global_step
        if "labelled" in batch:
            self.student_decay.fill_(student_decay(EPOCH * self.server_round() + step))
        elif self.hparams.rate_warmup:
            self.rate.fill_(self.learning_rate() * warmup_factor(step, self.warmup_steps))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The server's loss on labelled images, the clients' on the others."""
        if "labelled" in batch:
            return self.server_loss(batch["labelled"])
        return self.client_loss(batch["unlabelled"])

    def client_loss(self, samples: dict[str, Tensor]) -> Tensor:
        """``D(h(f(x1)), f'(x2)) / 2 + D(h(f(x2)), f'(x1)) / 2``, between -1 and 1."""
        online = [wide(self.projector(self.model.features(samples[view]))) for view in ("x", "x2")]
        with torch.no_grad():
            target = [wide(self.target.features(samples[view])) for view in ("x", "x2")]
        return 0.5 * dissimilarity(online[0], target[1]) + 0.5 * dissimilarity(online[1], target[0])

    def server_loss(self, samples: dict[str, Tensor]) -> Tensor:
        """Cross-entropy and consistency over two views."""
        teacher = [wide(self.model(samples[view])) for view in ("x", "x2")]
        student_network = self.model if self.student is None else self.student
        with torch.no_grad():
            student = [wide(student_network(samples[view])) for view in ("x", "x2")]
        classes = [F.cross_entropy(logits, samples["y"]) for logits in teacher]
        consistency = 0.5 * divergence(student[1], teacher[0]) + 0.5 * divergence(student[0], teacher[1])
        self.log("loss_consistency", consistency.detach())
        return 0.5 * classes[0] + 0.5 * classes[1] + self.ramp.to(consistency.dtype) * consistency

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """The averages follow: f' at a client, s at the server."""
        if "unlabelled" in batch:
            decay = torch.full((), self.hparams.target_decay, dtype=torch.float64, device=self.device)
            ema_update(self.target.parameters(), self.backbone(), decay)
        elif self.student is not None:
            ema_update(self.student.parameters(), self.model.parameters(), self.student_decay)

    # The server.

    def server_stream(self, data: SiteData) -> Stream:
        """As in the base; batches that are not full may be left out."""
        stream = super().server_stream(data)
        stream.min_batch = stream.batch_size if self.hparams.drop_incomplete else 1
        return stream


def predictor(features: int, width: int) -> nn.Sequential:
    """h: linear, batch norm, ReLU, linear; ``features`` numbers in and out."""
    return nn.Sequential(nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, features))


def dissimilarity(prediction: Tensor, target: Tensor) -> Tensor:
    """``-mean cos(p, z)`` over the rows of two matrices ``[B, d]``; the second carries no gradient."""
    return -F.cosine_similarity(prediction, target.detach(), dim=1).mean()


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """``KL(p || q)`` summed over classes, as a mean over samples, of the softmax of logits ``[B, C]``; p is fixed."""
    p, q = target.detach().log_softmax(dim=1), logits.log_softmax(dim=1)
    return (p.exp() * (p - q)).sum(dim=1).mean()


def student_decay(step: int) -> float:
    """``1 - 4e-4 (cos(pi k / 20000) + 1) / 2`` after k steps (released code)."""
    return 1.0 - 4e-4 * (cos(pi * step / 20000) + 1.0) / 2.0


def warmup_factor(step: int, length: int) -> float:
    """Factor on the rate in the 0-based step of a visit (released code): 1 in the first; the other ``length`` of the
    warm-up go from 0 to 1, both included, in equal parts: ``(step - 1) / (length - 1)``. After that it stays 1.
    """
    return 1.0 if step == 0 else min((step - 1) / max(length - 1, 1), 1.0)
