"""One pass over the labels: every image at most once per epoch."""

import pytest
import torch

from federations import few_data, make_federation, site_of, visited
from methods.ablations.client_fixmatch import OnePass


@pytest.mark.parametrize(("batch_size", "steps"), [(8, 2), (200, 1)])
def test_an_epoch_is_one_pass_over_the_labels(batch_size: int, steps: int) -> None:
    """floor(n_l / batch) steps, or one of a client with fewer images; what is drawn has no image twice."""
    options = {"num_labels": 40, "union_mode": "labelled", "pipeline": "randaugment_levels"}
    data = few_data(2, 2, scenario="all_clients", **options)
    run = make_federation(OnePass, data, lambda_u=0, batch_size=batch_size, local_epochs=2)
    work = run.method.local_work(site_of(run))
    images = len(data.client(run.visits(0)[0].client).labelled)
    assert images == 20 and [epoch.steps for epoch in work] == [steps, steps]
    drawn = work[0].streams["labelled"].positions(torch.Generator().manual_seed(0))
    assert sorted(drawn.tolist()) == list(range(images))
    result, _ = visited(run, run.visits(0)[0])
    assert result.steps == 2 * steps
