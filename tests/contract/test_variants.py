"""Other settings of methods than the defaults take the same steps in every engine, and survive an interruption."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmark.contract.checks import CHECKS
from benchmark.contract.federations import FewerDigits, class_of

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("methods.ablations.cbafed.BatchByBatch", {}),
    ("methods.ablations.cbafed.PlainImages", {}),
    ("methods.ablations.cbafed.RebuiltSets", {}),
    ("methods.ablations.cbafed.WarmUpAtClients", {}),
    ("feddb", {"aggregation": "uniform", "dpl": False}),
    ("methods.ablations.feddb.AllImages", {"aggregation": "dma_written"}),
    ("methods.ablations.feddb.CountedSteps", {"steps_per_epoch": 2, "full_batch": False}),
    ("methods.ablations.fedirm.SmoothedTwoViews", {}),
    ("methods.ablations.fixmatch.EveryStep", {"dpl": True}),
    ("methods.ablations.fl2.AsWritten", {}),
    ("methods.ablations.fl2.PlainSAM", {}),
    ("methods.ablations.fl2.WeakTarget", {"batch_size": 8}),
    ("methods.ablations.fl2.AllSelected", {"w_cs": 2.0}),
    ("methods.ablations.fl2.CATWithSAMInstead", {}),
    ("methods.ablations.rscfed.LabelledInEverySubset", {"dma_distance": "global_l2"}),
    ("methods.ablations.semifl.AsInFL2", {"threshold": 0.7}),
    ("methods.ablations.fedcon.EMAStudent", {}),
    ("methods.ablations.fedcon.ReleasedFedCon", {"momentum": 0.9}),
    ("methods.ablations.fedmatch.FedDuresOptimiser", {}),
    ("methods.ablations.fedmatch.OwnEntriesKept", {"batches": "in_order"}),
    ("methods.ablations.fedmatch.SemiFLsCopy", {}),
    ("methods.ablations.feddure.AsWritten", {}),
    ("methods.ablations.feddure.NormalisedWeights", {}),
    ("methods.ablations.feddure.Released", {"supervised_steps": 2, "unsup_targets": "soft", "feedback_weight": -1.0}),
    ("methods.ablations.feddure.WithoutCReg", {}),
    ("methods.ablations.local_ssl.WithoutRegulators", {"supervised_steps": 2}),
    ("local_ssl", {"unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20, "prox_mu": 0.1}),
    ("methods.ablations.local_ssl.OwnStatistics", {}),
    ("client_fixmatch", {"pseudo_labels": "local", "prox_mu": 0.1, "share_momentum": True}),
    ("methods.ablations.flexmatch.Forgetful", {}),
    ("proxyfl", {"icpl_weight": 0.0, "local_epochs": 2, "share_momentum": True}),
    ("methods.ablations.proxyfl.AsPrinted", {"lr": 1e-5}),
]


def name_of(variant: tuple[str, Mapping[str, Any]]) -> str:
    method, arguments = variant
    return "-".join([method, *(f"{name}={value}" for name, value in arguments.items())])


@pytest.fixture(scope="module", autouse=True)
def fewer_images() -> Iterator[None]:
    """Half the contract's images: what a method learns is not asked here, only whether runs are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FewerDigits, "kept", (180, 40))
        yield


@pytest.fixture(scope="module", params=VARIANTS, ids=name_of)
def variant(request: pytest.FixtureRequest) -> type:
    """The method's class with these arguments in place of the contract's."""
    name, arguments = request.param
    cls = class_of(name)
    return type(cls.__name__, (cls,), {"contract_args": {**cls.contract_args, **arguments}})


@pytest.mark.parametrize("check", ["replayed_steps_equal_the_reference", "a_visit_is_a_fit", "resume_is_exact"])
def test_a_variant_keeps_the_contract(variant: type, check: str) -> None:
    CHECKS[check](variant)
