"""Faults of a step: what it learns, where it computes, what a replay of it misses, and in which precision it holds."""

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, FedMethod, Visit
from planted_faults.sound import Sound


class Ascends(Sound):
    """The sign of the loss is wrong: weights move, and nothing is learnt."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Up the loss."""
        return -super().training_step(batch, batch_idx)


class TakesNoStep(Sound):
    """With manual optimisation, nobody calls the optimiser."""

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.automatic_optimization = False


class LeavesAPartOut(Sound):
    """A parameter beside the network, which no optimiser has."""

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model, **base)
        self.factor = nn.Parameter(torch.ones(()))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Weigh the loss."""
        return self.factor * super().training_step(batch, batch_idx)


class Idle(Sound):
    """No pseudo-label is ever used."""

    contract_args = {"threshold": 1.5}


class Unmoved(FedMethod):
    """Unlabelled images are declared, but enter no loss."""

    views = Sound.views

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Labels only."""
        if "labelled" not in batch:
            return None
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class KnowsTrainers(Sound):
    """A plain ``Trainer`` gets a different loss from a visit."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Twice the loss there."""
        return super().training_step(batch, batch_idx) * (2.0 if isinstance(self.trainer, L.Trainer) else 1.0)


class BatchInPlace(Sound):
    """A step adds its noise to its input images in place."""

    def noise(self, x: Tensor) -> Tensor:
        """Add, and have nothing left to add."""
        x.add_(0.01 * super().noise(x))
        return torch.zeros_like(x)


class ReadsBack(Sound):
    """A step looks at its loss."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Large losses are cut."""
        loss = super().training_step(batch, batch_idx)
        return loss * min(1.0, 10.0 / max(float(loss.detach()), 1.0))


class ConstantOnTheHost(Sound):
    """A step weights its loss with a tensor created on the CPU."""

    def known_prior(self) -> Tensor:
        """Uniform in half."""
        return 0.5 * self.prior + 0.5 * torch.full((10,), 0.1)


class DrawsOnTheHost(Sound):
    """A step draws from a CPU generator for a tensor on the device."""

    def noise(self, x: Tensor) -> Tensor:
        """Seeded, in the shape of the images."""
        generator = torch.Generator().manual_seed(self.visit.client)
        return torch.randn(x.shape, device=x.device, generator=generator)


class CopiesToTheHost(Sound):
    """A step takes a detour through the CPU, which changes no bit."""

    def follow(self, mean: Tensor) -> None:
        """There and back."""
        super().follow(mean.to("cpu").to(self.device))


class MakesAConstant(Sound):
    """Every step copies a constant to the device."""

    def known_prior(self) -> Tensor:
        """Weighted by class."""
        return self.prior * torch.tensor([1.0, 2.0] * 5, device=self.device)


class ArrayOfALoss(Sound):
    """A step converts a tensor to NumPy."""

    def follow(self, mean: Tensor) -> None:
        """As an array."""
        super().follow(mean)
        self.last = mean.numpy()


class CountsBatches(Sound):
    """A step reads a number whose changes a replay does not see."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later batches count more."""
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


class CountsEpochs(Sound):
    """The same with the epoch."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later epochs count more."""
        return super().training_step(batch, batch_idx) * (1 + self.current_epoch)


class CountsSteps(Sound):
    """The same with the step."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later steps count more."""
        return super().training_step(batch, batch_idx) / (1 + self.global_step)


class BranchesOnTheRound(Sound):
    """Later rounds train with half the loss."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The recorded step is that of one round."""
        loss = super().training_step(batch, batch_idx)
        return loss / 2 if self.visit.round > 1 else loss


class WantsTwoImages(Sound):
    """A step uses the first two images of a batch, which may have only one."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """There may be only one."""
        for samples in batch.values():
            self.log("apart", (samples["x"][0] - samples["x"][1]).square().mean())
        return super().training_step(batch, batch_idx)


class FreeOfCharge(Sound):
    """What is sent to a client is not counted."""

    def sent_bytes(self, sent: Any, visit: Visit) -> int:
        """Nothing."""
        return 0


class OddArgument(Sound):
    """A hyperparameter's default cannot be saved and restored unchanged."""

    def __init__(self, model: nn.Module, num_classes: int, pair: tuple[int, int] = (0, 1), **base: Any) -> None:
        super().__init__(model, num_classes, **base)


class HalvesInSingle(Sound):
    """A step that fails in single precision."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Half of the loss is lost there."""
        loss = super().training_step(batch, batch_idx)
        return loss * (0.5 if loss.dtype == torch.float32 else 1.0)


class Rounds(Sound):
    """A step that fails in low precision: it uses digits that 16 bits do not have."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Where logits are rounded, the loss counts ten times."""
        x = batch["labelled"]["x"] if "labelled" in batch else batch["unlabelled"]["x"]
        coarse = 1.0 if self(x).dtype == torch.bfloat16 else 0.0
        return super().training_step(batch, batch_idx) * (1.0 - 1.9 * coarse)
