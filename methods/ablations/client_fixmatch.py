"""FixMatch at clients with another number of steps."""

from methods.base import LocalWork, Pass, Site
from methods.client_fixmatch import ClientFixMatch


class OnePass(ClientFixMatch):
    """A local epoch is one pass over a client's labelled images: floor(n_l / ``batch_size``) steps.

    For labels alone (``lambda_u=0``). How long an epoch of FedAvg is in ProxyFL's tables (CVPR 2026) is not said; the
    released code counts the steps of the other methods by the unlabelled images.
    """

    def local_work(self, client: Site) -> LocalWork:
        """Every epoch meets the labelled images in a new order, and each at most once."""
        h, labelled = self.hparams, self.streams(client.data)
        labelled.pop("unlabelled", None)
        steps = max(1, len(client.data.labelled) // h.batch_size)
        return [Pass(labelled, steps)] * int(h.local_epochs)
