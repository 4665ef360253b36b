"""RSCFed: random sampling consensus over subsets of clients."""

from collections.abc import Sequence
from math import exp
from typing import Any, Literal

from torch import Tensor, nn

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster
from methods.base import FedMethod, Upload
from methods.fed_consist import FedConsist
from methods.parts.aggregation import State, tensor_distance, weighted_mean
from methods.parts.ops import share_weights


class RSCFed(FedConsist):
    """Random sampling consensus federated learning (Liang et al., CVPR 2022).

    Local training is Fed-Consist's (Eqs. 2-4). Each round draws ``subsets`` subsets of ``subset_size`` clients; the
    models of a subset, all trained from the same global model, become a sub-consensus by distance-reweighted
    aggregation (DMA, Eqs. 6-8); the global model is the mean of the sub-consensus models (Eq. 9).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``subsets`` x ``subset_size`` | 3 x 5 | 3 x 5 | 3 x 5 |
    | ``labelled_multiplier`` | about 50 % | 6 (ISIC 200) | 6 |
    | ``labelled_weight_mode`` | 50 % | once; twice after the clean-up | ``once`` (``squared``, ``share:x``) |
    | ``dma_beta_labelled`` / ``dma_beta_unlabelled`` | 10 000 / 10 000 | 100 / 10 000 (ISIC 0.01) | as the code |
    | ``dma_distance`` | L2 norm | sum of per-tensor L2 norms, counters included | ``sum_tensor`` |
    | ``force_labelled`` | silent | disabled line | false |
    | ``retrain_repeated`` | single download | trains once per subset | true |
    | ``dma`` | on | on | true (false: the ablation without DMA) |
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
        dma_skip_counters: bool = False,
        force_labelled: bool = False,
        retrain_repeated: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.require(subsets=subsets >= 1, subset_size=subset_size >= 1, labelled_multiplier=labelled_multiplier > 0)
        consensus_weights([self.tensors("shared")], [1.0], [True], 0.0, mode=labelled_weight_mode)

    def plan(self, round: int, roster: Roster) -> list[list[int]]:
        """Warm-up as Fed-Consist, then ``subsets`` independent draws."""
        h = self.hparams
        self.drawn = roster.subsets(max(round - h["warmup_rounds"], 0), h["subsets"], h["subset_size"])
        if self.is_warmup(round):
            return super().plan(round, roster)
        if h["force_labelled"]:
            held = set(roster.labelled)
            self.drawn = [s if held & set(s) else [*s[:-1], roster.labelled[0]] for s in self.drawn]
        return self.drawn if h["retrain_repeated"] else [sorted(set().union(*self.drawn))]

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Sub-consensus per subset, then their plain mean; FedAvg in the warm-up."""
        if self.is_warmup(uploads[0].visit.round):
            return FedMethod.aggregate(self, uploads)
        if self.hparams["retrain_repeated"]:
            subsets = [[u for u in uploads if u.visit.cohort == m] for m in sorted({u.visit.cohort for u in uploads})]
        else:
            subsets = [[u for u in uploads if u.visit.client in drawn] for drawn in self.drawn]
        consensus = [self.consensus(subset) for subset in subsets if subset]
        self.load_tensors(weighted_mean(consensus, [1.0] * len(consensus)))

    def consensus(self, uploads: Sequence[Upload]) -> dict[str, Tensor]:
        """One subset's model."""
        states = [u.tensors for u in uploads]
        sizes, labelled = [u.weight for u in uploads], [u.visit.labelled for u in uploads]
        h = self.hparams
        beta = (h["dma_beta_labelled"] if any(labelled) else h["dma_beta_unlabelled"]) if h["dma"] else 0.0
        skip = [n for n in states[0] if n.endswith("num_batches_tracked")] if h["dma_skip_counters"] else []
        weights = consensus_weights(
            states,
            sizes,
            labelled,
            beta,
            h["labelled_multiplier"],
            h["labelled_weight_mode"],
            h["dma_distance"],
            skip,
        )
        return weighted_mean(states, weights)


def consensus_weights(
    states: Sequence[State],
    sizes: Sequence[float],
    labelled: Sequence[bool],
    beta: float,
    multiplier: float = 6.0,
    mode: str = "once",
    distance: str = "sum_tensor",
    skip: Sequence[str] = (),
) -> list[float]:
    """Distance-reweighted weights of one subset, summing to 1 (Eqs. 6-8; released code).

    Args:
        states: local models.
        sizes: raw numbers of images n_i; the exponent divides by them.
        labelled: which clients hold labels.
        beta: scale of the distance term; 0 switches it off.
        multiplier: factor on labelled clients.
        mode: ``"once"``: the factor applies after the exponential; ``"squared"``: also to the sizes before the
            subset average (the cleaned-up release); ``"share:x"``: labelled clients together weigh x.
        distance: see ``tensor_distance``.
        skip: tensors that do not count in the distance.

    Raises:
        ConfigError: an unknown mode, or a client without images.
    """
    shared = mode.startswith("share:")
    if not shared and mode not in ("once", "squared"):
        raise ConfigError(f"labelled_weight_mode {mode!r}: write once, squared or share:<0..1>")
    if min(sizes) <= 0:
        raise ConfigError(f"clients of sizes {list(sizes)}: the distance is divided by the number of images")
    factor = [multiplier if has and not shared else 1.0 for has in labelled]
    prior = [n * f if mode == "squared" else n for n, f in zip(sizes, factor, strict=True)]
    centre = weighted_mean(states, prior)
    distances = [tensor_distance(s, centre, skip=skip, total=distance) for s in states]
    exponents = [beta * d / n for d, n in zip(distances, sizes, strict=True)]
    kinds = [shared and has for has in labelled]  # what cancels when the kind's weights are divided by their sum
    nearest = {kind: min(e for e, own in zip(exponents, kinds, strict=True) if own == kind) for kind in kinds}
    closeness = [exp(nearest[kind] - e) for e, kind in zip(exponents, kinds, strict=True)]
    weights = [p * c * f for p, c, f in zip(prior, closeness, factor, strict=True)]
    if shared:
        weights = share_weights(weights, labelled, mode)
    return [w / sum(weights) for w in weights]
