"""RSCFed: random sampling consensus over subsets of clients."""

from collections.abc import Sequence
from math import exp, inf
from typing import Any, Literal

import torch
from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import Upload
from methods.parts.aggregation import State, weighted_mean
from methods.parts.labelled_clients import read_mode, share_weights
from methods.parts.mean_teacher import SharpenedTeacher


class RSCFed(SharpenedTeacher):
    """Random sampling consensus federated learning (Liang et al., CVPR 2022).

    Clients train as in ``SharpenedTeacher`` (Eqs. 1-4). Each round draws ``subsets`` subsets of ``subset_size``
    clients. The models of a subset, all trained from the same global model, are combined to a sub-consensus by
    distance-reweighted aggregation (DMA, Eqs. 5, 6); the global model is the mean of the sub-consensus models (Eq. 7).
    The hyperparameters of local training are in the tables of ``SharpenedTeacher`` and ``MeanTeacher``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``subsets`` x ``subset_size`` | 3 x 5 | 3 x 5 | 3 x 5 |
    | ``labelled_multiplier`` | about 50 % | 6 (ISIC 200) | 6 |
    | ``labelled_weight_mode`` | 50 % | once; twice after the clean-up | ``once`` (``squared``, ``share:x``) |
    | ``dma_beta_labelled``, ``..._unlabelled`` | 10 000, 10 000 (ISIC 0.01) | 100, 10 000 (ISIC 0.01) | as released |
    | ``dma_distance`` | L2 norm | sum of per-tensor L2 norms, counters included | ``sum_tensor`` |
    | ``dma`` | on | on | true (false: the ablation without DMA) |
    | labelled client in every subset | not given | disabled line | no (``methods.ablations.rscfed``) |
    | client in two subsets | single download | trains once per subset | as released |

    Args:
        dma: whether distances count.
        labelled_multiplier: factor on labelled clients.
        labelled_weight_mode: ``once``: the factor is applied after the exponential; ``squared``: also to the sizes
            before the subset's average (the cleaned-up release); ``share:x``: labelled clients together weigh x.
        dma_distance: see ``tensor_distance``.

    Raises:
        ConfigError: an unknown ``labelled_weight_mode``, or a share outside [0, 1].
    """

    def __init__(
        self,
        model: nn.Module,
        subsets: int = 3,
        subset_size: int = 5,
        dma: bool = True,
        labelled_multiplier: float = 6.0,
        labelled_weight_mode: str = "once",
        dma_beta_labelled: float = 100.0,
        dma_beta_unlabelled: float = 10_000.0,
        dma_distance: Literal["sum_tensor", "global_l2"] = "sum_tensor",
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        mode = self.hparams.labelled_weight_mode
        if mode.startswith("share:"):
            read_mode(mode)  # refuses a share outside [0, 1]
        elif mode not in ("once", "squared"):
            raise ConfigError(f"labelled_weight_mode {mode!r}: write once, squared or share:<0..1>")

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Return the labelled clients during warm-up, then ``subsets`` independent draws (Algorithm 1, line 3).

        Raises:
            ConfigError: no client holds labels, or the subsets cannot be drawn (also checked in the warm-up).
        """
        h, in_warmup = self.hparams, super().select_clients(round, roster)
        subsets = roster.subsets(max(round - h.warmup_rounds, 0), h.subsets, h.subset_size)
        return in_warmup if self.is_warmup(round) else subsets

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Combine each subset by ``weights``, then take the plain mean (Eq. 7); in the warm-up all are one subset."""
        cohorts = sorted({u.visit.cohort for u in uploads})
        subsets = [[u for u in uploads if u.visit.cohort == cohort] for cohort in cohorts]
        consensus = [weighted_mean([u.tensors for u in subset], self.weights(subset)) for subset in subsets]
        self.load_tensors(weighted_mean(consensus, [1.0] * len(consensus)))

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Distance-reweighted weights of a subset, which sum to 1 (Eqs. 5, 6; released code); sizes in the warm-up.

        ``w_i = N_i a_i exp(-beta d_i / N_i)`` with the distance ``d_i`` to the subset's average, the number of images
        ``N_i`` and the factor ``a_i`` of labelled clients. Distances are read back once for all clients.

        Raises:
            ConfigError: a client without images.
        """
        if self.is_warmup(uploads[0].visit.round):
            return super().weights(uploads)
        h, fixed_share = self.hparams, self.hparams.labelled_weight_mode.startswith("share:")
        states, n = [u.tensors for u in uploads], [u.weight for u in uploads]
        labelled = [u.visit.labelled for u in uploads]
        if min(n) <= 0:
            raise ConfigError(f"clients of sizes {n}: the distance is divided by the number of images")
        a = [h.labelled_multiplier if has and not fixed_share else 1.0 for has in labelled]
        prior = [n_i * a_i for n_i, a_i in zip(n, a, strict=True)] if h.labelled_weight_mode == "squared" else n

        average = weighted_mean(states, prior)  # Eq. 5
        d = torch.stack([tensor_distance(state, average, h.dma_distance) for state in states]).tolist()

        # Eq. 6: logarithms of the exponentials, shifted so that the largest exponential is 1. Normalising cancels the
        # shift; labelled and unlabelled clients have a shift each if they are normalised separately.
        beta = h.dma_beta_labelled if any(labelled) else h.dma_beta_unlabelled
        beta = beta if h.dma else 0.0
        exponents = [-beta * d_i / n_i for d_i, n_i in zip(d, n, strict=True)]
        closeness = shifted_exponential(exponents, groups=[fixed_share and has for has in labelled])
        weights = [p_i * c_i * a_i for p_i, c_i, a_i in zip(prior, closeness, a, strict=True)]
        if fixed_share:
            weights = share_weights(weights, labelled, h.labelled_weight_mode)
        total = sum(weights)
        return [weight / total for weight in weights]


def shifted_exponential(exponents: Sequence[float], groups: Sequence[bool]) -> list[float]:
    """``exp(x - m)``, where m is the largest exponent of the same group."""
    largest: dict[bool, float] = {}
    for x, group in zip(exponents, groups, strict=True):
        largest[group] = max(x, largest.get(group, -inf))
    return [exp(x - largest[group]) for x, group in zip(exponents, groups, strict=True)]


def tensor_distance(a: State, b: State, total: str = "sum_tensor") -> Tensor:
    """Distance between two states, a 0-dim float64 tensor on the states' device.

    Args:
        a: state; all tensors count, including buffers and batch-norm counters.
        b: state with the same names.
        total: ``"sum_tensor"`` adds the L2 norms of the per-tensor differences (released code); ``"global_l2"`` is the
            L2 norm of the concatenated difference (paper).
    """
    norms = torch.stack([torch.linalg.vector_norm(a[n].to(torch.float64) - b[n].to(torch.float64)) for n in a])
    return norms.sum() if total == "sum_tensor" else torch.linalg.vector_norm(norms)
