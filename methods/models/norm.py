"""Ways of normalising maps; batch normalisation with statistics that are measured in a pass of their own.

The papers normalise in four ways, named by ``norm`` in the models that offer a choice:

* ``static``: train on the statistics of the batch, evaluate with those that ``reestimate`` measured ((FL)²,
  SemiFL);
* ``batch``: no stored statistics, evaluation too uses the batch at hand (FedDB as released);
* ``running``: ordinary batch normalisation (FedCon);
* ``group``: group normalisation (FedRGD).
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError, RunError

Norm = Literal["static", "batch", "running", "group"]
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Applies a function to all items and returns the results in order."""


def serially(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """One after the other."""
    return [work(item) for item in items]


class StaticBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation whose stored statistics change only in ``reestimate``.

    In training mode it normalises with the batch and leaves its buffers alone. In evaluation mode it
    normalises with ``running_mean`` and ``running_var`` if they have been estimated, else with the batch.
    Whether they have been is what the buffer ``num_batches_tracked`` says: it travels with checkpoints and
    broadcasts. It is read when state is loaded, so that no forward pass has to ask the device.
    """

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps=eps, momentum=None)
        self.estimated = False
        self.measures = False  # whether the statistics become those of the batch at hand
        self._told_by: Tensor | None = None

    @property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """The stored mean and variance, [channels]."""
        return self.get_buffer("running_mean"), self.get_buffer("running_var")

    def note(self, count: Tensor) -> None:
        """Learn from ``num_batches_tracked``, or from what is copied into it, whether there are statistics.

        The same tensor is read once only: a whole round's clients load the same one.
        """
        if count is not self._told_by:
            self.estimated, self._told_by = bool(count), count

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.estimated, self._told_by = bool(self.num_batches_tracked), None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [B, C, H, W] per channel."""
        mean, var, weight, bias, eps = self.running_mean, self.running_var, self.weight, self.bias, self.eps
        if self.measures:
            return F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0, eps=eps)
        if self.estimated and not self.training:
            return F.batch_norm(x, mean, var, weight, bias, eps=eps)
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)


def static_norms(module: nn.Module) -> list[tuple[str, StaticBatchNorm2d]]:
    """All static layers of a module, each with the name of its ``num_batches_tracked`` in the module's state."""
    named = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, StaticBatchNorm2d)]
    return [(f"{name}.num_batches_tracked", layer) for name, layer in named]


def normalisation(kind: Norm, channels: int, groups: int = 32) -> nn.Module:
    """Build a normalisation layer for maps [B, channels, H, W]; ``group`` takes min(groups, channels) groups.

    Raises:
        ConfigError: unknown kind, or channels that do not divide into the groups.
    """
    match kind:
        case "static":
            return StaticBatchNorm2d(channels)
        case "batch":
            return nn.BatchNorm2d(channels, track_running_stats=False)
        case "running":
            return nn.BatchNorm2d(channels)
        case "group":
            groups = min(groups, channels)
            if groups < 1 or channels % groups:
                raise ConfigError(f"norm=group: {channels} channels do not divide into {groups} groups")
            return nn.GroupNorm(groups, channels)
    raise ConfigError(f"norm={kind!r} is unknown; choose one of {', '.join(get_args(Norm))}")


@torch.no_grad()
def reestimate(
    model: nn.Module,
    batches: Iterable[Any],
    view: Callable[[Any], Tensor] | None = None,
    spread: Spread = serially,
) -> None:
    """Measure the statistics of every ``StaticBatchNorm2d`` of ``model`` anew, forgetting the old ones.

    Mean and unbiased variance of each batch are averaged over the batches, with equal weights whatever their sizes
    ((FL)² and SemiFL, released code). No between-batch variance enters. Deeper layers see maps normalised with the
    batch itself. All other layers, dropout included, run in evaluation mode; the mode of the model is restored. A
    model without static layers is left alone.

    Args:
        model: changed in place, buffers only.
        batches: inputs [B, channels, side, side] on the model's device, or what ``view`` turns into them.
        view: makes the input of a batch, when its turn comes.
        spread: applies a function to every batch, for instance sharing them among processes.

    Raises:
        RunError: there was no batch.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, StaticBatchNorm2d)]
    if not layers:
        return
    training = model.training
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.measures = True

    def measure(batch: Any) -> list[Tensor]:
        model(view(batch) if view else batch)
        return [buffer.clone() for layer in layers for buffer in layer.statistics]

    found: list[list[Tensor]] = []
    try:
        found = spread(measure, batches)
    finally:
        for layer in layers:
            layer.measures = False
            layer.get_buffer("num_batches_tracked").fill_(len(found))
            layer.estimated, layer._told_by = bool(found), None
        model.train(training)
    if not found:
        raise RunError("static batch normalisation: there is no batch to estimate from; give at least one image")
    buffers = [buffer for layer in layers for buffer in layer.statistics]
    for buffer, *measured in zip(buffers, *found, strict=True):
        buffer.copy_(sum(measured) / len(found))
