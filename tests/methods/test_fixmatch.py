"""FixMatch: when pseudo-labels are made, what the loss is a mean over, and joint batches with a client's own labels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark.registry import KINDS, find_class
from federations import few_in, make_federation


@pytest.mark.parametrize("name", ["fixmatch", "semifl", "feddb"])
def test_one_confident_image_where_batches_need_two(name: str) -> None:
    """It cannot be trained on, so the client walks through its labels once, as without any."""
    cls: Any = find_class(name, KINDS["method"])

    class One(cls):  # type: ignore[misc]
        def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
            labels, keep = super().select(probabilities)
            return labels, torch.arange(len(keep)) == 3

    run = make_federation(One, few_in("all_clients"), min_batch=2, batch_size=64, local_epochs=1)
    seen: list[dict[str, Any]] = []
    run.method.on_train_batch_end = lambda *a: seen.append(a[1])
    run.run_visits(run.visits(0)[:1])
    assert [set(batch) for batch in seen] == [{"labelled"}]


def test_labels_are_fixed_for_the_visit() -> None:
    """round_start: an image keeps its label over the epochs while its strong view is drawn anew."""
    federation = make_federation("fixmatch", few_in("server"), threshold=0.0, local_epochs=3)
    federation.method.hparams["lr"] = 0.5
    seen: list[dict[str, Tensor]] = []
    federation.method.on_train_batch_end = lambda *a: seen.append(a[1]["unlabelled"])
    federation.run_visits(federation.visits(0)[:1])
    images = federation.data.client(0).size
    steps = -(-images // 32)
    epochs = [torch.cat([s["y"] for s in seen[k * steps : (k + 1) * steps]]) for k in range(3)]
    assert len(seen) == 3 * steps
    assert all(torch.equal(e.sort().values, epochs[0].sort().values) for e in epochs)
    views = [torch.cat([s["strong"] for s in seen[k * steps : (k + 1) * steps]]) for k in range(2)]
    assert not torch.equal(views[0].sum((1, 2, 3)).sort().values, views[1].sum((1, 2, 3)).sort().values)
