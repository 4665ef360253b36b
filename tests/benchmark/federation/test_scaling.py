"""Scaled losses: against a loop as torch's documentation has it, and what becomes of a step that overflows."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.federation.loop import Federation
from benchmark.federation.scaling import FIRST_SCALE, LossScaler
from datamodules.common.errors import ConfigError
from federations import (
    Supervised,
    contract_federation,
    different,
    fewest_data,
    make_federation,
    plain_fabric,
    run_rows,
    tiny_federation,
)
from methods.base import Batch

OVERFLOWS = [(0, 0), (1, 2)]
"""Epochs and batches of a visit whose gradient overflows."""


class Plain(Supervised):
    """It knows which steps overflow."""

    def overflows(self, number: int) -> bool:
        return (self.trainer.current_epoch, number) in OVERFLOWS


class Overflows(Plain):
    """Some steps have a gradient that is not finite; their loss is."""

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        batch["labelled"]["steep"] = torch.full((1,), 1e37 if self.overflows(batch_idx) else 0.0)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        nothing = 0.0 * sum(p.sum() for p in self.model.parameters())
        return super().training_step(batch, batch_idx) + batch["labelled"]["steep"][0] * nothing


class Manual(Overflows):
    """The same step by hand."""

    def __init__(self, model: Any, **base: Any) -> None:
        super().__init__(model, **base)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()


class Omits(Plain):
    """The same steps are not taken."""

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        return None if self.overflows(batch_idx) else super().training_step(batch, batch_idx)


@cache
def run(cls: type, slots: int | None = None) -> tuple[Federation, list[dict[str, Any]]]:
    """Two rounds in float32 with scaled losses; a visit has two epochs of batches of 16, 16 and 12 images."""
    federation = make_federation(cls, fewest_data(2), rounds=2, batch_size=16, local_epochs=2, slots=slots)
    for seat in federation.engine.seats:
        seat.method._engine.loss_scaler = LossScaler(torch.device("cpu"))
    return federation, run_rows(federation)


@pytest.mark.parametrize("slots", [None, 2], ids=["reference", "replay"])
@pytest.mark.parametrize("cls", [Overflows, Manual])
def test_a_step_that_overflows_is_not_taken_and_counted(cls: type, slots: int | None) -> None:
    """The model is that of a run without these steps, the first one of an optimiser among them."""
    expected, _ = run(Omits)
    found, rows = run(cls, slots=slots)
    assert slots is None or found.engine.counts()["replayed"] > 0
    assert different(found.server, expected.server) == []
    steps = rows[0]["steps"] / rows[0]["visits"]
    assert [row["overflow"] for row in rows] == pytest.approx([len(OVERFLOWS) / steps] * 2)


def test_a_visit_is_the_loop_of_torchs_documentation() -> None:
    """Scale, backward, unscale, clip, step, update, up to rounding; the second visit has the first scale again."""
    federation = make_federation(
        Plain, fewest_data(1), rounds=2, batch_size=32, precision="16-mixed", clip_norm=0.5, reset_momentum=True
    )
    federation.server_phase(0, first=True)
    for number in range(2):
        visit = federation.visits(number)[0]
        site, work = federation.engine.seats[0].begin_visit(
            visit, federation.engine.send(visit, federation.server), None
        )
        method, h = federation.method, federation.method.hparams
        optimizer = torch.optim.SGD(method.model.parameters(), h.lr, h.momentum, weight_decay=h.weight_decay)
        scaler = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE)
        for batch in site.batches(work, 0):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(method(batch["labelled"]["x"]), batch["labelled"]["y"])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(method.model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        by_hand = method.tensors("shared")
        outcome, _ = federation.engine.run_visit(visit, federation.engine.send(visit, federation.server), None)
        assert outcome.upload is not None
        for name, value in outcome.upload.tensors.items():
            torch.testing.assert_close(value, by_hand[name], rtol=1e-6, atol=1e-7)
        federation.run_round(number)
        federation.round += 1


@pytest.mark.parametrize("method", ["fl2", "fedmatch"])
def test_engines_and_order_change_no_bit(method: str) -> None:
    """In float16, replayed steps in slots come to the reference's bits, in whatever order clients come."""
    runs = [tiny_federation(method, plain_fabric("16-mixed"), slots=slots) for slots in (None, 3)]
    rows = [run_rows(one) for one in runs]
    assert runs[1].engine.counts()["replayed"] > 0
    assert rows[0] == rows[1]
    assert different(runs[1].server, runs[0].server) == []


def test_a_method_that_cannot_says_why() -> None:
    """With method, reason and remedy."""
    with pytest.raises(ConfigError, match=r"FedDure cannot train in 16-mixed: F-reg's look-ahead .*use .*32-true"):
        contract_federation("feddure", precision="16-mixed")
