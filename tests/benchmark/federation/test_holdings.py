"""Which images a site holds, visit after visit."""

from types import SimpleNamespace

import pytest
import torch

from benchmark.federation.site import Holdings
from datamodules.base import SiteData
from datamodules.common.errors import RunError


def site(labelled, unlabelled):
    index = torch.tensor(labelled, dtype=torch.int64)
    return SiteData(index, index % 2, torch.tensor(unlabelled, dtype=torch.int64))


def test_every_visit_forgets_the_images_of_the_one_before():
    holdings = Holdings(SimpleNamespace(num_images=10, device=torch.device("cpu")))
    for labelled, unlabelled in (([1, 2], [5]), ([], [2, 7]), ([9], []), ([], []), ([0, 5], [1])):
        holdings.hold(site(labelled, unlabelled))
        assert holdings.held.nonzero().flatten().tolist() == sorted(labelled + unlabelled)


def test_a_note_about_the_image_of_another_is_forgotten_with_the_next_visit():
    holdings = Holdings(SimpleNamespace(num_images=10, device=torch.device("cpu")))
    holdings.hold(site([1], [2]))
    holdings.note(torch.tensor([2, 3]))
    with pytest.raises(RunError, match="images that the site does not hold"):
        holdings.require_own()
    holdings.hold(site([3], []))
    holdings.note(torch.tensor([3]))
    holdings.require_own()
