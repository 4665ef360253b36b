"""``FedMethod``: what a federated method may say, with a default for everything but ``training_step``.

A method is an ordinary ``LightningModule``. Its registered tensors are its state; ``scopes`` says where each of
them lives. While a client trains, the module *is* that client; while the server works, it *is* the server. The
framework moves the tensors, counts the bytes, stores and resumes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

import lightning as L
import torch
from torch import Tensor, nn

from datamodules.base import FSSLDataModule, Scenario, SiteData
from datamodules.common.errors import ConfigError
from datamodules.common.streams import SERVER
from datamodules.common.switches import check_switches
from datamodules.partition.roster import Roster
from datamodules.views.batches import Batch, Stream
from methods.models.backbone import Backbone
from methods.models.norm import Spread, serially
from methods.parts.aggregation import weighted_mean
from methods.parts.ops import wide

Scope = Literal["shared", "personal", "local", "server"]

OptimizerStates = list[list[dict[str, Any]]]
"""State of every parameter, by optimiser, in the order of ``configure_optimizers``."""


@dataclass(frozen=True)
class Visit:
    """One participation of one client (or of the server) in one round.

    Args:
        round: 0-based round.
        client: client id, or ``SERVER``.
        cohort: index of the cohort of this round's plan that the client was drawn for.
        repeat: how often the client has already been visited in this round.
        labelled: whether the site holds labels.
        size: number of the site's training images.
        first: whether the client takes part for the first time in the run.
        rounds: planned number of rounds of the run (for schedules).
    """

    round: int = 0
    client: int = 0
    cohort: int = 0
    repeat: int = 0
    labelled: bool = True
    size: int = 0
    first: bool = True
    rounds: int = 1


@dataclass
class Upload:
    """What a client sends back: its shared tensors, and statistics that the server may add up."""

    visit: Visit
    tensors: dict[str, Tensor]
    weight: float
    stats: dict[str, Tensor] = field(default_factory=dict)


class Site(Protocol):
    """What the hooks see of the place where they run: its data, random streams and a way to train there."""

    data: SiteData
    visit: Visit

    def generator(self, purpose: str) -> torch.Generator:
        """Random stream of this visit for ``purpose``, on the data's device (``order/...``: on the CPU)."""

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = 256) -> Iterable[Tensor]:
        """Float views of the training images at ``index``, in order and in blocks of ``size``."""

    def fit(self, streams: Mapping[str, Stream], epochs: int, steps: int | None = None) -> int:
        """Train the module as it stands on the streams; returns the number of steps taken."""

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor, per_class: bool = False) -> None:
        """Log how good pseudo-labels are; only this metric sees the hidden labels.

        Shares of all pseudo-labels given: ``pseudo/selected``, and of these the right ones, ``pseudo/correct``; the
        right ones, selected or not, ``pseudo/right``; with ``per_class`` also the parts that each class (as labelled)
        has, ``..._by_class``.
        """

    def oracle(self, index: Tensor, labels: Tensor) -> Tensor:
        """Whether ``labels`` are the true classes of the images at ``index``: for declared oracles only.

        Raises:
            RunError: the method does not say ``uses_oracle``.
        """


class FedMethod(L.LightningModule):
    """Base of all methods: plain FedAvg over whatever ``training_step`` minimises.

    Args:
        model: the network (``features``, ``head``, ``forward`` = logits ``[B, classes]``).
        lr: learning rate of SGD.
        momentum: momentum of SGD.
        nesterov: Nesterov momentum.
        weight_decay: added to the gradient of every parameter, after clipping.
        clip_norm: total gradient norm allowed before weight decay is added; ``None`` never clips.
        batch_size: samples per step of each stream.
        min_batch: shorter batches are left out (2 where batch norm on 1x1 maps cannot train on one image).
        local_epochs: passes over a client's data per visit.
        reset_momentum: forget the optimiser's state between a client's visits.
        eval_batch: test images per forward pass; default: the class's.
    """

    scenario: ClassVar[Scenario] = "partial_clients"
    """Who holds labels in the setting the method was made for; the contract tests run it there."""

    uses_oracle: bool = False
    """Whether the run may look at hidden labels through ``Site.oracle``: diagnostics that say so, never a method."""

    eval_batch: int = 256
    """Test images per forward pass; it matters only where evaluation uses batch statistics."""

    model: Backbone

    scopes: ClassVar[Mapping[str, Scope]] = {}
    """Name prefix of registered tensors -> scope; what no prefix matches is ``shared``."""

    views: Mapping[str, Mapping[str, str]] = {"labelled": {"x": "weak"}}
    """Stream (``labelled``, ``unlabelled``) -> batch field -> view of the data's pipeline."""

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.03,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 5e-4,
        clip_norm: float | None = 5.0,
        batch_size: int = 64,
        min_batch: int = 1,
        local_epochs: int = 1,
        reset_momentum: bool = False,
        eval_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["model"])
        check_switches(type(self), self.hparams)
        self.model = cast(Backbone, model)
        self.visit = Visit()
        self.eval_batch = eval_batch or self.eval_batch
        self.require(
            lr=lr is None or lr >= 0,
            momentum=0 <= momentum < 1,
            weight_decay=weight_decay >= 0,
            clip_norm=clip_norm is None or clip_norm > 0,
            batch_size=batch_size >= 1,
            min_batch=1 <= min_batch <= batch_size,
            eval_batch=self.eval_batch >= 1,
        )
        counts = {n: v for n, v in self.hparams.items() if n.endswith(("_rounds", "_epochs", "_steps")) and v}
        rates = {n: v for n, v in self.hparams.items() if n.startswith("lr_") and isinstance(v, int | float)}
        self.require(**{n: v > 0 for n, v in counts.items()}, **{n: v >= 0 for n, v in rates.items()})
        self.spread: Spread = serially  # shares work that needs no client among processes
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._tally: dict[str, list[Any]] | None = None

    def require(self, **allowed: bool) -> None:
        """Refuse arguments of the constructor whose value is not allowed, by name.

        Raises:
            ConfigError: names those arguments, their values and the method.
        """
        wrong = ", ".join(f"{name}={self.hparams[name]}" for name, fits in allowed.items() if not fits)
        if wrong:
            raise ConfigError(f"{type(self).__name__}: {wrong} is out of range; its docstring says what it stands for")

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of images ``[B, C, H, W]``."""
        logits: Tensor = self.model(x)
        return logits

    def predict(self, x: Tensor) -> Tensor:
        """Class probabilities ``[B, classes]``, float32 or wider; used for evaluation and pseudo-labels."""
        logits: Tensor = self(x)
        return wide(logits).softmax(dim=1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Scalar loss of one batch. Pure in the parameters: no in-place change, no graph kept."""
        raise NotImplementedError(f"{type(self).__name__} must define training_step(batch, batch_idx) -> loss")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Accuracy in percent, for ``Trainer.test``; a federation evaluates with ``predict`` itself."""
        right = self.predict(batch["test"]["x"]).argmax(dim=1) == batch["test"]["y"]
        self.log("acc", 100.0 * right.float().mean(), batch_size=len(right))

    def learning_rate(self) -> float:
        """Learning rate of the present visit; override for schedules and client kinds."""
        return float(self.hparams["lr"])

    def configure_optimizers(self) -> Any:
        """SGD over ``self.model``, as all the papers here but one use. May return a list of optimisers."""
        h = self.hparams
        return torch.optim.SGD(
            self.model.parameters(),
            lr=self.learning_rate(),
            momentum=h["momentum"],
            nesterov=h["nesterov"],
            weight_decay=h["weight_decay"],
            fused=True,
        )

    def local_step(self, batch: Batch, batch_idx: int, optimizer: Any) -> None:
        """One optimiser step on one batch. ``optimizer`` is what ``configure_optimizers`` returned."""
        optimizer.zero_grad()
        with self.autocast():
            loss = self.training_step(batch, batch_idx)
        loss.backward()  # type: ignore[no-untyped-call]
        self.clip(self.model.parameters())
        optimizer.step()
        self.log("loss", loss)

    def clip(self, parameters: Iterable[Tensor]) -> None:
        """Scale gradients so that their total L2 norm is at most ``clip_norm``, without reading it back."""
        if self.hparams["clip_norm"] is not None:
            nn.utils.clip_grad_norm_(parameters, self.hparams["clip_norm"])

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed-precision context of the run; enter it around forward passes in an own ``local_step``."""
        return self.precision()

    def on_local_epoch_end(self, epoch: int, epochs: int) -> None:
        """Called after each pass over a client's data (0-based ``epoch`` of ``epochs``)."""

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """Cohorts of client ids that train in this round; a client may be in several."""
        return [roster.sample(round)]

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Tensors sent to a client, by name: all shared ones, unless a method sends more or other ones.

        Args:
            server: the server's tensors at the beginning of the round (scopes ``shared`` and ``server``).
            visit: whom they go to.
        """
        return {name: server[name] for name in self.names("shared")}

    def client_start(self, first: bool) -> None:
        """The broadcast is loaded; derive what the client builds from it (teacher, copies).

        Args:
            first: the client's first participation in the run: its ``personal`` tensors hold initial values.
        """

    def client_prepare(self, client: Site) -> Mapping[str, Stream]:
        """What the client trains on in this visit; pseudo-labels over the whole set are made here."""
        return self.streams(client.data)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """The streams named in ``views`` that the site can feed; labels cycle beside unlabelled data."""
        size, least, streams = self.hparams["batch_size"], self.hparams["min_batch"], {}
        if "unlabelled" in self.views and len(data.unlabelled) >= least:
            streams["unlabelled"] = Stream(data.unlabelled, size, self.views["unlabelled"], min_batch=least)
        if "labelled" in self.views and len(data.labelled):
            streams["labelled"] = Stream(
                data.labelled,
                size,
                self.views["labelled"],
                {"y": data.labels},
                cycle="unlabelled" in streams,
                min_batch=least,
            )
        return streams

    def epochs(self) -> int:
        """Local epochs of the present visit."""
        return int(self.hparams["local_epochs"])

    def steps(self) -> int | None:
        """Steps per local epoch, or ``None`` for one pass over the streams."""
        return None

    def kept_optimizers(self, states: OptimizerStates) -> OptimizerStates:
        """What of its optimisers' states a client keeps until its next visit: all, or nothing (``reset_momentum``)."""
        return [] if self.hparams.get("reset_momentum") else states

    def client_finish(self, client: Site) -> Upload | None:
        """What goes back to the server; ``None`` (here: a client without data) leaves it out of the aggregate."""
        if not client.visit.size:
            return None
        return Upload(client.visit, self.tensors("shared"), weight=float(client.visit.size))

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Turn the uploads (in client-id order) into the next global model, held by ``self``."""
        self.load_tensors(weighted_mean([u.tensors for u in uploads], [u.weight for u in uploads]))

    def server_start(self, server: Site) -> None:
        """Called once, before the first round, with the freshly initialised model (pre-training)."""

    def server_step(self, server: Site) -> None:
        """Called after aggregation; the server may train on its own labels through ``server.fit``."""

    def is_warmup(self, round: int) -> bool:
        """Whether the model after this round is still another method's: a run's best round is not among them.

        Default: the first ``warmup_rounds``, where a method has such an argument.
        """
        return round < int(self.hparams.get("warmup_rounds", 0))

    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Re-estimate batch-norm statistics after the server's step, where a method keeps static ones."""

    def scope(self, name: str) -> Scope:
        """Scope of the registered tensor ``name``: that of the longest prefix in ``scopes``."""
        hits = [p for p in self.scopes if name == p or name.startswith(p + ".")]
        return self.scopes[max(hits, key=len)] if hits else "shared"

    def names(self, *scopes: Scope) -> list[str]:
        """Names of the registered tensors of these scopes, in registration order."""
        return [name for name in self.state_dict() if self.scope(name) in scopes]

    def tensors(self, *scopes: Scope) -> dict[str, Tensor]:
        """Copies of the registered tensors of these scopes, by name."""
        state = self.state_dict()
        return {name: state[name].detach().clone() for name in self.names(*scopes)}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into registered tensors; numbers for integer tensors are truncated."""
        state = self.state_dict()
        for name, value in tensors.items():
            state[name].copy_(value)

    def tally(self, name: str, value: Tensor, weight: float = 1.0) -> None:
        """Add ``value`` (any shape) to the visit's sums; ``tallied`` gives the mean so far."""
        if self._tally is None:
            return
        value = value.detach()
        if name in self._tally:
            self._tally[name][0] += value * weight
            self._tally[name][1] += weight
        else:
            self._tally[name] = [value * weight, weight]

    def tallied(self, name: str) -> Tensor | None:
        """Weighted mean of what the visit tallied under ``name``; ``None`` if nothing was."""
        total, weight = (self._tally or {}).get(name, (None, 0.0))
        return None if total is None or not weight else total / weight

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Lightning's ``log``; in a federation it adds to the visit's means without reading the value back."""
        if self._tally is None:
            if self._trainer is not None:
                super().log(name, value, *args, **kwargs)
            return
        self.tally(name, torch.as_tensor(value), float(kwargs.get("batch_size") or 1.0))


__all__ = ["SERVER", "Batch", "FedMethod", "Scope", "Site", "Stream", "Upload", "Visit"]
