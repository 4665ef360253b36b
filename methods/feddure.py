"""FedDure: two regulators weigh unlabelled images, and pseudo-labels as a whole, by what they do to labelled ones."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from methods.base import Batch, OptimizerStates
from methods.local_ssl import LocalSSL
from methods.parts import look_ahead as meta
from methods.parts import ops

VARIANTS: dict[str, tuple[Any, Any]] = {  # paper, release
    "lr": (5e-4, 6e-4),
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

    One joint step: the fine-grained regulator F-reg (w, ``freg``) takes an Adam step on the labelled loss of the coarse
    regulator C-reg (phi, ``creg``) after a look-ahead step of phi on weighted pseudo-labels (Eqs. 4, 5); it then weighs
    the images of C-reg's own step (Eq. 2) and of the local model's (m_i, Eqs. 6, 8). d (Eq. 3) is how much C-reg's step
    lowered its labelled loss; the local model follows g_s + g_u + d * grad mean CE(pseudo-label, strong) (Eqs. 7-10).
    C-reg starts from the global model in every visit, F-reg stays with the client.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``variant`` | - | no F-reg at all | ``paper`` (``release``: as the code, all of the next ten rows) |
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
    | ``creg_lr`` eta_s of look-ahead and C-reg | 5e-4 | - | as ``lr`` |
    | ``creg_bn_eval``, ``creg_d_clip`` | not given | train, none | train, none (0: d is 0) |
    | ``creg_enabled`` | yes | yes | true (false: F-reg looks ahead with the local model) |

    The rest is ``LocalSSL``'s. Logged besides the loss: d, its square and how often it is negative; mean and mean
    square of m; the norms of the gradients of the labelled and the feedback term at the logits.
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
        (h := self.hparams).update(creg_lr=self.hparams["lr"] if creg_lr is None else creg_lr)
        self.require(creg_d_clip=creg_d_clip is None or creg_d_clip >= 0, creg_wait=creg_wait >= 0)
        self.creg = copy.deepcopy(model) if creg_enabled else None
        self.freg = meta.WeightNet(num_classes, freg_hidden, freg_input == "softmax") if h["freg_enabled"] else None

    def client_start(self, first: bool) -> None:
        """C-reg is a copy of the global model; F-reg is drawn once per client, or in every visit."""
        super().client_start(first)
        if self.creg is not None:
            self.creg.load_state_dict(self.model.state_dict())
        if self.freg is not None and (first or self.hparams["freg_persist"] == "none"):
            self.freg.reset_parameters()

    def configure_optimizers(self) -> Any:
        """One optimiser each for the local model, C-reg and F-reg, as far as they exist."""
        h, made = self.hparams, [super().configure_optimizers()]
        if self.creg is not None:
            made.append(self.make_optimizer(meta.learning(self.creg), h["creg_lr"], h["optimizer"]))
        if self.freg is not None:
            made.append(self.make_optimizer(self.freg.parameters(), h["freg_lr"], h["freg_optimizer"]))
        return made

    def kept_optimizers(self, states: OptimizerStates) -> OptimizerStates:
        """That of F-reg as ``freg_persist`` says; none of C-reg, which starts anew."""
        h, creg, freg = self.hparams, self.creg is not None, self.freg is not None
        keep = [not h["reset_momentum"], *[False] * creg, *[h["freg_persist"] == "params+opt"] * freg]
        kept = [old if stays else [dict[str, Any]() for _ in old] for old, stays in zip(states, keep, strict=False)]
        return kept if any(keep) else []

    def local_step(self, batch: Batch, batch_idx: int, optimizer: Any) -> None:
        """One joint step; the regulators rest in supervised steps, and where a client has one kind of images only."""
        if self.supervised or len(batch) < 2 or len(optimizer) < 2:
            return super().local_step(batch, batch_idx, optimizer[0])
        self.set_rate(optimizer[0], batch_idx + self.hparams["supervised_steps"])
        with self.autocast():
            out = self.outputs(batch)
        d = self.regulate(batch, out, optimizer, batch_idx)
        optimizer[0].zero_grad()
        with self.autocast():
            loss = self.local_loss(batch, out, batch_idx)
            loss = loss if d is None else loss + self.feedback(batch["labelled"]["y"], out, d)
        torch.autograd.backward(loss)
        self.clip(self.model.parameters())
        optimizer[0].step()
        self.log("loss", loss)

    def unused_views(self, batch: Batch) -> set[str]:
        """The regulators see all views."""
        return super().unused_views(batch) if self.supervised else set()

    def regulate(
        self, batch: Batch, out: Mapping[str, Tensor], optimizers: Sequence[Optimizer], step: int
    ) -> Tensor | None:
        """Let both regulators learn from the batch; d, or ``None`` without C-reg."""
        h, labelled, creg, freg = self.hparams, batch["labelled"], self.creg, self.freg
        view, other = (batch["unlabelled"][h[name]] for name in ("creg_view", "freg_view"))
        labels, net = out["weak"].detach().argmax(dim=1), self.model if creg is None else creg
        with self.autocast():
            logits = meta.stateless(net, view) if creg is None else net(view)
            seen = None if other is view or freg is None else meta.stateless(net, other).detach()

        def pseudo_loss(z: Tensor, weigh: bool = True) -> Tensor:
            losses = F.cross_entropy(z, labels, reduction="none")
            if freg is None or not weigh:
                return losses.mean()
            known = z if seen is None else seen
            return ops.weighted_loss(losses, freg(known.detach() if h["freg_detach_input"] else known), h["freg_norm"])

        if freg is not None:
            form, wrt = meta.FORMS[h["freg_gradient"]], list(freg.parameters())
            outer = partial(F.cross_entropy, target=labelled["y"])
            with self.autocast():
                slopes = form(net, pseudo_loss, outer, view, labelled["x"], wrt, h["creg_lr"], logits)
            meta.step_along(optimizers[-1], slopes)
        if creg is None:
            return None
        with self.autocast():
            loss = pseudo_loss(logits, h["creg_weighted"])
        old = self.creg_loss(creg, labelled)
        self.set_rate(optimizers[1], step, h["creg_wait"])
        meta.step_along(optimizers[1], torch.autograd.grad(loss, meta.learning(creg), materialize_grads=True))
        new = self.creg_loss(creg, labelled)
        d = old - new if h["creg_sign"] == "old_minus_new" else new - old
        return d if h["creg_d_clip"] is None else d.clamp(-h["creg_d_clip"], h["creg_d_clip"])

    @torch.no_grad()
    def creg_loss(self, creg: nn.Module, labelled: Mapping[str, Tensor]) -> Tensor:
        """Labelled loss of C-reg as it stands."""
        creg.train(self.hparams["creg_bn_eval"] == "train")
        with self.autocast():
            loss = F.cross_entropy(creg(labelled["x"]), labelled["y"])
        creg.train()
        return loss

    def consistency(self, out: Mapping[str, Tensor]) -> Tensor:
        """The unlabelled term of the local model: every image counts m_i, where there is an F-reg."""
        if self.freg is None:
            return super().consistency(out)
        losses, certain = self.unsupervised(out)
        m = self.freg(out[self.hparams["freg_view"]].detach()).detach()
        self.tally("freg/m", m.mean())
        self.tally("freg/m_squared", m.square().mean())
        return ops.weighted_loss(losses, m * certain, self.hparams["freg_norm"])

    def feedback(self, y: Tensor, out: Mapping[str, Tensor], d: Tensor) -> Tensor:
        """The loss behind g_d; logs d, and how large g_s and g_d are at the logits."""
        labels = out[self.hparams["creg_feedback_target"]].detach().argmax(dim=1)
        self.tally("creg/d", d)
        self.tally("creg/d_squared", d.square())
        self.tally("creg/d_negative", (d < 0).to(d.dtype))
        self.tally("gradient/labelled", ops.cross_entropy_slope(out["x"], y))
        self.tally("gradient/feedback", d.abs() * ops.cross_entropy_slope(out["strong"], labels))
        return d * F.cross_entropy(out["strong"], labels)
