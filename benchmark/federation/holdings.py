"""Which training images a site holds: a method may only name its own."""

from typing import Any

import torch
from torch import Tensor

from benchmark.federation.hooks import describe
from datamodules.base import SiteData
from datamodules.common.errors import RunError

REMEDY = (
    "take positions from client.data (client.data.unlabelled[keep]); indices into them, such as torch.arange(n), are "
    "positions of other images"
)


class Holdings:
    """The images of the site that is visited at the moment, in tensors that stay at the same place.

    A step must not read numbers back to the host, and a recorded step serves many sites. So whether a step has asked
    about another site's images is noted on the device, and the note is read when the visit ends.

    Args:
        images: number of training images.
        device: of the data.
    """

    def __init__(self, images: int, device: torch.device) -> None:
        self.held = torch.zeros(images, dtype=torch.bool, device=device)
        self.own = torch.ones((), dtype=torch.bool, device=device)
        self.marked = torch.empty(0, dtype=torch.int64, device=device)
        self.given: list[tuple[Tensor, int]] = []  # the site's positions as it got them, with their versions

    def hold(self, data: SiteData) -> None:
        """The next visit is to a site with these images. The time does not depend on what other sites hold."""
        self.held.index_fill_(0, self.marked, False)
        self.own.fill_(True)
        given = [index for index in (data.labelled, data.unlabelled, data.validation) if index is not None]
        self.given = [(index, index._version) for index in given]
        self.marked = torch.cat(given)
        self.held.index_fill_(0, self.marked, True)

    def require(self, index: Any, what: str) -> None:
        """Refuse positions of images that are not the site's.

        The unchanged tensors of ``SiteData`` need no look-up. For other positions, one number is read back to the host,
        which waits for the device.

        Args:
            index: positions in the training set, int64 ``[n]``.
            what: who names them, for the message.

        Raises:
            RunError: an image is another site's, or the positions are not integers.
        """
        if any(index is own and index._version == version for own, version in self.given):
            return
        if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            kind = f"a tensor of {index.dtype}" if isinstance(index, Tensor) else describe(index)
            raise RunError(f"{what} has {kind} for its positions; give int64 positions in the training set")
        inside = index.clamp(0, len(self.held) - 1)
        own = self.held[inside] & (inside == index)
        if not bool(own.all()):
            raise RunError(
                f"{what} has the training image {int(index[~own][0])}, which the site does not hold "
                f"({int((~own).sum())} of {len(index)} are other sites'); {REMEDY}"
            )

    def note(self, index: Tensor) -> None:
        """Note on the device whether images are the site's; reads nothing back."""
        self.own.logical_and_(self.held[index].all())

    def require_own(self) -> None:
        """Refuse a visit in which a step has asked about another site's images.

        Raises:
            RunError: it has.
        """
        if not bool(self.own):
            raise RunError(
                f"report_pseudo_labels or oracle was given training images that the site does not hold; {REMEDY}"
            )
