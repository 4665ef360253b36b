"""LocalSSL: a federated algorithm (FedAvg, FedProx) around a local objective (supervised, UDA, FixMatch)."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import SiteData
from datamodules.common.errors import ConfigError
from methods.base import Batch, FedMethod, Site, Stream
from methods.parts import ops


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

    With ``forward_local=separate`` nothing sees the images that no loss needs, so FedAvg* normalises with labelled
    images only. ``None`` stands for the value that belongs to ``objective``.

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
        self.require(
            prox_mu=prox_mu >= 0,
            temperature=temperature > 0,
            unlabelled_bs=unlabelled_bs is None or unlabelled_bs >= 1,
            unsup_ramp=(unsup_ramp or 0) >= 0,
        )
        preset = {**self.shared_preset, **self.presets[objective]}
        (h := self.hparams).update({name: v for name, v in preset.items() if h[name] is None})
        self.require(steps_per_visit=h["lr_schedule"] != "release" if steps_per_visit is None else steps_per_visit >= 1)
        self.views = {"labelled": {"x": labelled_view}, "unlabelled": {"weak": "weak", "strong": "strong"}}
        self.anchor = copy.deepcopy(model).requires_grad_(False) if prox_mu else None
        self.supervised = False

    def configure_optimizers(self) -> Any:
        """Adam, or the base class's SGD."""
        return self.make_optimizer(self.model.parameters(), self.hparams["lr"], self.hparams["optimizer"])

    def make_optimizer(self, parameters: Iterable[Tensor], lr: float, kind: str) -> torch.optim.Optimizer:
        """An optimiser of this kind with the method's other constants."""
        h = self.hparams
        if kind == "adam":
            betas = tuple(h["adam_betas"] or (0.9, 0.999))
            return torch.optim.Adam(parameters, lr, betas, weight_decay=h["weight_decay"], fused=True)
        return torch.optim.SGD(
            parameters, lr, h["momentum"], weight_decay=h["weight_decay"], nesterov=h["nesterov"], fused=True
        )

    def client_start(self, first: bool) -> None:
        """Keep what the proximal term pulls to."""
        if self.anchor is not None:
            self.anchor.load_state_dict(self.model.state_dict())

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """The unlabelled batch follows from the client's sizes; labels that the data reveal come along."""
        streams, h = super().streams(data), self.hparams
        if "unlabelled" in streams:
            sizes = len(data.labelled), len(data.unlabelled)
            rule = ops.unlabelled_batch(*sizes, h["batch_size"], self.few_steps, self.batch_cap)
            streams["unlabelled"].batch_size = h["unlabelled_bs"] or rule
            streams["unlabelled"].fields = {} if data.revealed is None else {"y": data.revealed}
        return streams

    def client_prepare(self, client: Site) -> Mapping[str, Stream]:
        """Supervised steps come first, with the same optimiser; the streams then start anew."""
        streams, steps = self.streams(client.data), self.hparams["supervised_steps"]
        for stream in streams.values():
            stream.cycle = True
        if steps:
            self.train()
            self.supervised = True
            client.fit(streams, 1, steps)
            self.supervised = False
        if self.steps() is None and streams:
            streams["labelled" if "labelled" in streams else "unlabelled"].cycle = False
        return streams

    def steps(self) -> int | None:
        """A fixed number, or one pass over the labelled images."""
        steps: int | None = self.hparams["steps_per_visit"]
        return steps

    def local_step(self, batch: Batch, batch_idx: int, optimizer: Any) -> None:
        """One step at the schedule's learning rate."""
        self.set_rate(optimizer, batch_idx + (0 if self.supervised else self.hparams["supervised_steps"]))
        super().local_step(batch, batch_idx, optimizer)

    def set_rate(self, optimizer: torch.optim.Optimizer, step: int, wait: int = 0) -> None:
        """Set the rate of the visit's ``step``-th step, counted from where the optimiser came into use."""
        h = self.hparams
        if h["lr_schedule"] == "release":
            total = (h["steps_per_visit"] or 0) * h["local_epochs"]
            factor = ops.release_rate(step, h["warmup_steps"], total, wait)
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("base_lr", group["lr"]) * factor

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The local objective; ``batch_idx`` is the step that the ramp counts."""
        return self.local_loss(batch, self.outputs(batch), batch_idx)

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Logits by field: of all views in one forward pass, or separately of those that a loss needs."""
        parts = [batch[stream] for stream in ("labelled", "unlabelled") if stream in batch]
        views = {name: view for part in parts for name, view in part.items() if name != "y"}
        if self.hparams["forward_local"] == "joint":
            logits = self(torch.cat(list(views.values()))).split([len(view) for view in views.values()])
            return dict(zip(views, logits, strict=True))
        needed = {name: view for name, view in views.items() if name not in self.unused_views(batch)} or views
        return {name: self(view) for name, view in needed.items()}

    def unused_views(self, batch: Batch) -> set[str]:
        """Views of unlabelled images that no term of this step's loss needs."""
        consistent = self.hparams["unsup_weight"] and not self.supervised
        return set() if consistent else {"strong"} if "y" in batch.get("unlabelled", {}) else {"weak", "strong"}

    def local_loss(self, batch: Batch, out: Mapping[str, Tensor], step: int) -> Tensor:
        """Supervised, consistency and proximal terms."""
        h, terms = self.hparams, []
        if "x" in out:
            terms.append(F.cross_entropy(out["x"], batch["labelled"]["y"]))
        if "weak" in out and not self.supervised:
            if h["unsup_weight"]:
                ramp = min(1.0, (step + 1) / h["unsup_ramp"]) if h["unsup_ramp"] else 1.0
                terms.append(h["unsup_weight"] * ramp * self.consistency(out))
            elif "y" in batch["unlabelled"]:
                terms.append(F.cross_entropy(out["weak"], batch["unlabelled"]["y"]))
        if self.anchor is not None:
            terms.append(h["prox_mu"] * ops.proximal_term(self.model.parameters(), self.anchor.parameters()))
        return sum(terms, start=0.0 * next(iter(out.values())).sum())

    def consistency(self, out: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of the strong view against the weak view's prediction, masked, over all images."""
        losses, certain = self.unsupervised(out)
        return ops.weighted_loss(losses, certain)

    def unsupervised(self, out: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Loss of every unlabelled image, and 1 where the weak view is certain, else 0; ``[N]`` each."""
        h, soft = self.hparams, self.hparams["unsup_targets"] == "soft"
        targets, certain = ops.pseudo_labels(out["weak"], h["threshold"], h["temperature"], soft)
        self.tally("pseudo/certain", certain.float().mean())
        losses = F.cross_entropy(ops.wide(out["strong"]), targets, reduction="none")
        return losses, certain.to(losses.dtype)
