"""LocalSSL: a federated algorithm (FedAvg, FedProx) around a local objective (supervised, UDA, FixMatch)."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from datamodules.base import SiteData
from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, LocalWork, Pass, Site, Stream
from methods.parts.labelling import pseudo_labels
from methods.parts.losses import proximal_term, weighted_loss
from methods.parts.rosters import require_labels
from methods.parts.schedules import release_rate, unlabelled_batch
from methods.parts.tensors import wide


class LocalSSL(FedMethod):
    """Baselines of FedDure (AAAI 2024, Tables 1 and 2): FedAvg* and FedAvg/FedProx + SL, UDA, FixMatch.

    ``objective`` and ``prox_mu`` compose. FedAvg* is ``supervised``; SL is the same on data with
    ``hidden_labels=revealed`` (or ``pooled``, with ``steps_per_visit=null``: one pass over everything in batches of
    10). UDA and FixMatch: CE(y, x) + lambda_k / N sum_i mask_i CE(target_i, strong_i) in step k, with the weak view's
    target and mask 1[max p(weak) >= threshold], lambda_k = ``unsup_weight`` * min(1, (k+1) / ``unsup_ramp``).
    FedProx (MLSys 2020) adds mu / 2 ||theta - theta_global||^2 over the parameters.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``lr``, ``optimizer``, ``batch_size`` | 5e-4, Adam, 10 | the same; Adam is new in every visit | as the code |
    | ``unlabelled_bs`` | not given | the client's images over round(n_s / 10) | as the code |
    | ``steps_per_visit`` per local epoch | one pass | 5 | 5 |
    | ``forward_local`` | not given | all views share batch statistics | ``joint`` |
    | ``threshold`` | not given | 0.6 | 0.6 (originals: UDA 0.8, FixMatch 0.95) |
    | UDA: ``unsup_weight``, ``unsup_ramp``, ``temperature`` | not given | 8, 20, 1 | as there (original: 1, 0, 0.4) |
    | FixMatch: ``unsup_weight``, ``unsup_ramp`` | not given | not released | 1, 0 |
    | ``prox_mu`` | not given | 0.1 in an unused optimiser | FedProx rows 0.1 |
    | ``labelled_view`` | not given | crop, flip, Cutout 16 | ``cutout`` (``zero_crop``: without Cutout) |
    | ``supervised_steps``, ``lr_schedule`` | none, constant | FedDure only | 0, ``constant`` |
    | aggregation | sizes | n_s + n_u, the whole state | as the code |

    A visit is ``supervised_steps`` steps on the labelled loss, then the joint steps, with one optimiser. In supervised
    steps the unlabelled images come as the stream ``beside``: they share the batch statistics and enter no loss. With
    ``forward_local=separate`` nothing sees the images that no loss needs, so FedAvg* normalises with labelled images
    only. ``None`` stands for the value that belongs to ``objective``.

    Args:
        objective: ``supervised``, ``uda`` or ``fixmatch``, or one that a subclass adds.
        unsup_targets: ``soft``: the weak view's probabilities, sharpened by ``temperature``; ``hard``: their class.
        warmup_steps: steps over which the schedule ``release`` raises the rate.
        adam_betas: of Adam; default: 0.9 and 0.999.

    Raises:
        ConfigError: an unknown objective.
    """

    scenario = "all_clients"
    scopes = {"anchor": "local"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "supervised": {"unsup_targets": "hard", "unsup_weight": 0.0, "unsup_ramp": 0},
        "uda": {"unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20},
        "fixmatch": {"unsup_targets": "hard", "unsup_weight": 1.0, "unsup_ramp": 0},
    }
    shared_preset: ClassVar[Mapping[str, Any]] = {
        "lr": 5e-4,
        "threshold": 0.6,
        "supervised_steps": 0,
        "lr_schedule": "constant",
    }
    few_steps: ClassVar[tuple[int, int]] = (1, 2)
    batch_cap: ClassVar[int | None] = None
    lambda_k: Tensor

    def __init__(
        self,
        model: nn.Module,
        objective: str = "fixmatch",
        prox_mu: float = 0.0,
        threshold: float | None = None,
        temperature: float = 1.0,
        unsup_targets: Literal["hard", "soft"] | None = None,
        unsup_weight: float | None = None,
        unsup_ramp: int | None = None,
        forward_local: Literal["joint", "separate"] = "joint",
        labelled_view: str = "cutout",
        unlabelled_bs: int | None = None,
        steps_per_visit: int | None = 5,
        supervised_steps: int | None = None,
        lr_schedule: Literal["constant", "release"] | None = None,
        warmup_steps: int = 10,
        lr: float | None = None,
        optimizer: Literal["adam", "sgd"] = "adam",
        adam_betas: list[float] | None = None,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        batch_size: int = 10,
        reset_momentum: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        if objective not in self.presets:
            raise ConfigError(f"objective {objective!r} is unknown; choose one of {', '.join(self.presets)}")
        h = self.hparams
        for name, value in {**self.shared_preset, **self.presets[objective]}.items():
            if h[name] is None:
                h[name] = value
        self.require("from 0", prox_mu=prox_mu >= 0, unsup_ramp=h.unsup_ramp >= 0, unsup_weight=h.unsup_weight >= 0)
        self.require_thresholds("threshold")
        self.require("above 0", temperature=temperature > 0)
        self.require("from 1, or null", unlabelled_bs=unlabelled_bs is None or unlabelled_bs >= 1)
        if steps_per_visit is None:
            self.require("a number, for lr_schedule=release", steps_per_visit=h.lr_schedule != "release")
        else:
            self.require("from 1, or null", steps_per_visit=steps_per_visit >= 1)
        self.views = {"labelled": {"x": labelled_view}, "unlabelled": {"weak": "weak", "strong": "strong"}}
        self.anchor = copy.deepcopy(model).requires_grad_(False) if prox_mu else None
        self.joint_steps = 0
        self.register_buffer("lambda_k", torch.zeros((), dtype=torch.float64), persistent=False)

    def configure_optimizers(self) -> Any:
        """Adam, or the base class's SGD, at the schedule's rate."""
        h = self.hparams
        optimizer = self.make_optimizer(self.model.parameters(), h.lr, h.optimizer)
        if h.lr_schedule == "constant":
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.release_schedule(optimizer), "interval": "step"},
        }

    def make_optimizer(self, parameters: Iterable[Tensor], lr: float, kind: str) -> torch.optim.Optimizer:
        """An optimiser of this kind with the method's other constants."""
        h = self.hparams
        if kind == "adam":
            betas = tuple(h.adam_betas or (0.9, 0.999))
            # Adam wants to be told that a CUDA graph may hold its steps.
            return torch.optim.Adam(parameters, lr, betas, weight_decay=h.weight_decay, fused=True, capturable=True)
        return torch.optim.SGD(parameters, lr, h.momentum, weight_decay=h.weight_decay, nesterov=h.nesterov, fused=True)

    def release_schedule(self, optimizer: torch.optim.Optimizer, wait: int = 0) -> LambdaLR:
        """The released code's schedule over the steps of a visit; the rate is 0 for the first ``wait`` steps."""
        h = self.hparams
        total = h.steps_per_visit * h.local_epochs
        return LambdaLR(optimizer, lambda step: release_rate(step, h.warmup_steps, total, wait))

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """The roster's draw.

        Raises:
            ConfigError: no client holds labels.
        """
        require_labels(roster)
        return super().select_clients(round, roster)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """The unlabelled batch follows from the client's sizes; labels that the data reveal come along."""
        h = self.hparams
        streams = super().streams(data)
        if "unlabelled" in streams:
            rule = unlabelled_batch(
                len(data.labelled), len(data.unlabelled), h.batch_size, self.few_steps, self.batch_cap
            )
            streams["unlabelled"].batch_size = h.unlabelled_bs or rule
            streams["unlabelled"].fields = {} if data.revealed is None else {"y": data.revealed}
        return streams

    def local_work(self, client: Site) -> LocalWork:
        """Supervised steps come first; the streams then start anew.

        A joint pass is a fixed number of steps, or one pass over the labelled images.
        """
        h = self.hparams
        streams = self.streams(client.data)
        for stream in streams.values():
            stream.cycle = True
        work = []
        if h.supervised_steps:
            work.append(Pass(supervised_streams(streams), h.supervised_steps))
        joint = dict(streams)
        if h.steps_per_visit is None and streams:
            measured = "labelled" if "labelled" in streams else "unlabelled"
            joint[measured] = replace(streams[measured], cycle=False)
        return work + [Pass(joint, h.steps_per_visit)] * int(h.local_epochs)

    def on_train_start(self) -> None:
        """Keep what the proximal term pulls to."""
        self.joint_steps = 0
        if self.anchor is not None:
            self.anchor.load_state_dict(self.model.state_dict())

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set lambda_k, where k counts the joint steps of the visit from 0."""
        if "beside" in batch:
            return
        h = self.hparams
        ramp = 1.0
        if h.unsup_ramp:
            ramp = min(1.0, (self.joint_steps + 1) / h.unsup_ramp)
        self.lambda_k.fill_(h.unsup_weight * ramp)
        self.joint_steps += 1

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """The local objective."""
        return self.local_loss(batch, self.outputs(batch))

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Logits by field: of all views in one forward pass, or separately of those that a loss needs."""
        views: dict[str, Tensor] = {}
        for stream in ("labelled", "unlabelled", "beside"):
            for name, view in batch.get(stream, {}).items():
                if name != "y":
                    views[name] = view
        if self.hparams.forward_local == "joint":
            logits = self(torch.cat(list(views.values()))).split([len(view) for view in views.values()])
            return dict(zip(views, logits, strict=True))
        needed = [name for name in views if name in self.needed_views(batch)]
        return {name: self(views[name]) for name in needed or views}

    def needed_views(self, batch: Batch) -> set[str]:
        """Views that a term of this step's loss needs."""
        if "unlabelled" not in batch:
            return {"x"}
        if self.hparams.unsup_weight:
            return {"x", "weak", "strong"}
        if "y" in batch["unlabelled"]:
            return {"x", "weak"}
        return {"x"}

    def local_loss(self, batch: Batch, out: Mapping[str, Tensor]) -> Tensor:
        """Supervised, consistency and proximal terms."""
        h = self.hparams
        loss = 0.0 * next(iter(out.values())).sum()
        if "labelled" in batch:
            loss = loss + F.cross_entropy(out["x"], batch["labelled"]["y"])
        if "unlabelled" in batch and h.unsup_weight:
            consistency = self.consistency(out)
            loss = loss + self.lambda_k.to(consistency.dtype) * consistency
        elif "unlabelled" in batch and "y" in batch["unlabelled"]:
            loss = loss + F.cross_entropy(out["weak"], batch["unlabelled"]["y"])
        if self.anchor is not None:
            loss = loss + h.prox_mu * proximal_term(self.model.parameters(), self.anchor.parameters())
        return loss

    def consistency(self, out: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of the strong view against the weak view's prediction, masked, over all images."""
        losses, certain = self.unsupervised(out)
        return weighted_loss(losses, certain)

    def unsupervised(self, out: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Loss of every unlabelled image, and 1 where the weak view is certain, else 0; ``[N]`` each."""
        h = self.hparams
        soft = h.unsup_targets == "soft"
        targets, certain = pseudo_labels(out["weak"], h.threshold, h.temperature, soft)
        self.tally("pseudo/certain", certain.float().mean())
        losses = F.cross_entropy(wide(out["strong"]), targets, reduction="none")
        return losses, certain.to(losses.dtype)


def supervised_streams(streams: Mapping[str, Stream]) -> dict[str, Stream]:
    """The streams of supervised steps: unlabelled images are only there ``beside`` the labelled ones."""
    made = {name: stream for name, stream in streams.items() if name != "unlabelled"}
    if "unlabelled" in streams:
        made["beside"] = replace(streams["unlabelled"], fields={}, draws="unlabelled")
    return made
