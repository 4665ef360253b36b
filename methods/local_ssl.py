"""LocalSSL: a federated algorithm (FedAvg, FedProx) around a local objective (supervised, UDA, FixMatch)."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from datamodules.base import SiteData
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, LocalWork, Pass, Site, StepNumber, Stream
from methods.parts.joint_steps import in_one_pass
from methods.parts.tensors import proximal_term


class LocalSSL(FedMethod):
    """Baselines of FedDure (AAAI 2024, Tables 1 and 2): FedAvg* and FedAvg/FedProx + SL, UDA, FixMatch.

    A batch is labelled images x with labels y, and N unlabelled images in a weak and a strong view u^w, u^s. Step k of
    a visit, counted from 0, minimises ::

        CE(y, x) + lambda_k / N sum_i 1[max p(u_i^w) >= threshold] CE(target_i, u_i^s)
            + prox_mu / 2 ||theta - theta_global||^2
        lambda_k = unsup_weight * min(1, (k+1) / unsup_ramp)

    The target is the weak view's class (FixMatch, Sohn et al., NeurIPS 2020), or its probabilities at ``temperature``
    (UDA, Xie et al., NeurIPS 2020). The last term is FedProx's (MLSys 2020), over the parameters.

    The defaults are FedAvg+FixMatch. The paper's other rows are rows of its suite: UDA has soft targets, weight 8 and a
    ramp of 20 steps; FedAvg* has ``unsup_weight=0``; SL is FedAvg* on data with ``hidden_labels=revealed``, which adds
    the CE of the weak view against its true label (or ``pooled`` with ``steps_per_visit=null``: one pass over all
    images in batches of 10); FedProx rows have ``prox_mu=0.1``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``lr``, ``optimizer``, ``batch_size`` | 5e-4, Adam, 10 | CIFAR-10 6e-4; Adam new in every visit | 5e-4, Adam, 10 |
    | ``unlabelled_bs`` | not given | the client's images over round(n_s / 10) | as released |
    | ``steps_per_visit`` per local epoch | one pass | 5 (CINIC-10 10) | 5 |
    | forward pass | not given | all views share batch statistics | as released |
    | ``threshold`` | not given | 0.6 | 0.6 (originals: UDA 0.8, FixMatch 0.95) |
    | ``unsup_weight``, ``unsup_ramp``: FixMatch | not given | not released | 1, 0 |
    | ``unsup_weight``, ``unsup_ramp``, ``temperature``: UDA | not given | 8, 20, 1 | 8, 20, 1 (original: 1, 0, 0.4) |
    | ``prox_mu`` | not given | 0.1 in an unused optimiser | 0 (FedProx rows 0.1) |
    | labelled view | not given | crop, flip, Cutout 16 | as released |
    | aggregation | sizes | n_s + n_u, the whole state | as released |

    Args:
        unsup_targets: ``hard``: FixMatch; ``soft``: UDA.
        threshold: probability of its class from which on a weak view is certain.
        temperature: of the soft targets; certainty does not depend on it.
        unsup_weight: weight of the unlabelled images after the ramp.
        unsup_ramp: steps of a visit over which the weight rises; 0: none.
        unlabelled_bs: unlabelled images per step; default: from the client's numbers of images (``unlabelled_batch``).
        steps_per_visit: steps per local epoch; null: one pass over the labelled images.
            All streams start anew with every local epoch.
    """

    scenario = "all_clients"
    retired = {"supervised_steps": 0}
    scopes = {"anchor": "local"}
    views = {"labelled": {"x": "cutout"}, "unlabelled": {"weak": "weak", "strong": "strong"}}
    few_steps: ClassVar[tuple[int, int]] = (1, 2)
    batch_cap: ClassVar[int | None] = None
    lambda_k = StepNumber()

    def __init__(
        self,
        model: nn.Module,
        unsup_targets: Literal["hard", "soft"] = "hard",
        unsup_weight: float = 1.0,
        unsup_ramp: int = 0,
        threshold: float = 0.6,
        temperature: float = 1.0,
        prox_mu: float = 0.0,
        unlabelled_bs: int | None = None,
        steps_per_visit: int | None = 5,
        lr: float = 5e-4,
        optimizer: Literal["adam", "sgd"] = "adam",
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        batch_size: int = 10,
        reset_momentum: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        h = self.hparams
        self.require("from 1, or null", steps_per_visit=h.steps_per_visit is None or h.steps_per_visit >= 1)
        self.require_thresholds("threshold")
        self.anchor = copy.deepcopy(model).requires_grad_(False) if h.prox_mu else None
        self.joint_steps = 0

    def make_optimizer(self, parameters: ParamsT, lr: float | None = None) -> torch.optim.Optimizer:
        """Return Adam, or the base class's SGD."""
        h = self.hparams
        if h.optimizer == "sgd":
            return super().make_optimizer(parameters, lr)
        rate = self.learning_rate() if lr is None else lr
        # Steps may be captured in a CUDA graph.
        return torch.optim.Adam(parameters, rate, weight_decay=h.weight_decay, fused=True, capturable=True)

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Draw clients as the roster does.

        Raises:
            ConfigError: no client holds labels.
        """
        self.require_labels(roster)
        return super().select_clients(round, roster)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Set the unlabelled batch size from the client's sizes, and add labels if the data reveal them."""
        h = self.hparams
        streams = super().streams(data)
        if "unlabelled" in streams:
            n_s, n_u = len(data.labelled), len(data.unlabelled)
            size = unlabelled_batch(n_s, n_u, h.batch_size, self.few_steps, self.batch_cap)
            streams["unlabelled"].batch_size = h.unlabelled_bs or size
            streams["unlabelled"].fields = {} if data.revealed is None else {"y": data.revealed}
        return streams

    def local_work(self, client: Site) -> LocalWork:
        """Take a fixed number of steps per local epoch, or one pass over the labelled images."""
        h = self.hparams
        streams = self.streams(client.data)
        main = "labelled" if "labelled" in streams else "unlabelled"
        for name, stream in streams.items():
            stream.cycle = h.steps_per_visit is not None or name != main
        return [Pass(streams, h.steps_per_visit)] * int(h.local_epochs)

    def on_train_start(self) -> None:
        """Store the received parameters for the proximal term."""
        self.joint_steps = 0
        if self.anchor is not None:
            self.anchor.load_state_dict(self.model.state_dict())

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set lambda_k, where k is the 0-based step of the visit."""
        h = self.hparams
        self.joint_steps += 1  # k + 1
        self.lambda_k = h.unsup_weight * min(1.0, self.joint_steps / max(1, h.unsup_ramp))

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the local objective."""
        return self.local_loss(batch, self.outputs(batch))

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Logits of x, the weak and the strong view by field, from one forward pass."""
        return in_one_pass(self, batch)

    def local_loss(self, batch: Batch, out: Mapping[str, Tensor]) -> Tensor:
        """Sum the supervised, consistency and proximal terms that the batch has images for."""
        h = self.hparams
        loss = 0.0 * next(iter(out.values())).sum()
        if "labelled" in batch:
            loss = loss + F.cross_entropy(out["x"], batch["labelled"]["y"])
        if "unlabelled" in batch and h.unsup_weight:
            loss = loss + self.lambda_k * self.consistency(out)
        elif "unlabelled" in batch and "y" in batch["unlabelled"]:
            loss = loss + F.cross_entropy(out["weak"], batch["unlabelled"]["y"])
        if self.anchor is not None:
            loss = loss + h.prox_mu * proximal_term(self.model.parameters(), self.anchor.parameters())
        return loss

    def consistency(self, out: Mapping[str, Tensor]) -> Tensor:
        """Masked cross-entropy of the strong view against the weak view's prediction, averaged over all images."""
        losses, certain = self.unsupervised(out)
        return (certain * losses).sum() / len(losses)

    def unsupervised(self, out: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return each unlabelled image's loss, and 1 where the weak view is certain, else 0; ``[N]`` each."""
        h, weak = self.hparams, out["weak"].detach()
        confidence, classes = weak.softmax(dim=1).max(dim=1)
        targets = classes if h.unsup_targets == "hard" else (weak / h.temperature).softmax(dim=1)  # FixMatch, UDA
        losses = F.cross_entropy(out["strong"], targets, reduction="none")
        certain = (confidence >= h.threshold).to(weak.dtype)
        self.tally("pseudo/certain", certain.mean())
        return losses, certain


def unlabelled_batch(labelled: int, unlabelled: int, batch_size: int, few: tuple[int, int], cap: int | None) -> int:
    """Compute the unlabelled images per step from the client's numbers of images (released code).

    Args:
        labelled: labelled images n_s.
        unlabelled: unlabelled images n_u, at least 1.
        batch_size: labelled images per step.
        few: ``(a, b)``: round(n_s / batch_size), half to even, is replaced by b if it is at most a.
        cap: a batch of this size or more is divided by 4.
    """
    steps = round(labelled / batch_size)
    steps = few[1] if steps <= few[0] else steps
    size = unlabelled // steps or unlabelled
    return size // 4 if cap and size >= cap else size
