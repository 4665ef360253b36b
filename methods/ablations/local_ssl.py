"""FedDure's recipe without regulators, and a choice that its paper leaves open for its baselines."""

from torch import Tensor

from methods.base import Batch
from methods.feddure import FedDure
from methods.local_ssl import LocalSSL, images


class OwnStatistics(LocalSSL):
    """Labelled, weak and strong images are each normalised by themselves, and those that no loss needs are not run.

    The released client has one forward pass for all of them, so that unlabelled images reach even FedAvg* through its
    batch norm; the paper does not say.
    """

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Logits by field, each from a forward pass of its own."""
        needed = {"x"}
        if "unlabelled" in batch and self.hparams.unsup_weight:
            needed = {"x", "weak", "strong"}
        elif "unlabelled" in batch and "y" in batch["unlabelled"]:
            needed = {"x", "weak"}
        views = images(batch)
        chosen = [name for name in views if name in needed] or list(views)
        return {name: self(views[name]).to(self.dtype) for name in chosen}


class WithoutRegulators(LocalSSL):
    """FedDure's recipe without either regulator: its unlabelled batches, and the weights and steps of the row."""

    few_steps = FedDure.few_steps
    batch_cap = FedDure.batch_cap
