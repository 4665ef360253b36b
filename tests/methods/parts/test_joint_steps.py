"""Joint steps: how many, on which batches, and a received model that rests."""

import pytest
import torch
from torch import nn

from federations import contract_federation, site_of
from methods.client_fixmatch import ClientFixMatch
from methods.models.backbone import Backbone, LinearHead


class Vectors(Backbone):
    """Batch norm and a linear head, on vectors."""

    feature_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), LinearHead(4, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised vectors."""
        return self.norm(x)


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


def test_views_share_statistics_and_the_received_model_keeps_its_own() -> None:
    """One forward pass in training; the copy rests in evaluation mode, with what was received."""
    method = ClientFixMatch(Vectors(), batch_size=2)
    method.train()
    method.model.norm.running_mean.fill_(0.5)
    method.on_train_start()
    g = torch.Generator().manual_seed(0)
    views = {field: torch.randn(4, 4, generator=g) for field in ("weak", "strong")}
    batch = {"labelled": {"x": torch.randn(4, 4, generator=g), "y": torch.arange(4) % 3}, "unlabelled": views}
    before = method.received_predicts(views["weak"])
    out = method.outputs(batch)
    everything = torch.cat([batch["labelled"]["x"], views["weak"], views["strong"]])
    normal = nn.functional.batch_norm(everything, None, None, training=True)
    torch.testing.assert_close(torch.cat([out["x"], out["weak"], out["strong"]]), method.model.head(normal))
    assert torch.equal(method.received_predicts(views["weak"]), before)
    assert method.received.norm.running_mean.tolist() == [0.5] * 4
    assert not torch.equal(method.model.norm.running_mean, method.received.norm.running_mean)
