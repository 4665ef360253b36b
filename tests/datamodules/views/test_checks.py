"""Images that do not suit the options of their views."""

from dataclasses import replace

import pytest
import torch

from datamodules.common.errors import ConfigError
from datamodules.digits import Digits
from datamodules.views import checks


@pytest.mark.parametrize("part", ["train_images", "test_images"])
def test_one_coloured_image_is_found_wherever_it_is(part):
    class LastIsColoured(Digits):
        def read(self):
            arrays = super().read()
            getattr(arrays, part)[-1, ..., 1] //= 2
            return arrays

    with pytest.raises(ConfigError, match="images have colour"):
        LastIsColoured(channels=1).setup()
    grey = Digits(channels=1)
    grey.setup()
    with pytest.raises(ConfigError, match="some given images have colour"):
        grey.see(torch.arange(192, dtype=torch.uint8).view(1, 8, 8, 3))


def test_a_border_leads_to_the_networks_side_in_training_and_in_tests():
    class SmallTests(Digits):
        def read(self):
            arrays = super().read()
            return replace(arrays, test_images=arrays.test_images[:, :6, :6].copy())

    Digits(border=4, side=40).setup()
    with pytest.raises(ConfigError, match=r"data\.border=4 makes test images of 14 x 14 pixels"):
        SmallTests(border=4, side=40).setup()


def test_images_that_do_not_fit_into_memory(monkeypatch):
    """In three channels, in each process: test images of 32 x 32 pixels, training images of 40 x 40 in every layout.

    Weak views have mirrored pixels at the edges, others black ones; views of one layout share it.
    """
    needed = (2 * 1437 * 40 * 40 + 360 * 32 * 32) * 3
    data = Digits(pipeline="randaugment_levels_cutout")
    monkeypatch.setattr(checks, "available_bytes", lambda: needed - 1)
    with pytest.raises(ConfigError, match=r"Digits: the images would take 0\.015 GB of memory, and 0\.015 GB are free"):
        data.setup()
    monkeypatch.setattr(checks, "available_bytes", lambda: needed)
    data.place(torch.device("cpu"), processes=2)
    with pytest.raises(ConfigError, match=r" in each of 2 processes, .*or fewer --devices"):
        data.setup()
    data.place(torch.device("cpu"))
    data.setup()
