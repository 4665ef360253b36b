"""The smallest data set of the tests, in a module that processes can import without anything else of them."""

from dataclasses import replace

from datamodules.digits import Digits
from datamodules.io.sources import Arrays


class FewDigits(Digits):
    """The first 250 training and 90 test images, for tests in which the number of images does not matter."""

    def read(self) -> Arrays:
        """Return the first digits."""
        whole = super().read()
        return replace(
            whole,
            train_images=whole.train_images[:250],
            train_labels=whole.train_labels[:250],
            test_images=whole.test_images[:90],
            test_labels=whole.test_labels[:90],
        )
