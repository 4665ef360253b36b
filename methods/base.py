"""``FedMethod``: what a federated method may say, with a default for everything but ``training_step``.

A method is an ordinary ``LightningModule``. Its registered tensors are its state; ``scopes`` says where each of
them lives. While a client trains, the module *is* that client; while the server works, it *is* the server. The
framework moves the tensors, counts the bytes, stores and resumes them.

A client's visit is a fit: Lightning's training hooks are called in the order of ``Trainer.fit``, and a plain
``Trainer`` over the same batches takes the same steps.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from datamodules.base import FSSLDataModule, Scenario, SiteData
from datamodules.common.errors import ConfigError, RunError
from datamodules.common.options import check_arguments
from datamodules.common.precision import check_precision
from datamodules.common.streams import SERVER
from datamodules.partition.roster import Roster
from datamodules.views.batches import Batch, LocalWork, Pass, Stream, streams_of
from methods.models.backbone import Backbone
from methods.models.norm import Spread, frozen, serially, static_norms
from methods.parts.aggregation import num_bytes, weighted_mean
from methods.parts.engine_state import EngineState, StepNumber, Tally, column_of, state_of
from methods.parts.tensors import wide
from methods.parts.visits import Site, Upload, Visit

Scope = Literal["shared", "personal", "local", "server", "frozen"]
COUNT_SUFFIXES = ("_rounds", "_epochs", "_steps")  # of arguments that count something
FACTOR_PREFIXES = ("lr_", "lambda_")  # of arguments that are rates, or weights of losses
HIGHEST_THRESHOLD = 1.5  # of a probability; a threshold above 1 is one that no image reaches


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

    Some ranges are checked by name, so a subclass need not check them: an argument whose name ends in ``_rounds``,
    ``_epochs`` or ``_steps`` must be 0 or more, or ``None``, and so must a number whose name begins with ``lr_`` or
    ``lambda_``.

    Raises:
        ConfigError: an argument is out of its range; names it, its value and the range.
    """

    scenario: ClassVar[Scenario] = "partial_clients"
    """Who holds labels in the setting the method was made for; the contract tests run it there."""

    contract_args: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Arguments under which the contract tests make the method: a schedule short enough, thresholds low enough."""

    contract_data: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options of the data under which the contract tests run it, e.g. a pipeline that has its views."""

    pipeline: ClassVar[str | None] = None
    """The pipeline of images that has its views: ``fit`` takes it where neither the user nor the data set names one."""

    revision: ClassVar[int] = 1
    """Of the method's numbers: raised by hand when a change moves them, so that records tell old numbers from new."""

    uses_oracle: bool = False
    """Whether the run may look at hidden labels through ``Site.oracle``: for declared diagnostics only."""

    uploads_needed: ClassVar[str] = "mean"
    """What ``aggregate`` and ``remember`` need of the uploads' tensors. With ``sums=by_rank`` they get no more.

    ``each``: those of single clients, to compare or to keep. ``mean``: their ``weighted_mean``. ``stats`` and
    ``weight`` of every upload are there in any case. A class that overrides ``aggregate`` or ``remember`` needs
    ``each`` unless it says otherwise itself.
    """

    eval_batch: int = 256
    """Test images per forward pass; it matters where evaluation uses batch statistics, and in ``FixMatch``, where the
    views to be labelled are drawn in blocks of this size."""

    model: Backbone

    hparams: Any
    """The constructor's arguments, by attribute or by name."""

    generator: torch.Generator | None = None
    """What a step draws from, on the device; seeded anew for every visit."""

    memory: Mapping[int, Mapping[str, Tensor]] = MappingProxyType({})
    """What the server keeps of single clients (``remember``), by client; for the server's hooks, ``broadcast`` too."""

    scopes: ClassVar[Mapping[str, Scope]] = {}
    """Name prefix of registered tensors -> scope; what no prefix matches is ``shared``, or ``frozen`` where the network
    comes with it like that: parameters that need no gradient, and buffers of parts in evaluation mode."""

    retired: ClassVar[Mapping[str, Any]] = {}
    """Removed arguments and the value that old configurations may still give."""

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
        self.save_hyperparameters(ignore=["model", "make_model"])
        h = self.hparams
        check_arguments(type(self), h)
        self.model = cast(Backbone, model)
        self._frozen = frozenset(f"model.{name}" for name in frozen(model))
        self.visit = Visit()
        self.eval_batch = self.eval_batch if h.eval_batch is None else h.eval_batch
        self.require("from 0", lr=h.lr is None or h.lr >= 0, weight_decay=h.weight_decay >= 0)
        self.require("0 or more and below 1", momentum=0 <= h.momentum < 1)
        self.require("above 0, or null", clip_norm=h.clip_norm is None or h.clip_norm > 0)
        self.require("from 1", batch_size=h.batch_size >= 1, eval_batch=self.eval_batch >= 1)
        self.require("from 1 to batch_size", min_batch=1 <= h.min_batch <= h.batch_size)
        named = [name for name in h if name.endswith(COUNT_SUFFIXES) or name.startswith(FACTOR_PREFIXES)]
        self.require("from 0", **{name: not isinstance(h[name], int | float) or h[name] >= 0 for name in named})
        self.spread: Spread = serially  # shares work that needs no client among processes
        for declared in [value for cls in type(self).__mro__ for value in vars(cls).values()]:
            if isinstance(declared, StepNumber):
                self.register_buffer(declared.buffer, torch.zeros(()), persistent=False)
        self._engine = EngineState()

    def require(self, range: str, **allowed: bool) -> None:
        """Refuse arguments of the constructor whose value is not allowed, by name.

        Args:
            range: what is allowed, in words.
            allowed: for each argument, whether its value is.

        Raises:
            ConfigError: names the first of those arguments, its value, its range and the method.
        """
        for name, fits in allowed.items():
            if not fits:
                raise ConfigError(f"{type(self).__name__}: {name}={self.hparams[name]} is out of range: {range}")

    def require_thresholds(self, *names: str) -> None:
        """Refuse arguments that are compared with probabilities and cannot be meant so; ``None`` is allowed.

        Raises:
            ConfigError: as ``require``.
        """
        h = self.hparams
        fits = {name: h[name] is None or 0 <= h[name] <= HIGHEST_THRESHOLD for name in names}
        self.require(f"a probability, 0 to 1 (up to {HIGHEST_THRESHOLD}: one that no image reaches)", **fits)

    def require_labels(self, roster: Roster) -> None:
        """Refuse a federation where no client holds labels, for a method that learns from these only.

        Raises:
            ConfigError: no client holds labels.
        """
        if not roster.labelled:
            raise ConfigError(
                "no client holds labels; choose data.scenario=partial_clients, or a method that trains at the server"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of images ``[B, C, H, W]``."""
        return self.model(x)

    def predict(self, x: Tensor) -> Tensor:
        """Class probabilities ``[B, classes]``, float32 or wider; used for evaluation and pseudo-labels."""
        return wide(self(x)).softmax(dim=1)

    def on_fit_start(self) -> None:
        """A plain ``Trainer`` begins; a federation refuses the same precisions by its configuration.

        Raises:
            ConfigError: in this precision the method would train something else.
        """
        check_precision(self.trainer.precision)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """One step on one batch, in one of Lightning's two forms.

        With automatic optimisation it returns the loss (or a dict with ``loss``, or ``None`` for no step). With
        ``automatic_optimization = False`` it takes the step itself: ``self.optimizers()``,
        ``self.manual_backward(loss)``, or ``self.descend(optimizer, loss)``. Either way it runs under the run's
        autocast.

        A step may be recorded and replayed. It reads and writes its batch, registered tensors and optimiser state
        only, reads nothing back to the host, and draws from ``self.generator`` only; numbers that change between steps
        or rounds are a ``StepNumber``, assigned in ``on_train_start`` or ``on_train_batch_start``. What kind of step it
        is follows from the hyperparameters and from which streams and fields the batch has.
        """
        raise NotImplementedError(f"{type(self).__name__} must define training_step(batch, batch_idx) -> loss")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Accuracy in percent, for ``Trainer.test``; a federation evaluates with ``predict`` itself."""
        right = self.predict(batch["test"]["x"]).argmax(dim=1) == batch["test"]["y"]
        self.log("acc", 100.0 * right.float().mean(), batch_size=len(right))

    def learning_rate(self) -> float:
        """Learning rate of the present visit; override for client kinds and for schedules over rounds."""
        return float(self.hparams.lr)

    def configure_optimizers(self) -> Any:
        """The optimisers of a visit, in any of Lightning's forms; called anew for each.

        Default: ``make_optimizer`` over ``self.model``.
        """
        return self.make_optimizer(self.model.parameters())

    def make_optimizer(self, parameters: ParamsT, lr: float | None = None) -> torch.optim.Optimizer:
        """SGD, as all the papers here but one use, with the method's hyperparameters.

        Args:
            parameters: what it trains, or groups of it with options of their own, as ``torch.optim`` takes them.
            lr: its rate; default: ``learning_rate``.
        """
        h = self.hparams
        rate = self.learning_rate() if lr is None else lr
        return torch.optim.SGD(
            parameters, lr=rate, momentum=h.momentum, nesterov=h.nesterov, weight_decay=h.weight_decay, fused=True
        )

    def optimizer_scopes(self) -> Sequence[Scope]:
        """Where the state of each optimiser in the present visit lives.

        ``personal`` continues from the client's last visit and is kept for its next; ``local`` begins anew and is not
        kept. ``shared`` goes on to the next visit, whichever client makes it: the clients of a round, and of all
        rounds, then train one after the other, in the order of ``select_clients`` and in one process.

        Default: the same for all of them, ``local`` with ``reset_momentum``.
        """
        return ["local" if self.hparams.get("reset_momentum") else "personal"]

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Scale the optimiser's gradients to a total L2 norm of ``clip_norm`` at most, without reading it back.

        With manual optimisation, call it before the optimiser steps.
        """
        if self.hparams.clip_norm is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.hparams.clip_norm)

    def descend(self, optimizer: Any, loss: Tensor) -> Tensor:
        """With manual optimisation: one step of an optimiser on a loss, with gradients for its own parameters alone.

        Returns:
            The loss, without its graph.
        """
        optimizer.zero_grad()
        learning = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.manual_backward(loss, inputs=learning)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        torch.clear_autocast_cache()  # its half-precision copies of the parameters are stale now
        return loss.detach()

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed-precision context of the run, for forward passes outside ``training_step``."""
        return self._engine.autocast()

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Cohorts of client ids that train in this round; a client may be in several."""
        return [roster.sample(round)]

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Tensors sent to a client, by name: all shared ones, unless a method sends more or other ones.

        Args:
            server: the server's tensors at the beginning of the round (scopes ``shared`` and ``server``).
            visit: whom they go to.
        """
        return {name: server[name] for name in self.names("shared")}

    def sent_bytes(self, sent: Mapping[str, Tensor], visit: Visit) -> int:
        """Bytes that sending a client the tensors of ``broadcast`` takes; override where they are sparse."""
        return num_bytes(sent)

    def local_work(self, client: Site) -> LocalWork:
        """What the client trains on in this visit, epoch by epoch; pseudo-labels over the whole set are made here.

        The client has loaded what it was sent. Default: ``local_epochs`` passes over its ``streams``.
        """
        return [Pass(self.streams(client.data))] * int(self.hparams.local_epochs)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """The streams named in ``views`` that the site can feed; labels cycle beside unlabelled data.

        Unlabelled images come with their positions, ``index``, for ``report_pseudo_labels``.
        """
        streams = streams_of(data, self.views, self.hparams.batch_size, self.hparams.min_batch)
        if "unlabelled" in streams:
            streams["unlabelled"].fields = {"index": data.unlabelled}
        return streams

    def make_upload(self, client: Site) -> Upload | None:
        """What goes back to the server; ``None`` (here: a client without data) leaves it out of the aggregate."""
        if not client.visit.size:
            return None
        return Upload(client.visit, self.tensors("shared"), weight=float(client.visit.size))

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Weights of the uploads in the average, ``>= 0``; they need not sum to 1. Default: numbers of images."""
        return [upload.weight for upload in uploads]

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Turn the uploads (in client-id order) into the next global model, held by ``self``.

        Default: their mean by ``weights``. Override ``aggregate`` only where tensors of single clients are compared
        or kept. What it logs under ``name`` becomes the column ``server/<name>``, as what ``server_step`` logs.
        """
        self.load_tensors(weighted_mean([upload.tensors for upload in uploads], self.weights(uploads)))

    def remember(self, uploads: Sequence[Upload]) -> dict[int, dict[str, Tensor]]:
        """What the server keeps of these clients, by client, until it hears from them again; see ``memory``."""
        return {}

    def server_step(self, server: Site) -> None:
        """What the server trains on its own labels, through ``server.fit``.

        Called once before the first round (``server.visit.before_first_round``), then in every round, after the
        aggregation if there are uploads.
        """

    def is_warmup(self, round: int) -> bool:
        """Whether the model after this round is still another method's: a run's best round is not among them.

        Default: the first ``warmup_rounds``, where a method has such an argument.
        """
        return round < int(self.hparams.get("warmup_rounds", 0))

    def refresh_norm(self, data: FSSLDataModule) -> None:
        """Re-estimate batch-norm statistics after the server's step, where a method keeps static ones."""

    def scope(self, name: str) -> Scope:
        """Scope of the registered tensor ``name``: that of the longest prefix in ``scopes``, if there is one."""
        prefixes = [prefix for prefix in self.scopes if name == prefix or name.startswith(f"{prefix}.")]
        if prefixes:
            return self.scopes[max(prefixes, key=len)]
        return "frozen" if name in self._frozen else "shared"

    def registered(self) -> dict[str, Tensor]:
        """All registered tensors by name, in registration order; not copies."""
        tensors = self._engine.tensors
        return state_of(self) if tensors is None else tensors.by_name

    def names(self, *scopes: Scope) -> list[str]:
        """Names of the registered tensors of these scopes, in registration order."""
        return [name for name in self.registered() if self.scope(name) in scopes]

    def tensors(self, *scopes: Scope) -> dict[str, Tensor]:
        """Copies of the registered tensors of these scopes, by name."""
        state = self.registered()
        return {name: state[name].detach().clone() for name in self.names(*scopes)}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into registered tensors; numbers for integer tensors are truncated.

        Raises:
            RunError: a name is not that of a registered tensor, or a shape is not its shape.
        """
        state, looked_up = self.registered(), self._engine.tensors
        for name, value in tensors.items():
            if name not in state:
                raise RunError(f"there is no registered tensor {name!r} to load a value into")
            if value.shape != state[name].shape:
                raise RunError(f"{name!r} has the shape {list(state[name].shape)}; the value has {list(value.shape)}")
            state[name].copy_(value)
        layers = static_norms(self) if looked_up is None else looked_up.static_norms
        for name, layer in layers:
            if name in tensors:
                layer.note(tensors[name])

    def tally(self, name: str, value: Tensor, weight: float = 1.0) -> None:
        """Add ``value`` (any shape, on any device) to the visit's sums; ``tallied`` gives the mean so far.

        The mean over the round of a number or a vector becomes the column ``name`` of the record, or
        ``logged/<name>`` where that name is the framework's (``acc``, ``round``, ...).
        """
        if (tally := self._engine.tally) is not None:
            tally.add(column_of(name, self.automatic_optimization), value.to(self.device), weight)

    def tallied(self, name: str) -> Tensor | None:
        """Weighted mean of what the visit tallied or logged under ``name``; ``None`` if nothing was.

        With automatic optimisation ``loss`` is that of the steps so far.
        """
        if (tally := self._engine.tally) is None:
            return None
        mean = tally.mean(column_of(name, self.automatic_optimization))
        return tally.mean(name) if mean is None else mean

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """In a step, log the quality of the batch's pseudo-labels as ``Site.report_pseudo_labels`` does.

        Args:
            index: positions of the images in the training set, a field of their stream, int64 ``[n]``.
            labels: their pseudo-labels, ``[n]``.
            selected: which of them are used, bool ``[n]``.
        """
        if (site := self._engine.site) is not None:
            site.report_pseudo_labels(index, labels, selected)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Lightning's ``log``; in a federation it is ``tally``, and reads nothing back.

        It makes columns of what visits, ``aggregate`` and ``server_step`` log. Elsewhere it does nothing.
        """
        if self._engine.tally is not None:
            number = value if isinstance(value, Tensor) else torch.full((), float(value), device=self.device)
            optimizers = getattr(self._trainer, "optimizers", [])
            if any(group["lr"] is value for optimizer in optimizers for group in optimizer.param_groups):
                # A rate is a number in an eager step, and a tensor of another type in a recorded one.
                number = number.to(torch.get_default_dtype())
            self.tally(name, number, float(kwargs.get("batch_size") or 1.0))
        elif self._trainer is not None:
            super().log(name, value, *args, **kwargs)


__all__ = ["SERVER", "Batch", "FedMethod", "LocalWork", "Pass", "Scope"]
__all__ += ["Site", "StepNumber", "Stream", "Tally", "Upload", "Visit"]
