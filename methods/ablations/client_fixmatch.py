"""FixMatch at clients with another number of steps."""

from dataclasses import replace

from methods.base import LocalWork, Pass, Site
from methods.client_fixmatch import ClientFixMatch


class OnePass(ClientFixMatch):
    """A local epoch is one pass over a client's labelled images: floor(n_l / ``batch_size``) steps.

    For labels alone (``lambda_u=0``). How long an epoch of FedAvg is in ProxyFL's tables (CVPR 2026) is not said; the
    released code counts the steps of the other methods by the unlabelled images.
    """

    def local_work(self, client: Site) -> LocalWork:
        """Every epoch meets the images in a new order, and each at most once."""
        images, h = len(client.data.labelled), self.hparams
        epochs = []
        for one in super().local_work(client):
            streams = {name: replace(stream, resample=None) for name, stream in one.streams.items()}
            epochs.append(Pass(streams, max(1, images // h.batch_size)))
        return epochs
