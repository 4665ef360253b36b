"""Images that do not suit the options of their views."""

from dataclasses import replace

import pytest

from datamodules.common.errors import ConfigError
from datamodules.digits import Digits
from datamodules.views.checks import check_memory, layout_bytes


@pytest.mark.parametrize("part", ["train_images", "test_images"])
def test_one_coloured_image_is_found_wherever_it_is(part):
    class LastIsColoured(Digits):
        def read(self):
            arrays = super().read()
            getattr(arrays, part)[-1, ..., 1] //= 2
            return arrays

    with pytest.raises(ConfigError, match="some of LastIsColoured have colour"):
        LastIsColoured(channels=1).setup()


def test_a_border_leads_to_the_networks_side_in_training_and_in_tests():
    class SmallTests(Digits):
        def read(self):
            arrays = super().read()
            return replace(arrays, test_images=arrays.test_images[:, :6, :6].copy())

    Digits(border=4, side=40).setup()
    with pytest.raises(ConfigError, match=r"data\.border=4 makes test images of 14 x 14 pixels"):
        SmallTests(border=4, side=40).setup()


def test_images_take_the_bytes_of_the_largest_view():
    """Training images enlarged to 40 x 40, test images at 32 x 32, three channels each."""
    data = Digits()
    arrays = data.read()
    assert layout_bytes(arrays, data.views) == (1437 * 40 * 40 + 360 * 32 * 32) * 3


def test_images_that_do_not_fit_into_memory():
    check_memory("digits", 10**9, 2 * 10**9, processes=2)
    check_memory("digits", 10**9, None, processes=2)
    with pytest.raises(ConfigError, match=r"digits: the images would take 1 GB of memory, and 0\.9 GB are"):
        check_memory("digits", 10**9, 9 * 10**8)
    with pytest.raises(ConfigError, match=r" in each of 3 processes, .*or fewer --devices"):
        check_memory("digits", 10**9, 2 * 10**9, processes=3)
