"""Visits that begin with steps on labelled images alone."""

from dataclasses import replace
from typing import Any

from torch import nn

from methods.base import Batch, FedMethod, LocalWork, Pass, Site


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
