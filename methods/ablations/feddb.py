"""FedDB as its paper writes it, where the released code differs, and with steps that other protocols count."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from methods.base import LocalWork, Pass, Site, Stream
from methods.feddb import FedDB


class AllImages(FedDB):
    """Algorithm 3: loss of pseudo-labels and APP-U run over all of the client's images, not over the confident ones.

    A client without confident images takes all its labels at once, as any other.
    """

    labels_alone = None

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """As ``FedDB``, with the share of images that are confident."""
        made = super().pseudo_labelled(client, probabilities)
        share = self.select(probabilities)[1].float().mean()
        fields = made["unlabelled"].fields
        made["unlabelled"].fields = {**fields, "share": share.expand(len(fields["y"]))}
        return made

    def followed(self, client: Site, streams: Mapping[str, Stream]) -> Tensor:
        """All images."""
        return client.data.unlabelled

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """The sum over the confident images, over the number of all: their mean times their share."""
        return super().unlabelled_loss(samples) * samples["share"].mean()


class CountedSteps(FedDB):
    """A local epoch is a fixed number of steps, whatever share of the images is confident.

    So a client takes as many steps as under any other method of a protocol that counts them. Labels are still made once
    per visit. Its labels and its confident images are walked through as often as the steps need; a client without
    confident images trains on its labels alone.

    Args:
        steps_per_epoch: steps of a local epoch.
        unlabelled_bs: confident images per step; default: ``batch_size``.
    """

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        steps_per_epoch: int = 1,
        unlabelled_bs: int | None = None,
        **base: Any,
    ) -> None:
        super().__init__(model, num_classes, **base)
        self.require("from 1", steps_per_epoch=steps_per_epoch >= 1)
        self.require("from 1, or null", unlabelled_bs=unlabelled_bs is None or unlabelled_bs >= 1)

    def local_work(self, client: Site) -> LocalWork:
        """As ``FedDB``, but all streams begin again until the steps are taken."""
        streams = self.visit_streams(client)
        for stream in streams.values():
            stream.cycle = True
        return [Pass(streams, self.hparams.steps_per_epoch)] * int(self.hparams.local_epochs)

    def fixed(self, index: Tensor, views: Mapping[str, str], **fields: Tensor) -> Stream:
        """As ``FedDB``, with ``unlabelled_bs`` images per step."""
        stream = super().fixed(index, views, **fields)
        stream.batch_size = self.hparams.unlabelled_bs or stream.batch_size
        return stream
