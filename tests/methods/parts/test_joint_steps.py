"""Joint steps: how many, and on which batches."""

import pytest
import torch

from federations import contract_federation, few_in, site_of


@pytest.mark.parametrize(
    ("batch_size", "unlabelled_bs", "steps", "size"), [(10, 20, 5, 20), (7, 500, 8, 58), (500, 30, 1, 30)]
)
def test_a_local_epoch(batch_size: int, unlabelled_bs: int, steps: int, size: int) -> None:
    """floor(58 / batch) steps, one at least; full batches of both kinds, labels drawn with replacement."""
    run = contract_federation("client_fixmatch", batch_size=batch_size, unlabelled_bs=unlabelled_bs, local_epochs=2)
    site = site_of(run)
    assert len(site.data.unlabelled) == 58 and len(site.data.labelled) < 30
    work = run.method.local_work(site)
    assert len(work) == 2
    for epoch in range(2):
        batches = list(site.batches(work, epoch))
        assert len(batches) == steps
        assert {len(batch["labelled"]["y"]) for batch in batches} == {batch_size}
        assert {len(batch["unlabelled"]["index"]) for batch in batches} == {size}
        seen = torch.cat([batch["unlabelled"]["index"] for batch in batches[: 58 // size]])
        assert len(seen.unique()) == len(seen)  # shuffled passes, begun anew in every epoch
        assert set(seen.tolist()) <= set(site.data.unlabelled.tolist())


def test_labels_alone_take_the_steps_of_their_images() -> None:
    """As in the upper bound, where a client's 62 images all count as labelled."""
    run = contract_federation("client_fixmatch", few_in("all_clients", hidden_labels="pooled"), batch_size=10)
    site = site_of(run)
    batches = list(site.batches(run.method.local_work(site), 0))
    assert len(site.data.labelled) == 62 and not len(site.data.unlabelled)
    assert [{name: len(samples["y"]) for name, samples in batch.items()} for batch in batches] == [{"labelled": 10}] * 6
