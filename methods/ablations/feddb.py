"""FedDB as printed in its paper, where the released code differs."""

from collections.abc import Mapping

from torch import Tensor

from methods.base import Site, Stream
from methods.feddb import FedDB


class AllImages(FedDB):
    """Algorithm 3: pseudo-label loss and APP-U are taken over all of the client's images, not the confident ones.

    A client without confident images takes all its labels at once, like any other.
    """

    labels_alone = None

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """As in ``FedDB``, with the share of confident images."""
        made = super().pseudo_labelled(client, probabilities)
        share = self.select(probabilities)[1].float().mean()
        fields = made["unlabelled"].fields
        made["unlabelled"].fields = {**fields, "share": share.expand(len(fields["y"]))}
        return made

    def followed(self, client: Site, streams: Mapping[str, Stream]) -> Tensor:
        """Return all images."""
        return client.data.unlabelled

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Sum over the confident images, divided by the number of all: their mean times their share."""
        return super().unlabelled_loss(samples) * samples["share"].mean()
