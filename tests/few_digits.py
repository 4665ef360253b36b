"""The smallest data set of the tests, in a module that processes can import without anything else of them."""

from benchmark.contract.federations import FewerDigits


class FewDigits(FewerDigits):
    """The first 250 training and 90 test images, for tests in which the number of images does not matter."""

    kept = (250, 90)
