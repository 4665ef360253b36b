"""Joint steps on labels and pseudo-labels in one forward pass (SAGE, ProxyFL), and steps on labels before them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, FedMethod, LocalWork, Pass, Scope, Site
from methods.parts.tensors import proximal_term, smoothed_divergence, wide


class JointSteps(FedMethod):
    """FixMatch-like visits at clients with labels, with the choices of SAGE's released code but for ``share_momentum``.

    A batch is labelled images x with labels y, and N unlabelled images in a weak and a strong view. A step minimises ::

        CE(y, x) + lambda_u / N sum_i m_i KL(t_i || p(strong_i)) + prox_mu / 2 ||theta - theta_received||^2

    where a method's ``targets`` defines t and m. The three views share one forward pass, and so the statistics of batch
    norm. ``received`` is a copy of the received model, kept fixed in evaluation mode for the whole visit.

    A local epoch has floor(n / ``batch_size``) steps, at least 1, where n is the client's number of unlabelled images
    (of labelled ones if it has no others). Labelled images are drawn with replacement; unlabelled ones come in shuffled
    passes without the last incomplete batch.

    Args:
        model: the network.
        threshold: smallest probability of a pseudo-label.
        lambda_u: weight of the unlabelled images; 0: they are not used.
        prox_mu: weight of FedProx's term (MLSys 2020), over the parameters of the network.
        unlabelled_bs: unlabelled images per step; a client with fewer takes all of them.
        batch_size: labelled images per step.
        share_momentum: one optimiser state for all clients and rounds, as released: a visit starts with the momentum of
            the previous one. Clients then train one at a time, in the order drawn.
    """

    scenario = "all_clients"
    scopes = {"received": "local"}
    views = {"labelled": {"x": "weak"}, "unlabelled": {"weak": "weak", "strong": "strong"}}
    contract_args = {"batch_size": 10, "unlabelled_bs": 20}

    def __init__(
        self,
        model: nn.Module,
        threshold: float = 0.95,
        lambda_u: float = 1.0,
        prox_mu: float = 0.0,
        unlabelled_bs: int = 256,
        batch_size: int = 128,
        local_epochs: int = 5,
        share_momentum: bool = False,
        lr: float = 0.1,
        weight_decay: float = 1e-4,
        clip_norm: float | None = None,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        h = self.hparams
        self.require("false beside reset_momentum", share_momentum=not (h.share_momentum and h.reset_momentum))
        self.require_thresholds("threshold")
        self.received = copy.deepcopy(model).requires_grad_(False).eval()

    def local_work(self, client: Site) -> LocalWork:
        """Return local epochs of floor(n / ``batch_size``) steps."""
        h, data = self.hparams, client.data
        streams = self.streams(data)
        steps = max(1, (len(data.unlabelled) or len(data.labelled)) // h.batch_size)
        if "labelled" in streams:
            streams["labelled"].resample = steps * h.batch_size
        if not h.lambda_u:
            streams.pop("unlabelled", None)
        if "unlabelled" in streams:
            unlabelled = streams["unlabelled"]
            unlabelled.batch_size = unlabelled.min_batch = min(h.unlabelled_bs, len(unlabelled))
            unlabelled.cycle = True
        return [Pass(streams, steps)] * int(h.local_epochs)

    def optimizer_scopes(self) -> Sequence[Scope]:
        """See ``share_momentum``."""
        return ["shared"] if self.hparams.share_momentum else super().optimizer_scopes()

    def on_train_start(self) -> None:
        """Store the received model."""
        self.received.load_state_dict(self.model.state_dict())
        self.received.eval()

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the local objective."""
        h, out, loss = self.hparams, self.outputs(batch), torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = F.cross_entropy(out["x"], batch["labelled"]["y"])
            self.log("loss_labelled", loss.detach())
        if "unlabelled" in batch:
            unlabelled = self.unlabelled_loss(batch, out)
            self.log("loss_unlabelled", unlabelled.detach())
            loss = loss + h.lambda_u * unlabelled
        if h.prox_mu:
            loss = loss + h.prox_mu * proximal_term(self.model.parameters(), self.received.parameters())
        return loss

    def unlabelled_loss(self, batch: Batch, out: Mapping[str, Tensor]) -> Tensor:
        """Mean of ``m KL(t || p(strong))`` over the unlabelled images."""
        targets, mask = self.targets(batch["unlabelled"], out["weak"].detach().softmax(dim=1))
        self.report_pseudo_labels(batch["unlabelled"]["index"], targets.argmax(dim=1), mask)
        return (mask * smoothed_divergence(targets, out["strong"])).mean()

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Logits of x, the weak and the strong view by field, from one forward pass."""
        return in_one_pass(self, batch)

    def targets(self, samples: Mapping[str, Tensor], local: Tensor) -> tuple[Tensor, Tensor]:
        """Return targets t ``[N, C]`` of unlabelled images and the mask m of those that count, bool ``[N]``.

        Args:
            samples: the unlabelled part of the batch.
            local: the local model's probabilities of the weak views, ``[N, C]``, without gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} must define targets(samples, local)")

    @torch.no_grad()
    def received_predicts(self, x: Tensor) -> Tensor:
        """Predict probabilities ``[N, C]`` with the received model."""
        return wide(self.received(x)).softmax(dim=1)


class SupervisedFirst(FedMethod):
    """A visit has ``supervised_steps`` steps on the labelled loss, then those of the class it is combined with.

    All of them share one optimiser. In supervised steps the unlabelled images are the stream ``beside``: they may
    contribute to the batch statistics, but to no loss. All streams restart with the joint steps.

    Args:
        model: the network.
        supervised_steps: number of these steps.
    """

    def __init__(self, model: nn.Module, supervised_steps: int = 0, **base: Any) -> None:
        super().__init__(model, **base)

    def local_work(self, client: Site) -> LocalWork:
        """Run the supervised steps first."""
        joint, steps = super().local_work(client), self.hparams.supervised_steps
        if not steps:
            return joint
        (first, *_) = joint
        assert isinstance(first, Pass)
        streams = {name: replace(stream, cycle=True) for name, stream in first.streams.items()}
        if "unlabelled" in streams:
            streams["beside"] = replace(streams.pop("unlabelled"), fields={}, draws="unlabelled")
        return [Pass(streams, steps), *joint]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Count the joint steps alone."""
        if "beside" not in batch:
            super().on_train_batch_start(batch, batch_idx)


def in_one_pass(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Logits of a batch's images by field, from one forward pass, so that all share the statistics of batch norm."""
    views = images(batch)
    logits = wide(net(torch.cat(list(views.values()))))
    return dict(zip(views, torch.split(logits, [len(view) for view in views.values()]), strict=True))


def images(batch: Batch) -> dict[str, Tensor]:
    """Return a batch's images by field, labelled ones first."""
    streams = [batch[name] for name in ("labelled", "unlabelled", "beside") if name in batch]
    return {field: values for stream in streams for field, values in stream.items() if field not in ("y", "index")}
