"""FedDB as printed in its paper, with a fixed number of steps per epoch, and with norm statistics like SemiFL's."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from methods.base import LocalWork, Pass, Site, Stream
from methods.feddb import FedDB
from methods.parts.server import OneStream


class AllImages(FedDB):
    """Algorithm 3: pseudo-label loss and APP-U are taken over all of the client's images, not the confident ones.

    A client without confident images takes all its labels at once, like any other.
    """

    labels_alone = None

    def pseudo_labelled(self, client: Site, p: Tensor, labels: Tensor, keep: Tensor) -> dict[str, Stream]:
        """As in ``FedDB``, with the share of confident images."""
        streams = super().pseudo_labelled(client, p, labels, keep)
        fields = streams["unlabelled"].fields
        streams["unlabelled"].fields = {**fields, "share": keep.float().mean().expand(len(fields["y"]))}
        return streams

    def app_u_images(self, client: Site, streams: Mapping[str, Stream]) -> Tensor:
        """Return all images."""
        return client.data.unlabelled

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Sum over the confident images, divided by the number of all: their mean times their share."""
        return super().unlabelled_loss(samples) * samples["share"].mean()


class CountedSteps(FedDB):
    """A local epoch has a fixed number of steps, whatever share of the images is confident.

    A client then takes as many steps as with any other method of a protocol that counts steps. Labels are still made
    once per visit. Its labels and its confident images are repeated as often as the steps need; a client without
    confident images trains on its labels only.

    Args:
        steps_per_epoch: steps per local epoch.
        unlabelled_bs: confident images per step; default: ``batch_size``.
    """

    def __init__(
        self, model: nn.Module, steps_per_epoch: int = 1, unlabelled_bs: int | None = None, **base: Any
    ) -> None:
        super().__init__(model, **base)

    def local_work(self, client: Site) -> LocalWork:
        """Return the streams of ``FedDB``, restarted until the steps are taken."""
        streams = self.visit_streams(client)
        for stream in streams.values():
            stream.cycle = True
        return [Pass(streams, self.hparams.steps_per_epoch)] * int(self.hparams.local_epochs)

    def fixed(self, index: Tensor, views: Mapping[str, str], **fields: Tensor) -> Stream:
        """As in ``FedDB``, with ``unlabelled_bs`` images per step."""
        stream = super().fixed(index, views, **fields)
        stream.batch_size = self.hparams.unlabelled_bs or stream.batch_size
        return stream


class NormsInOneStream(OneStream, FedDB):
    """Statistics of static norms are measured in batches of 250 images, the size of those in FedDB's evaluation."""
