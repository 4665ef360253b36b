"""FedDure's recipe without regulators, and a choice that the paper leaves open for its baselines."""

from torch import Tensor

from methods.base import Batch
from methods.feddure import FedDure
from methods.local_ssl import LocalSSL
from methods.parts.joint_steps import SupervisedFirst, images
from methods.parts.tensors import wide


class OwnStatistics(LocalSSL):
    """Normalise labelled, weak and strong images separately, and skip those that no loss needs.

    The released client uses one forward pass for all of them, so that unlabelled images affect even FedAvg* through
    batch norm; the paper does not say.
    """

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return logits by field, each from a separate forward pass."""
        needed = {"x", "weak", "strong"} if "unlabelled" in batch and self.hparams.unsup_weight else {"x"}
        if "y" in batch.get("unlabelled", {}):
            needed.add("weak")
        views = images(batch)
        chosen = [name for name in views if name in needed] or list(views)
        return {name: wide(self(views[name])) for name in chosen}


class SupervisedSteps(SupervisedFirst, LocalSSL):
    """A baseline with the supervised steps of FedDure's released client."""


class WithoutRegulators(SupervisedFirst, LocalSSL):
    """FedDure's recipe without either regulator: its rule for unlabelled batches; the rest is in the suite's row."""

    few_steps = FedDure.few_steps
    batch_cap = FedDure.batch_cap
