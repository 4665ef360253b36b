"""Clients with labels: training on them, their weight in the average, and the residual weight connection (CBAFed)."""

import copy
from collections.abc import Sequence
from math import inf, nan
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Batch, FedMethod, Upload


class LabelledShare(FedMethod):
    """Weights of labelled and unlabelled clients, from their numbers of images.

    Args:
        model: the network.
        labelled_weight_mode: ``share:x``: the labelled clients weigh x together, the others 1 - x; ``multiplier:k``:
            an image of a labelled client counts k-fold; ``plain``: all images count alike.
    """

    def __init__(self, model: nn.Module, labelled_weight_mode: str = "share:0.5", **base: Any) -> None:
        super().__init__(model, **base)
        read_mode(self.hparams.labelled_weight_mode)

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Split the weight between labelled and unlabelled clients as ``labelled_weight_mode`` says."""
        sizes, labelled = [u.weight for u in uploads], [u.visit.labelled for u in uploads]
        return share_weights(sizes, labelled, self.hparams.labelled_weight_mode)


class LabelledClients(FedMethod):
    """Cross-entropy on clients with labels, with an optional residual connection to an earlier model.

    Args:
        model: the network.
        res_client_alpha: weight of the old model in a residual connection (CBAFed, Eqs. 1, 3); 0: none.
        res_skip: rounds or epochs between two connections.
        res_client_reference: first old model: the one after the ``first`` round or epoch, or the ``initial`` one.
    """

    scopes = {"reference": "server"}
    uploads_needed = "mean"

    def __init__(
        self,
        model: nn.Module,
        res_client_alpha: float = 0.0,
        res_skip: int = 5,
        res_client_reference: Literal["first", "initial"] = "first",
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require("from 1", res_skip=self.hparams.res_skip >= 1)
        self.reference = copy.deepcopy(model).requires_grad_(False) if self.hparams.res_client_alpha else None

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Select the round's participants that hold labels.

        Raises:
            ConfigError: no client holds labels.
        """
        self.require_labels(roster)
        labelled = set(roster.labelled)
        return [[client for client in roster.sample(round) if client in labelled]]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross-entropy on the labelled batch."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Average, if any image was used, then apply the residual connection."""
        if any(self.weights(uploads)):
            super().aggregate(uploads)
        self.connect(uploads[0].visit.round)

    def connect(self, round: int) -> None:
        """Apply the residual connection of the global model after the aggregation of ``round`` (Eq. 3)."""
        if self.reference is not None:
            self.mix(self.reference, round)

    def mix(self, reference: nn.Module, index: int) -> None:
        """Mix the model with ``reference`` after the 0-based round or epoch ``index`` (Eqs. 1, 3)."""
        h = self.hparams
        after_first = h.res_client_reference == "first"
        residual_connection(reference, self.model, index, h.res_client_alpha, h.res_skip, after_first)


def share_weights(sizes: Sequence[float], labelled: Sequence[bool], mode: str = "share:0.5") -> list[float]:
    """Compute aggregation weights of labelled and unlabelled clients; they need not sum to 1.

    Args:
        sizes: images per client.
        labelled: which clients hold labels.
        mode: ``"share:x"``: the labelled clients together weigh x, the others 1 - x, both split by size;
            ``"multiplier:k"``: sizes of labelled clients count k-fold; ``"plain"``: sizes.

    If only one kind of client is present, ``"share:x"`` uses the sizes.

    Raises:
        ConfigError: the mode cannot be parsed.
    """
    kind, value = read_mode(mode)
    clients = list(zip(sizes, labelled, strict=True))
    labelled_sum = sum(size for size, has in clients if has)
    unlabelled_sum = sum(size for size, has in clients if not has)
    if kind == "share" and labelled_sum and unlabelled_sum:
        return [size / labelled_sum * value if has else size / unlabelled_sum * (1.0 - value) for size, has in clients]
    factor = value if kind == "multiplier" else 1.0
    return [size * factor if has else float(size) for size, has in clients]


def read_mode(mode: str) -> tuple[str, float]:
    """Parse a mode of ``share_weights`` into its kind and number.

    Raises:
        ConfigError: it cannot be parsed, or the number is out of range.
    """
    kind, _, number = mode.partition(":")
    if mode == "plain":
        return "plain", 1.0
    try:
        value = float(number)
    except ValueError:
        value = nan
    in_range = {"share": 0.0 <= value <= 1.0, "multiplier": 0.0 <= value < inf}
    if not in_range.get(kind):
        raise ConfigError(f"weights {mode!r}: write share:<0..1>, multiplier:<factor> or plain")
    return kind, value


def residual_connection(
    reference: nn.Module, model: nn.Module, index: int, alpha: float, every: int, first: bool = True
) -> None:
    """Apply the residual weight connection after a round or an epoch (CBAFed Eqs. 1, 3, 21; released code).

    After every ``every``-th unit, ``model <- alpha * reference + (1 - alpha) * model``, and the result becomes the new
    reference. All tensors but frozen parameters are mixed, batch-norm statistics included; mixed counters are
    truncated.

    Args:
        reference: a module with the same tensors; changed in place.
        model: changed in place.
        index: 0-based number of the round or epoch (unit) that just ended; unit 0 never mixes.
        alpha: weight of the reference; 0 switches the connection off.
        every: units between two mixes.
        first: use the model after unit 0 as the first reference, instead of ``reference`` as given.
    """
    mixes = index > 0 and index % every == 0
    if alpha == 0 or not (mixes or (first and index == 0)):
        return
    fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    old, new = reference.state_dict(), model.state_dict()
    for name in [key for key in new if key not in fixed]:
        if mixes:
            new[name].copy_(alpha * old[name] + (1.0 - alpha) * new[name])
        old[name].copy_(new[name])
