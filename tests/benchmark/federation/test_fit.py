"""A visit is a fit: Lightning's forms of optimisers, losses, schedules, hooks and callbacks."""

from collections import defaultdict
from typing import Any

import lightning as L
import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from datamodules.common.errors import RunError
from federations import Supervised, few_data, make_federation, make_method, same_server, trained


class Manual(Supervised):
    """``Supervised`` by hand."""

    def __init__(self, model: Any, **base: Any) -> None:
        super().__init__(model, **base)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=self.hparams.clip_norm, gradient_clip_algorithm="norm")
        optimizer.step()


def test_manual_optimisation_takes_the_same_steps() -> None:
    """``optimizers``, ``manual_backward`` and clipping by hand are the automatic step, bit for bit."""
    assert same_server(trained(Manual, clip_norm=0.5), trained(Supervised, clip_norm=0.5))


def plain_fit(method: Any, data: Any) -> L.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    trainer.fit(method, datamodule=data)
    return trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["tensor", "dict", "none"])
@pytest.mark.parametrize("manual", [False, True])
def test_hooks_get_the_outputs_that_lightning_gives_them(form: str, manual: bool) -> None:
    """A dict with the detached loss, or an empty one."""
    seen: list[Any] = []

    class Tells(Supervised):
        def __init__(self, model: Any, **base: Any) -> None:
            super().__init__(model, **base)
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return {"tensor": loss, "dict": {"loss": loss, "more": 1}, "none": None}[form]

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss")
            seen.append((sorted(outputs), None if loss is None else (loss.requires_grad, loss.ndim)))

    data = few_data(1)
    make_federation(Tells, data, rounds=1).run()
    ours, seen[:] = list(seen), []
    plain_fit(make_method(Tells), data)
    assert ours == seen and ours


HOOKS = (
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end"),
)


def recording(base: type) -> tuple[type, list[Any]]:
    """A class that writes down which of Lightning's hooks are called, and how many steps were taken by then."""
    calls: list[Any] = []

    def hook(name: str) -> Any:
        def called(self: Any, *args: Any) -> None:
            trainer = args[0] if base is L.Callback else self.trainer
            calls.append((name, trainer.global_step))

        return called

    return type("Recording", (base,), {name: hook(name) for name in HOOKS}), calls


class Twice(Manual):
    """Two steps of the optimiser in a step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        super().training_step(batch, batch_idx)


class WarmsUp(Supervised):
    """Hooks behind the automatic step do more than they must."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.hparams.lr * (batch_idx + 1) / 4
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        super().backward(0.5 * loss, *args, **kwargs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base", [Supervised, Twice, WarmsUp])
def test_hooks_are_called_in_lightnings_order(base: type) -> None:
    """The method's hooks and a callback's fire in the order of ``Trainer.fit``, at the same number of steps."""
    cls, ours = recording(base)
    callback, theirs = recording(L.Callback)
    data = few_data(1)
    make_federation(cls, data, rounds=1, callbacks=[callback()]).run()
    reference_cls, expected = recording(base)
    trainer = plain_fit(make_method(reference_cls), data)
    assert ours == theirs == expected
    assert ours[-1] == ("on_train_end", trainer.global_step)


def test_what_a_method_sees_of_the_trainer() -> None:
    """``self.trainer``, ``current_epoch`` and ``global_step`` work; as in Lightning, -1 ends an epoch."""
    seen = []

    class Curious(Supervised):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            seen.append((self.current_epoch, self.global_step, self.trainer.max_epochs, batch_idx))
            return -1 if batch_idx else None

    trained(Curious, local_epochs=2)
    assert seen[:4] == [(0, 0, 2, 0), (0, 1, 2, 1), (1, 1, 2, 0), (1, 2, 2, 1)]


def returning(form: Any) -> type:
    """``Supervised`` with another form of what ``configure_optimizers`` returns, and Lightning's of clipping."""

    class Returning(Supervised):
        def configure_optimizers(self) -> Any:
            return form(super().configure_optimizers(), self.trainer)

        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any
        ) -> None:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    return Returning


def halving(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)


def by_step(optimizer: Any, **more: Any) -> dict[str, Any]:
    return {"scheduler": halving(optimizer), "interval": "step", **more}


def annealed(optimizer: Any, trainer: Any) -> dict[str, Any]:
    """A schedule over the visit, whose length the trainer tells."""
    return {"optimizer": optimizer, "lr_scheduler": CosineAnnealingLR(optimizer, T_max=trainer.max_epochs)}


@pytest.mark.parametrize(
    ("form", "rates"),
    [
        (annealed, [1, 1, 0.5, 0.5]),
        (lambda o, _: ([o], [by_step(o)]), [1, 0.5, 0.25, 0.125]),
        (lambda o, _: {"optimizer": o, "lr_scheduler": by_step(o, frequency=2)}, [1, 1, 0.5, 0.5]),
        (lambda o, _: [{"optimizer": o, "lr_scheduler": by_step(o, frequency=3)}], [1, 1, 1, 1]),
    ],
)
def test_every_form_of_schedulers(form: Any, rates: list[float]) -> None:
    """Schedulers move after every step, local epoch, or a number of them. Steps count by epoch."""
    seen: dict[Any, list[float]] = defaultdict(list)

    class Scheduled(returning(form)):  # type: ignore[misc]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])
            seen[self.visit.round, self.visit.client].append(rate / self.hparams.lr)

    trained(Scheduled, batch_size=64, local_epochs=2)  # 80 images or so: two batches
    assert list(seen.values()) == [pytest.approx(rates)] * 6


def test_several_optimisers_need_manual_optimisation() -> None:
    """Automatic optimisation has one optimiser, as in Lightning."""
    with pytest.raises(RunError, match="automatic_optimization = False"):
        trained(returning(lambda o, _: [o, SGD(o.param_groups[0]["params"], lr=0.1)]))
