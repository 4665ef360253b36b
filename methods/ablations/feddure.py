"""FedDure without its regulators (Table 2, controls), as in the released client, and exactly as printed in its paper.

A regulator that a variant does not use still exists, but no step uses it.
"""

from math import cos, pi
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from methods.base import Batch
from methods.feddure import FedDure, is_joint, stateless


class WithoutCReg(FedDure):
    """Table 2, w/o C-reg: F-reg looks ahead with the local model, and there is no feedback.

    The look-ahead uses separate forward passes, which do not change the model's running statistics.
    """

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Eqs. 1 and 4 to 7 with the local model in C-reg's place; returns the loss."""
        local, _, freg = cast(Any, self.optimizers())
        out = self.outputs(batch)
        if is_joint(batch):
            x, y, u_s = batch["labelled"]["x"], batch["labelled"]["y"], batch["unlabelled"]["strong"]
            z, y_hat = stateless(self.model, u_s), out["weak"].detach().argmax(dim=1)
            self.descend(freg, self.look_ahead_loss(self.model, u_s, z, y_hat, x, y))
        return self.local_step(local, self.local_loss(batch, out))


class WithoutFReg(FedDure):
    """Table 2, w/o F-reg: all images have the same weight for C-reg, and a threshold replaces the weights m."""

    view_of_creg: ClassVar[str] = "strong"
    view_of_feedback: ClassVar[str] = "weak"

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Eqs. 1 to 3 and 7 to 10 without weights; returns the local model's loss."""
        local, creg, _ = cast(Any, self.optimizers())
        out = self.outputs(batch)
        loss = self.local_loss(batch, out)
        if is_joint(batch):
            x, y, u = batch["labelled"]["x"], batch["labelled"]["y"], batch["unlabelled"][self.view_of_creg]
            z, y_hat = self.creg(u), out["weak"].detach().argmax(dim=1)
            before = self.creg_loss(x, y)
            self.descend(creg, F.cross_entropy(z, y_hat, reduction="none").mean())
            d = self.hparams.feedback_weight * (before - self.creg_loss(x, y))
            target = out[self.view_of_feedback].detach().argmax(dim=1)
            loss = loss + self.feedback(d, target, out)
        return self.local_step(local, loss)

    def local_weights(self, logits: Tensor) -> Tensor:
        """m: one for every image."""
        return torch.ones(())


class Released(WithoutFReg):
    """The released client, which has no F-reg.

    C-reg sees weak views, the feedback uses the strong views' own labels, and the rates of the local model and of C-reg
    follow a schedule over the steps of a visit. Its other values, including the sign of d, are in the suite's rows.

    Args:
        warmup_steps: steps over which the schedule raises a rate.
        creg_wait: joint steps before C-reg's schedule, which itself starts at rate 0.
    """

    view_of_creg = "weak"
    view_of_feedback = "strong"

    def __init__(self, model: nn.Module, warmup_steps: int = 10, creg_wait: int = 2, **base: Any) -> None:
        super().__init__(model, **base)
        self.require("a number, for the schedule", steps_per_visit=self.hparams.steps_per_visit is not None)

    def configure_optimizers(self) -> Any:
        """Create the optimisers, and schedules for the local model and C-reg that ``on_train_batch_start`` advances."""
        local, creg, freg = super().configure_optimizers()
        return [local, creg, freg], [self.schedule(local), self.schedule(creg, wait=self.hparams.creg_wait)]

    def schedule(self, optimizer: Optimizer, wait: int = 0) -> LambdaLR:
        """Return a schedule over the steps of a visit; the rate is 0 for the first ``wait`` steps."""
        h = self.hparams
        steps = h.steps_per_visit * h.local_epochs
        return LambdaLR(optimizer, lambda step: released_rate(step, h.warmup_steps, steps, wait))

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set this step's rates: the local model's schedule counts all steps of the visit, C-reg's the joint ones."""
        local, creg = cast(Any, self.lr_schedulers())
        if self.trainer.global_step > 0:
            local.step()
        if is_joint(batch) and self.joint_steps > 0:
            creg.step()
        super().on_train_batch_start(batch, batch_idx)


class FRegOnLogits(FedDure):
    """F-reg sees the output vector itself (Eqs. 4, 6); the released code's unused network sees probabilities."""

    def image_weights(self, logits: Tensor) -> Tensor:
        """F-reg's weights ``[N]`` for logits ``[N, C]``, which get no gradient."""
        return self.freg(logits.detach().to(self.dtype))


class DifferentiableWeights(FedDure):
    """Eqs. 2 and 4 to the letter: C-reg's gradient flows through the weights of its images, too."""

    def image_weights(self, logits: Tensor) -> Tensor:
        """F-reg's weights ``[N]``, with a gradient to the logits ``[N, C]``."""
        return self.freg(logits.to(self.dtype).softmax(dim=1))


class AsWritten(FedDure):
    """``FRegOnLogits`` and ``DifferentiableWeights`` together."""

    def image_weights(self, logits: Tensor) -> Tensor:
        """F-reg's weights ``[N]``, with a gradient to the logits ``[N, C]``."""
        return self.freg(logits.to(self.dtype))


class NormalisedWeights(FedDure):
    """Weighted losses are divided by the sum of their weights, where ``FedDure`` takes the mean over all images."""

    def weighted(self, losses: Tensor, weights: Tensor) -> Tensor:
        """``sum_i w_i l_i / sum_i w_i``."""
        return (weights * losses).sum() / weights.sum()


def released_rate(step: int, warmup: int, steps: int, wait: int = 0) -> float:
    """Factor on the learning rate after ``step`` scheduler steps (FedDure, released code).

    It is 0 for ``wait`` steps, then linear up to step ``warmup + wait``, then a cosine over ``max(1, steps - warmup -
    wait)``.
    """
    if step < wait:
        return 0.0
    if step < warmup + wait:
        return step / (warmup + wait)
    return 0.5 * (1.0 + cos(pi * (step - warmup - wait) / max(1, steps - warmup - wait)))
