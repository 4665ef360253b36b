"""Which training images a site holds: a method may only name its own."""

import torch
from torch import Tensor

from datamodules.base import SiteData
from datamodules.common.errors import RunError


class Holdings:
    """The images of the site that is visited at the moment, in tensors that stay at the same place.

    A step must not read numbers back to the host, and a recorded step serves many sites. So whether a visit has asked
    for another site's images is noted on the device, and the note is read when the visit ends.

    Args:
        images: number of training images.
        device: of the data.
    """

    def __init__(self, images: int, device: torch.device) -> None:
        self.held = torch.zeros(images, dtype=torch.bool, device=device)
        self.own = torch.ones((), dtype=torch.bool, device=device)
        self.marked = torch.empty(0, dtype=torch.int64, device=device)

    def hold(self, data: SiteData) -> None:
        """The next visit is to a site with these images. The time does not depend on what other sites hold."""
        self.held.index_fill_(0, self.marked, False)
        self.own.fill_(True)
        self.marked = torch.cat([one for one in (data.labelled, data.unlabelled, data.validation) if one is not None])
        self.held.index_fill_(0, self.marked, True)

    def note(self, index: Tensor) -> None:
        """Note whether images are the site's.

        Args:
            index: positions in the training set, int64 ``[n]``.
        """
        self.own.logical_and_(self.held[index].all())

    def require_own(self) -> None:
        """Refuse a visit that has asked for another site's images.

        Raises:
            RunError: it has.
        """
        if not bool(self.own):
            raise RunError(
                "a stream, views, report_pseudo_labels or oracle was given training images that the site does not "
                "hold; take positions from client.data (client.data.unlabelled[keep]): indices into them, such as "
                "torch.arange(n), are positions of other images"
            )
