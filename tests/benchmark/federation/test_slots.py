"""Several seats with replay: what hooks and schedules do between steps reaches replayed steps, too."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from benchmark.federation.engine import Seat
from benchmark.federation.loop import Federation
from datamodules.common.errors import ConfigError
from federations import Supervised, fewest_data, make_federation, run_rows
from methods.base import Visit


class Plain(Supervised):
    """It can set the numbers of its optimiser."""

    def set_all(self, **values: float) -> None:
        """Set numbers of the optimiser, as one does with Lightning."""
        for group in self.trainer.optimizers[0].param_groups:
            group.update(values)


class OneCycle(Plain):
    """The scheduler moves rate and momentum at every step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": OneCycleLR(optimizer, 0.1, total_steps=50), "interval": "step"}]


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

    def __init__(self, model: Any, **base: Any) -> None:
        super().__init__(model, **base)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 3, 0.5)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()
        schedule: Any = self.lr_schedulers()
        schedule.step()


def run(cls: type, slots: int | None = None) -> Federation:
    federation = make_federation(cls, fewest_data(2), rounds=3, batch_size=18, local_epochs=2, slots=slots)
    run_rows(federation)
    return federation


@pytest.mark.parametrize(
    ("cls", "recorded"),
    [
        (OneCycle, True),
        (BeforeSteps, True),
        (Freezes, True),
        (AfterSteps, False),
        (ManualSchedule, False),
    ],
)
def test_what_a_recording_holds_fast_may_change(cls: type, recorded: bool) -> None:
    """The result is that of the reference engine; a step that itself changes an optimiser is taken anew every time."""
    turns = run(cls, slots=2)
    assert bool(turns.engine.counts()["replayed"]) == recorded
    assert all(torch.equal(value, turns.server[name]) for name, value in run(cls).server.items())


def test_steps_are_counted_by_how_they_were_taken() -> None:
    """Batches of 18 and a last one of 12: the first of each is eager, the second captured, in every slot."""
    federation = make_federation(Plain, fewest_data(2), rounds=2, batch_size=18, local_epochs=2, slots=2)
    rows = run_rows(federation)
    of_client = 3 * 2 * 2
    assert rows[-1]["steps"] == 2 * of_client
    assert federation.engine.counts() == {
        "slots": 2,
        "captured": 4,
        "replayed": 2 * (of_client - 4),
        "eager": 4,
    }
    (counts,) = [run(AfterSteps, slots=1).engine.counts()]
    assert counts == {"slots": 1, "captured": 0, "replayed": 0, "eager": 3 * of_client}


def test_a_client_goes_to_a_slot_that_has_recorded_steps_of_its_size() -> None:
    """Others go to the slot that has met the fewest sizes."""
    engine = make_federation(Plain, fewest_data(4), slots=2).engine
    one, other = engine.seats

    def seats(*sizes: int) -> dict[int, Seat]:
        found = engine.assign_seats([Visit(client=client, size=size) for client, size in enumerate(sizes)])
        return {visit.size: seat for visit, seat in found.items()}

    assert seats(50, 40) == {50: one, 40: other}
    assert seats(40, 30) == {40: other, 30: one}
    assert seats(20) == {20: other} and seats(30, 50) == {30: one, 50: other}
    alike = engine.assign_seats([Visit(client=0, size=20), Visit(client=1, size=20)])
    assert set(alike.values()) == {one, other}


def test_a_shared_optimiser_is_handed_on_in_the_order_drawn() -> None:
    """Slots then take turns in whole visits: with replay, too, they come to the reference's bits."""

    def begun(**args: Any) -> Federation:
        data = fewest_data(4, scenario="all_clients", num_labels=40, pipeline="randaugment_levels_cutout")
        sizes = {"batch_size": 8, "local_epochs": 1}
        return make_federation("client_fixmatch", data, 2, **sizes, **args)

    runs = [begun(share_momentum=True, slots=slots) for slots in (None, 3)]
    rows = [run_rows(run) for run in runs]
    assert runs[1].engine.counts()["replayed"] > 0
    assert rows[0] == rows[1]
    assert all(torch.equal(value, runs[1].server[name]) for name, value in runs[0].server.items())
    assert rows[0] != run_rows(begun())


class LogsItsRate(Plain):
    """Logs the learning rate that its optimiser has, which a schedule moves at every step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.7), "interval": "step"}]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        self.log("lr", optimizer.param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)


def test_a_rate_that_a_step_logs_is_the_same_in_slots() -> None:
    """It is a number in an eager step, and a tensor in a recorded one."""
    runs = [make_federation(LogsItsRate, fewest_data(2), 2, slots=slots, batch_size=8) for slots in (None, 2)]
    reference, replayed = map(run_rows, runs)
    assert runs[1].engine.counts()["replayed"] and reference == replayed


class Drops(Plain):
    """A network with one more layer."""

    def __init__(self, model: Any, layer: Any = None, **base: Any) -> None:
        super().__init__(model, **base)
        self.model.layer = layer


DRAWS = torch.nn.Dropout(0.5)
DRAWS_NOTHING = [torch.nn.Dropout(0.0), torch.nn.Dropout(0.5).eval(), torch.nn.LSTM(2, 2), torch.nn.ReLU()]


@pytest.mark.parametrize(
    "layer", [DRAWS, torch.nn.Sequential(torch.nn.Dropout2d(0.1)), torch.nn.LSTM(2, 2, 2, dropout=0.1)]
)
@pytest.mark.parametrize("engine", [{"slots": 2, "replay": False}, {"slots": 1}])
def test_layers_that_draw_from_the_global_generator_need_the_reference(layer: Any, engine: dict[str, Any]) -> None:
    """Steps of several clients would draw from it in turns, and a replay could not seed it."""
    with pytest.raises(ConfigError, match=r"model\.layer.* (Dropout|Dropout2d|LSTM).*--engine reference.*head_dropout"):
        make_federation(Drops, fewest_data(2), layer=layer, **engine)


@pytest.mark.parametrize(
    ("layer", "engine"), [(DRAWS, {"slots": 1, "replay": False}), *((one, {"slots": 2}) for one in DRAWS_NOTHING)]
)
def test_other_layers_need_it_not(layer: Any, engine: dict[str, Any]) -> None:
    """One client at a time draws alone; a layer that drops nothing draws nothing."""
    make_federation(Drops, fewest_data(2), layer=layer, **engine)
