"""Other settings of methods than the defaults take the same steps in every engine, and survive an interruption."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmark.contract.federations import class_of
from benchmark.contract.runs import check_resume_is_exact
from benchmark.contract.steps import check_a_visit_is_a_fit, check_replayed_steps_equal_the_reference

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cbafed", {"pl_set": "batch"}),
    ("cbafed", {"pl_set": "rebuilt", "bn_aggregate": False}),
    ("fedcon", {"preset": "fedcon_repo"}),
    ("fedcon", {"consistency": "ema_student"}),
    ("feddb", {"dma": "paper", "unsup_norm": "all"}),
    ("methods.ablations.feddure.AsWritten", {}),
    ("methods.ablations.feddure.Released", {"supervised_steps": 2, "unsup_targets": "soft", "feedback_weight": -1.0}),
    ("methods.ablations.feddure.WithoutCReg", {}),
    ("methods.ablations.feddure.WithoutRegulators", {"supervised_steps": 2}),
    ("fedirm", {"labelled_loss": "smoothed_two_view", "entropy_gate": "ln_scaled"}),
    ("fedmatch", {"preset": "original"}),
    ("fixmatch", {"pl_time": "every_step", "dpl": True}),
    ("fl2", {"client_batches": "masked", "perturbation": "sam"}),
    ("fl2", {"sam_mode": "replace", "sacr_mask": "all"}),
    ("local_ssl", {"unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20, "prox_mu": 0.1}),
    ("methods.ablations.local_ssl.OwnStatistics", {"supervised_steps": 2}),
    ("rscfed", {"retrain_repeated": False, "dma_distance": "global_l2"}),
    ("semifl", {"semifl_mix_pool": "confident"}),
]


def name_of(variant: tuple[str, Mapping[str, Any]]) -> str:
    method, arguments = variant
    return "-".join([method, *(f"{name}={value}" for name, value in arguments.items())])


@pytest.fixture(scope="module", params=VARIANTS, ids=name_of)
def variant(request: pytest.FixtureRequest) -> type:
    """The method's class with these arguments in place of the contract's."""
    name, arguments = request.param
    cls = class_of(name)
    return type(cls.__name__, (cls,), {"contract_args": {**cls.contract_args, **arguments}})


def test_replayed_steps_equal_the_reference(variant: type) -> None:
    """No setting hides a number from the recording."""
    check_replayed_steps_equal_the_reference(variant)


def test_a_visit_is_a_fit(variant: type) -> None:
    """A plain ``Trainer`` takes the same steps."""
    check_a_visit_is_a_fit(variant)


def test_resume_is_exact(variant: type) -> None:
    """No setting keeps state that a checkpoint does not know."""
    check_resume_is_exact(variant)
