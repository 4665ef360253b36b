"""Optimisers and schedulers of a visit, in every form that Lightning allows."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.optim import SGD

from datamodules.common.errors import RunError
from federations import Supervised, trained


def returning(change: Any) -> type:
    """``Supervised`` with another form of what ``configure_optimizers`` returns."""

    class Returning(Supervised):
        def configure_optimizers(self) -> Any:
            return change(super().configure_optimizers())

    return Returning


def halving(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)


def by_step(optimizer: Any, **more: Any) -> dict[str, Any]:
    return {"scheduler": halving(optimizer), "interval": "step", **more}


@pytest.mark.parametrize(
    ("form", "rates"),
    [
        (lambda o: [o], [1, 1, 1, 1]),
        (lambda o: ([o], [halving(o)]), [1, 1, 0.5, 0.5]),
        (lambda o: ([o], [by_step(o)]), [1, 0.5, 0.25, 0.125]),
        (lambda o: {"optimizer": o, "lr_scheduler": halving(o)}, [1, 1, 0.5, 0.5]),
        (lambda o: {"optimizer": o, "lr_scheduler": by_step(o, frequency=2)}, [1, 1, 0.5, 0.5]),
        (lambda o: [{"optimizer": o, "lr_scheduler": by_step(o)}], [1, 0.5, 0.25, 0.125]),
        (lambda o: [{"optimizer": o, "lr_scheduler": by_step(o, frequency=3)}], [1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("slots", [None, 2])
def test_every_form_of_schedulers(form: Any, rates: list[float], slots: int | None) -> None:
    """Schedulers move after every step, local epoch, or a number of them; in every engine. Steps count by epoch."""
    seen: dict[Any, list[float]] = defaultdict(list)

    class Scheduled(returning(form)):  # type: ignore[misc]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])
            seen[self.visit.round, self.visit.client].append(rate / self.hparams.lr)

    trained(Scheduled, batch_size=64, local_epochs=2, slots=slots)  # 80 images or so: two batches
    assert list(seen.values()) == [pytest.approx(rates)] * 6


def test_several_optimisers_need_manual_optimisation() -> None:
    """Automatic optimisation has one optimiser, as in Lightning."""
    with pytest.raises(RunError, match="automatic_optimization = False"):
        trained(returning(lambda o: [o, SGD(o.param_groups[0]["params"], lr=0.1)]))
