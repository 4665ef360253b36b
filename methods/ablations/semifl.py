"""SemiFL as in (FL)2's repository, and with the norm statistics of its own."""

import torch
from torch import Tensor

from methods.base import Site, Stream
from methods.parts.server import OneStream
from methods.semifl import SemiFL


class AsInFL2(SemiFL):
    """SemiFL in (FL)2's repository, where it differs from SemiFL's own.

    Mix partners are confident images, drawn once per visit; a client without any stays in the average, unchanged.
    """

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """See ``SemiFL``; no client leaves the average."""
        streams = super().visit_streams(client)
        self.trains = True
        return streams

    def mix_set(self, client: Site, labels: Tensor, keep: Tensor) -> Stream:
        """Use the same draws in every local epoch, paired anew."""
        pool = torch.arange(len(keep), device=keep.device)[keep]
        drawn = torch.randint(len(pool), (len(pool),), generator=client.generator("order/mix_pool"))
        partners = pool[drawn.to(pool.device)]
        return self.fixed(client.data.unlabelled[partners], {"weak": "weak"}, y=labels[partners])


class NormsInOneStream(OneStream, SemiFL):
    """Batches of the norm statistics as in SemiFL's own repository."""
