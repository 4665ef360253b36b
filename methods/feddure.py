"""FedDure: two regulators weigh unlabelled images, and pseudo-labels as a whole, by what they do to labelled ones."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad
from torch.optim import Optimizer

from methods.base import Batch, Scope
from methods.local_ssl import LocalSSL
from methods.parts import look_ahead as meta
from methods.parts.losses import cross_entropy_slope, weighted_loss

VARIANTS: dict[str, tuple[Any, Any]] = {  # paper, release
    "lr": (5e-4, 6e-4),
    "creg_lr": (5e-4, 6e-4),
    "threshold": (0.0, 0.6),
    "unsup_targets": ("hard", "soft"),
    "unsup_weight": (1.0, 8.0),
    "unsup_ramp": (0, 20),
    "supervised_steps": (0, 5),
    "lr_schedule": ("constant", "release"),
    "creg_sign": ("old_minus_new", "new_minus_old"),
    "creg_view": ("strong", "weak"),
    "creg_weighted": (True, False),
    "creg_feedback_target": ("weak", "strong"),
    "freg_enabled": (True, False),
}


class FedDure(LocalSSL):
    """Federated semi-supervised learning with dual regulators (Bai et al., AAAI 2024), Algorithm 1.

    Symbols: the local model f_l has the parameters theta (``model``), the coarse regulator C-reg f_d has phi
    (``creg``), the fine-grained regulator F-reg f_w has w (``freg``). A batch is n labelled images x with labels y, and
    N unlabelled images in a weak and a strong view u^w, u^s. y_hat are the pseudo-labels, h_i and m_i the weights that
    F-reg gives an image from the logits of C-reg and of the local model, d is the reward of all pseudo-labels together.

    One joint step: F-reg takes a step on the labelled loss of C-reg after a look-ahead step of phi on weighted
    pseudo-labels (Eqs. 4, 5); it then weighs the images of C-reg's own step (Eq. 2) and of the local model's (Eqs. 6,
    7). d (Eq. 3) is how much C-reg's step lowered its labelled loss; the local model follows
    g_s + g_u + d * grad mean CE(y_hat, f_l(u^s)) (Eqs. 7-10). C-reg starts from the global model in every visit, F-reg
    stays with the client. The regulators rest in supervised steps, and where a client has one kind of images only.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``variant`` | - | no F-reg at all | ``paper`` (``release``: as the code on CIFAR-10 in the rows "by variant") |
    | ``lr`` | 5e-4 | 6e-4 (CINIC-10 5e-4) | by variant |
    | ``creg_sign`` of d | old - new | new - old | by variant |
    | ``creg_view``, ``creg_weighted`` | strong, by F-reg | weak, not weighted | by variant |
    | ``creg_feedback_target`` of g_d | weak view | argmax of the strong view | by variant |
    | ``unsup_targets``, ``threshold`` | hard, none | soft, 0.6 | by variant |
    | ``unsup_weight``, ``unsup_ramp`` | 1, none | 8, 20 steps | by variant |
    | ``supervised_steps`` before the joint ones | none | 5 (CINIC-10 100) | by variant |
    | ``steps_per_visit`` | one pass | 5 (CINIC-10 10) | 5 |
    | ``lr_schedule``, ``warmup_steps``, ``creg_wait`` | constant | warm-up 10, 2 (CINIC-10 100, 0) | by variant |
    | ``freg_enabled`` | yes | no | by variant |
    | ``freg_hidden``, ``freg_lr``, ``freg_optimizer`` | 128, 5e-4, Adam | 100, 1e-3, unused | 128, 5e-4, Adam |
    | ``freg_persist`` | w is initialised once per client | new in every visit, unused | ``params`` |
    | ``freg_input``, ``freg_view`` | output vector, strong | softmax, weak, unused | softmax, strong |
    | ``freg_detach_input``, ``freg_norm`` | not given | detached, none in the unused network | true, ``none`` |
    | ``creg_lr`` eta_s of look-ahead and C-reg | 5e-4 | as ``lr`` | by variant, whatever ``lr`` is |
    | ``creg_bn_eval``, ``creg_d_clip`` | not given | train, none | train, none (0: d is 0) |
    | ``creg_enabled`` | yes | yes | true (false: F-reg looks ahead with the local model) |

    The rest is ``LocalSSL``'s. Logged besides the loss: d, its square and how often it is negative; mean and mean
    square of m; the norms of the gradients of the labelled and the feedback term at the logits.

    Args:
        freg_gradient: computes the meta-gradient: ``jvp`` by one forward-mode product, ``double_backward`` by two
            backward passes. Both give the same up to rounding.
    """

    scopes = {**LocalSSL.scopes, "creg": "local", "freg": "personal"}
    presets = {name: {key: pair[n] for key, pair in VARIANTS.items()} for n, name in enumerate(("paper", "release"))}
    few_steps = (2, 4)
    batch_cap = 400

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        variant: Literal["paper", "release"] = "paper",
        creg_enabled: bool = True,
        creg_lr: float | None = None,
        creg_wait: int = 2,
        creg_sign: Literal["old_minus_new", "new_minus_old"] | None = None,
        creg_view: Literal["strong", "weak"] | None = None,
        creg_weighted: bool | None = None,
        creg_feedback_target: Literal["weak", "strong"] | None = None,
        creg_bn_eval: Literal["train", "eval"] = "train",
        creg_d_clip: float | None = None,
        freg_enabled: bool | None = None,
        freg_hidden: int = 128,
        freg_lr: float = 5e-4,
        freg_optimizer: Literal["adam", "sgd"] = "adam",
        freg_persist: Literal["params", "params+opt", "none"] = "params",
        freg_input: Literal["softmax", "logits"] = "softmax",
        freg_view: Literal["strong", "weak"] = "strong",
        freg_detach_input: bool = True,
        freg_norm: Literal["none", "sum"] = "none",
        freg_gradient: Literal["jvp", "double_backward"] = "jvp",
        **base: Any,
    ) -> None:
        super().__init__(model, objective=variant, **base)
        h = self.hparams
        self.require("from 0", creg_wait=creg_wait >= 0, creg_lr=h.creg_lr >= 0, freg_lr=freg_lr >= 0)
        self.require("from 1", freg_hidden=freg_hidden >= 1)
        self.require("from 0, or null", creg_d_clip=creg_d_clip is None or creg_d_clip >= 0)
        self.automatic_optimization = False
        self.creg = copy.deepcopy(model) if creg_enabled else None
        self.freg = meta.WeightNet(num_classes, freg_hidden, freg_input == "softmax") if h.freg_enabled else None

    def configure_optimizers(self) -> Any:
        """One optimiser each for the local model, C-reg and F-reg, as far as they exist.

        The schedules, if any, are those of the local model and of C-reg; ``on_train_batch_start`` moves them.
        """
        h = self.hparams
        local = self.make_optimizer(self.model.parameters(), h.lr, h.optimizer)
        optimizers, schedules = [local], []
        if h.lr_schedule == "release":
            schedules.append(self.release_schedule(local))
        if self.creg is not None:
            creg = self.make_optimizer(meta.learning(self.creg), h.creg_lr, h.optimizer)
            optimizers.append(creg)
            if h.lr_schedule == "release":
                schedules.append(self.release_schedule(creg, wait=h.creg_wait))
        if self.freg is not None:
            optimizers.append(self.make_optimizer(self.freg.parameters(), h.freg_lr, h.freg_optimizer))
        return optimizers, schedules

    def optimizer_scopes(self) -> Sequence[Scope]:
        """That of C-reg is new in every visit, that of F-reg as ``freg_persist`` says."""
        scopes = list(super().optimizer_scopes())
        if self.creg is not None:
            scopes.append("local")
        if self.freg is not None:
            scopes.append("personal" if self.hparams.freg_persist == "params+opt" else "local")
        return scopes

    def optimizers_by_part(self) -> tuple[Any, Any, Any]:
        """The optimisers of the local model, C-reg and F-reg; ``None`` for a regulator that does not exist."""
        made = self.optimizers()
        left = list(made) if isinstance(made, list) else [made]
        local = left.pop(0)
        creg = None if self.creg is None else left.pop(0)
        freg = None if self.freg is None else left.pop(0)
        return local, creg, freg

    def on_train_start(self) -> None:
        """C-reg is a copy of the global model; F-reg is drawn once per client, or in every visit."""
        super().on_train_start()
        if self.creg is not None:
            self.creg.load_state_dict(self.model.state_dict())
        if self.freg is not None and (self.visit.first or self.hparams.freg_persist == "none"):
            self.freg.reset_parameters(self.generator)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the rates of this step: the local model's counts all steps of the visit, C-reg's the joint ones."""
        if self.hparams.lr_schedule == "release":
            made: Any = self.lr_schedulers()
            schedules = made if isinstance(made, list) else [made]
            if self.trainer.global_step > 0:
                schedules[0].step()
            if self.creg is not None and is_joint(batch) and self.joint_steps > 0:
                schedules[1].step()
        super().on_train_batch_start(batch, batch_idx)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step of Algorithm 1; returns the local model's loss."""
        optimizer, creg_optimizer, freg_optimizer = self.optimizers_by_part()
        out = self.outputs(batch)
        d = None
        if is_joint(batch) and (self.creg is not None or self.freg is not None):
            labelled, unlabelled = batch["labelled"], batch["unlabelled"]
            y_hat = out["weak"].detach().argmax(dim=1)  # Eq. 1
            z, seen = self.regulator_logits(unlabelled)
            if self.freg is not None:
                self.update_freg(self.freg, labelled, unlabelled, y_hat, z, seen, freg_optimizer)  # Eqs. 4, 5
            if self.creg is not None:
                before = self.creg_loss(self.creg, labelled)
                self.update_creg(self.creg, y_hat, z, seen, creg_optimizer)  # Eq. 2
                after = self.creg_loss(self.creg, labelled)
                d = self.coarse_reward(before, after)  # Eq. 3
        loss = self.local_loss(batch, out)  # Eqs. 6, 7, 9
        if d is not None:
            loss = loss + self.feedback(batch["labelled"]["y"], out, d)  # Eq. 8
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()  # Eq. 10
        loss = loss.detach()
        self.log("loss", loss)
        return loss

    def needed_views(self, batch: Batch) -> set[str]:
        """The regulators see all views."""
        if "unlabelled" in batch:
            return {"x", "weak", "strong"}
        return super().needed_views(batch)

    def looking_ahead(self) -> nn.Module:
        """The network whose look-ahead step F-reg learns from: C-reg, or without one the local model."""
        return self.model if self.creg is None else self.creg

    def regulator_logits(self, unlabelled: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Logits z ``[N, C]`` of ``creg_view``, and those of ``freg_view`` where F-reg looks at another view.

        Without C-reg they are the local model's, in a pass of their own that leaves its running statistics alone.
        """
        h = self.hparams
        if self.creg is None:
            z = meta.stateless(self.model, unlabelled[h.creg_view])
        else:
            z = self.creg(unlabelled[h.creg_view])
        seen = None
        if self.freg is not None and h.freg_view != h.creg_view:
            seen = meta.stateless(self.looking_ahead(), unlabelled[h.freg_view]).detach()
        return z, seen

    def pseudo_loss(self, z: Tensor, y_hat: Tensor, seen: Tensor | None) -> Tensor:
        """``1/N sum_i h_i CE(y_hat_i, z_i)``, where F-reg sees ``seen``, or else z; without F-reg all h_i are 1."""
        losses = F.cross_entropy(z, y_hat, reduction="none")
        if self.freg is None:
            return losses.mean()
        known = z if seen is None else seen
        if self.hparams.freg_detach_input:
            known = known.detach()
        return weighted_loss(losses, self.freg(known), self.hparams.freg_norm)

    def update_freg(
        self,
        freg: nn.Module,
        labelled: Mapping[str, Tensor],
        unlabelled: Mapping[str, Tensor],
        y_hat: Tensor,
        z: Tensor,
        seen: Tensor | None,
        optimizer: Optimizer,
    ) -> None:
        """Eqs. 4, 5: step w along ``d/dw CE(y, f_d(x; phi^-))``, where ``phi^- = phi - eta_s d/dphi pseudo_loss``."""
        h = self.hparams
        meta_gradient = meta.FORMS[h.freg_gradient]
        gradients = meta_gradient(
            net=self.looking_ahead(),
            inner=partial(self.pseudo_loss, y_hat=y_hat, seen=seen),
            outer=partial(F.cross_entropy, target=labelled["y"]),
            unlabelled=unlabelled[h.creg_view],
            labelled=labelled["x"],
            wrt=list(freg.parameters()),
            lr=h.creg_lr,
            logits=z,
        )
        meta.step_along(optimizer, gradients)

    def update_creg(self, creg: nn.Module, y_hat: Tensor, z: Tensor, seen: Tensor | None, optimizer: Optimizer) -> None:
        """Eq. 2: step phi along the gradient of its loss on pseudo-labels, weighted by the updated F-reg."""
        if self.hparams.creg_weighted:
            loss = self.pseudo_loss(z, y_hat, seen)
        else:
            loss = F.cross_entropy(z, y_hat, reduction="none").mean()
        meta.step_along(optimizer, grad(loss, meta.learning(creg), materialize_grads=True))

    def coarse_reward(self, before: Tensor, after: Tensor) -> Tensor:
        """Eq. 3: d, how much C-reg's step lowered its labelled loss (or raised it: ``creg_sign``)."""
        h = self.hparams
        d = before - after if h.creg_sign == "old_minus_new" else after - before
        if h.creg_d_clip is not None:
            d = d.clamp(-h.creg_d_clip, h.creg_d_clip)
        return d

    @torch.no_grad()
    def creg_loss(self, creg: nn.Module, labelled: Mapping[str, Tensor]) -> Tensor:
        """Labelled loss of C-reg as it stands, ``CE(y, f_d(x; phi))``."""
        creg.train(self.hparams.creg_bn_eval == "train")
        loss = F.cross_entropy(creg(labelled["x"]), labelled["y"])
        creg.train()
        return loss

    def consistency(self, out: Mapping[str, Tensor]) -> Tensor:
        """Eqs. 6, 7: ``1/N sum_i m_i CE(y_hat_i, f_l(u^s_i))``, the m_i from the updated F-reg, where there is one."""
        if self.freg is None:
            return super().consistency(out)
        losses, certain = self.unsupervised(out)
        m = self.freg(out[self.hparams.freg_view].detach()).detach()
        self.tally("freg/m", m.mean())
        self.tally("freg/m_squared", m.square().mean())
        return weighted_loss(losses, m * certain, self.hparams.freg_norm)

    def feedback(self, y: Tensor, out: Mapping[str, Tensor], d: Tensor) -> Tensor:
        """Eq. 8: the loss behind g_d; logs d, and how large g_s and g_d are at the logits."""
        labels = out[self.hparams.creg_feedback_target].detach().argmax(dim=1)
        self.tally("creg/d", d)
        self.tally("creg/d_squared", d.square())
        self.tally("creg/d_negative", (d < 0).to(d.dtype))
        self.tally("gradient/labelled", cross_entropy_slope(out["x"], y))
        self.tally("gradient/feedback", d.abs() * cross_entropy_slope(out["strong"], labels))
        return d * F.cross_entropy(out["strong"], labels)


def is_joint(batch: Batch) -> bool:
    """Whether the step trains on labelled and unlabelled images together."""
    return "labelled" in batch and "unlabelled" in batch
