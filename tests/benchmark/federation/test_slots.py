"""Several seats with replay: what hooks and schedules do between steps reaches replayed steps, too."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torchvision.ops import StochasticDepth

from benchmark.federation.engine import Seat
from datamodules.common.errors import ConfigError
from federations import Supervised, fewest_data, make_federation, run_rows, same_server
from methods.base import Visit


class Plain(Supervised):
    """It can set the numbers of its optimiser, as one does with Lightning."""

    def set_all(self, **values: float) -> None:
        for group in self.trainer.optimizers[0].param_groups:
            group.update(values)


class OneCycle(Plain):
    """The scheduler moves rate and momentum at every step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": OneCycleLR(optimizer, 0.1, total_steps=50), "interval": "step"}]


class LogsItsRate(Plain):
    """The scheduler moves the rate alone, which is a number in an eager step, and a tensor in a recorded one."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.7), "interval": "step"}]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        self.log("lr", optimizer.param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)


class Freezes(Plain):
    """The head trains in the first epoch only, and the norm in the second."""

    def __init__(self, model: Any, **base: Any) -> None:
        super().__init__(model, **base)
        self.norm = torch.nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        return super().forward(self.norm(x))

    def on_train_epoch_start(self) -> None:
        self.model.head.requires_grad_(self.current_epoch == 0)
        self.norm.train(self.current_epoch == 1)


class Thaws(Plain):
    """The head trains in the second epoch only, when all else has a momentum."""

    fused = True

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), 0.1, 0.9, fused=self.fused)

    def on_train_epoch_start(self) -> None:
        self.model.head.requires_grad_(self.current_epoch == 1)


class ThawsUnfused(Thaws):
    """The same with PyTorch's plain loop."""

    fused = False


class BeforeSteps(Plain):
    """A hook in front of every step sets a number."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.set_all(weight_decay=0.1 * (batch_idx + self.current_epoch))


class AfterSteps(Plain):
    """A hook that belongs to the step sets a number: a replay would not."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.set_all(lr=0.1 / (1 + batch_idx + self.current_epoch))


class ManualSchedule(Plain):
    """With manual optimisation the step moves the schedule, the rate only every third time."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 3, 0.5)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.descend(self.optimizers(), super().training_step(batch, batch_idx))
        self.lr_schedulers().step()  # type: ignore[union-attr]


class TwoOptimisers(Plain):
    """Each keeps a momentum of its own of the same parameters."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        settings, parameters = ((0.1, 0.9), (0.02, 0.5)), list(self.model.parameters())
        return [torch.optim.SGD(parameters, rate, momentum, fused=True) for rate, momentum in settings]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            self.descend(optimizer, super().training_step(batch, batch_idx))


class Dampens(Plain):
    """The first momentum of a visit is a whole gradient, which a recorded step would dampen like the later ones."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), 0.1, 0.9, dampening=0.5, fused=True)

    def optimizer_scopes(self) -> Any:
        return ["local"]


RECORDED = [TwoOptimisers, LogsItsRate, OneCycle, BeforeSteps, Freezes, Thaws]


@pytest.mark.parametrize("cls", [*RECORDED, AfterSteps, ManualSchedule, Dampens])
def test_what_a_recording_holds_fast_may_change(cls: type) -> None:
    """The result is that of the reference engine; a step that itself changes an optimiser is taken anew every time.

    Batches are of 18 images and a last one of 12: the first of each is eager, the second captured, in every slot.
    """
    reference, slots = (
        make_federation(cls, fewest_data(2), rounds=3, batch_size=18, local_epochs=2, slots=slots)
        for slots in (None, 2)
    )
    assert run_rows(slots) == run_rows(reference) and same_server(slots, reference)
    steps, counts = 2 * 3 * (2 * 3), slots.engine.counts()
    if cls is LogsItsRate:
        assert counts == {"slots": 2, "captured": 4, "replayed": steps - 8, "eager": 4}
    assert bool(counts["captured"]) == bool(counts["replayed"]) == (cls in RECORDED)


def test_a_momentum_may_begin_later_than_others() -> None:
    """PyTorch's fused SGD fails where some parameters have one, and others their first gradient."""
    fused, plain = (make_federation(cls, fewest_data(2), rounds=1, local_epochs=2) for cls in (Thaws, ThawsUnfused))
    run_rows(fused), run_rows(plain)
    for name, value in plain.server.items():
        torch.testing.assert_close(fused.server[name], value)


def test_a_client_goes_to_a_slot_that_has_recorded_steps_of_its_size() -> None:
    """Others go to the slot that has met the fewest sizes."""
    engine = make_federation(Plain, fewest_data(4), slots=2).engine
    one, other = engine.seats

    def seats(*sizes: int) -> list[Seat]:
        return list(
            engine.assign_seats([Visit(client=client, size=size) for client, size in enumerate(sizes)]).values()
        )

    assert seats(50, 40) == [one, other]
    assert seats(40, 30) == [other, one]
    assert seats(20) == [other] and seats(30, 50) == [one, other]
    assert sorted(map(id, seats(20, 20))) == sorted([id(one), id(other)])


DRAW = [torch.nn.Dropout(), torch.nn.LSTM(2, 2, 2, dropout=0.1), StochasticDepth(0.1, "row")]


def with_layer(layer: torch.nn.Module, engine: dict[str, Any]) -> None:
    """A federation of a network with one more layer."""

    class Drops(Plain):
        def __init__(self, model: Any, **base: Any) -> None:
            super().__init__(model, **base)
            self.model.layer = layer

    make_federation(Drops, fewest_data(2), **engine)


@pytest.mark.parametrize("layer", DRAW)
@pytest.mark.parametrize("engine", [{"slots": 2, "replay": False}, {"slots": 1}])
def test_layers_that_draw_from_the_global_generator_need_the_reference(layer: Any, engine: dict[str, Any]) -> None:
    """Steps of several clients would draw from it in turns, and a replay could not seed it."""
    with pytest.raises(ConfigError, match=r"model\.layer.* (Dropout|LSTM|Stoch).*--engine reference.*head_dropout"):
        with_layer(layer, engine)


def test_other_layers_need_it_not() -> None:
    """One client at a time draws alone; a layer that drops nothing draws nothing."""
    with_layer(torch.nn.Dropout(), {"slots": 1, "replay": False})
    for layer in (torch.nn.Dropout(0.0), torch.nn.Dropout().eval(), torch.nn.LSTM(2, 2)):
        with_layer(layer, {"slots": 2})


class AsksInAggregate(Plain):
    """Two clients take part, then two others of other sizes; the server asks for the round."""

    def select_clients(self, round: int, roster: Any) -> list[list[int]]:
        return [[0, 1] if round == 0 else [2, 3]]

    def aggregate(self, uploads: Any) -> None:
        self.tally("asked", torch.tensor(float(self.visit.round)))
        super().aggregate(uploads)


@pytest.mark.parametrize("slots", [None, 4])
def test_a_server_that_aggregates_knows_the_round(slots: int | None) -> None:
    """Also where no client of the round takes the first seat."""
    data = fewest_data(4, partition="dirichlet", beta=1.0, min_size=1)
    rows = run_rows(make_federation(AsksInAggregate, data, rounds=2, slots=slots))
    assert [row["server/asked"] for row in rows] == [0, 1]
