"""Kinds of normalisation, including batch normalisation with statistics measured in a separate pass.

The papers normalise in four ways, selected by ``norm`` in the models that offer a choice:

* ``static``: train with batch statistics, evaluate with those that ``reestimate`` measured ((FL)²,
  SemiFL);
* ``batch``: no stored statistics; evaluation uses batch statistics, too (FedDB as released);
* ``running``: ordinary batch normalisation (FedCon);
* ``group``: group normalisation (FedRGD).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError, RunError

Norm = Literal["static", "batch", "running", "group"]
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Function that applies a function to all items and returns the results in order."""


def serially(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Apply ``work`` to the items one after the other."""
    return [work(item) for item in items]


class StaticBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation whose stored statistics change only in ``reestimate``.

    In training mode it normalises with the batch and does not touch its buffers. In evaluation mode it uses
    ``running_mean`` and ``running_var`` once they have been estimated, otherwise the batch. The buffer
    ``num_batches_tracked`` says whether they have been; it is part of checkpoints and broadcasts. It is read when state
    is loaded, so that forward passes need no device sync.
    """

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps=eps, momentum=None)
        self.estimated = False
        self.measures = False  # whether forward stores the batch's statistics
        self._last_count: Tensor | None = None

    def note(self, count: Tensor) -> None:
        """Update from ``num_batches_tracked``, or a value copied into it, whether statistics exist.

        Each tensor is read only once: all clients of a round load the same one.
        """
        if count is not self._last_count:
            self.estimated, self._last_count = bool(count), count

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.estimated, self._last_count = bool(self.num_batches_tracked), None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [B, C, H, W] per channel."""
        mean, var, weight, bias, eps = self.running_mean, self.running_var, self.weight, self.bias, self.eps
        if self.measures:
            return F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0, eps=eps)
        if self.estimated and not self.training:
            return F.batch_norm(x, mean, var, weight, bias, eps=eps)
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)


def static_norms(module: nn.Module) -> list[tuple[str, StaticBatchNorm2d]]:
    """List a module's static layers, each with the name of its ``num_batches_tracked`` in the state."""
    named = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, StaticBatchNorm2d)]
    return [(f"{name}.num_batches_tracked".replace("_orig_mod.", ""), layer) for name, layer in named]


def frozen(model: nn.Module) -> Iterator[str]:
    """Yield the names of tensors that no training changes: parameters that need no gradient, and buffers of parts in
    evaluation mode, unless these are measured apart."""
    for prefix, part in model.named_modules():
        names = [name for name, tensor in part.named_parameters(recurse=False) if not tensor.requires_grad]
        if not part.training and not isinstance(part, StaticBatchNorm2d):
            names += [name for name, _ in part.named_buffers(recurse=False)]
        yield from (f"{prefix}.{name}".lstrip(".").replace("_orig_mod.", "") for name in names)


def normalisation(kind: Norm, channels: int, groups: int = 32) -> nn.Module:
    """Build a normalisation layer for maps [B, channels, H, W]; ``group`` uses min(groups, channels) groups.

    Raises:
        ConfigError: unknown kind, or the groups do not divide the channels.
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
                raise ConfigError(f"norm=group: {channels} channels cannot be divided into {groups} groups")
            return nn.GroupNorm(groups, channels)
    raise ConfigError(f"norm={kind!r} is unknown; choose one of {', '.join(get_args(Norm))}")


@torch.no_grad()
def reestimate(
    model: nn.Module, batches: Iterable[Any], view: Callable[[Any], Tensor] | None = None, spread: Spread = serially
) -> None:
    """Re-estimate the statistics of every ``StaticBatchNorm2d`` of ``model`` from scratch.

    Mean and unbiased variance of each batch are averaged over the batches with equal weights, whatever their sizes
    ((FL)² and SemiFL, released code). Variance between batches is ignored. Deeper layers see maps normalised with the
    batch itself. All other layers, including dropout, run in evaluation mode; the model's mode is restored. A model
    without static layers is not changed.

    Args:
        model: the network; only its buffers are changed, in place.
        batches: inputs [B, channels, side, side] on the model's device, or what ``view`` turns into them.
        view: turns a batch into the network's input, just before it is used.
        spread: applies a function to every batch, for instance in several processes.

    Raises:
        RunError: there is no batch.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, StaticBatchNorm2d)]
    buffers = [layer.get_buffer(name) for layer in layers for name in ("running_mean", "running_var")]
    if not layers:
        return
    training = model.training
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.measures = True

    def measure(batch: Any) -> list[Tensor]:
        model(view(batch) if view else batch)
        return [buffer.clone() for buffer in buffers]

    statistics: list[list[Tensor]] = []
    try:
        statistics = spread(measure, batches)
    finally:
        for layer in layers:
            layer.measures = False
            layer.get_buffer("num_batches_tracked").fill_(len(statistics))
            layer.estimated, layer._last_count = bool(statistics), None
        model.train(training)
    if not statistics:
        raise RunError("static batch normalisation: there is no batch to estimate from; give at least one image")
    for buffer, values in zip(buffers, zip(*statistics, strict=True), strict=True):
        buffer.copy_(sum(values) / len(values))
