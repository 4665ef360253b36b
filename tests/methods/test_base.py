"""What all methods share."""

from contextlib import nullcontext
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.config import Run, from_dict
from checkouts import committed, in_a_checkout
from datamodules.common.errors import ConfigError
from datamodules.common.yaml import read_yaml
from federations import few_data, make_method, sums_of
from methods.base import Batch, FedMethod


class Plain(FedMethod):
    """Supervised."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class Bold(Plain):
    """Arguments of its base with other defaults."""

    def __init__(
        self, model: nn.Module, lr: float = 0.5, eval_batch: int = 7, batch_size: int = 3, **base: Any
    ) -> None:
        super().__init__(model, **base)


def test_defaults_of_a_subclass_hold_without_being_passed_on() -> None:
    """The base checks them, too."""
    method = make_method(Bold)
    assert (method.hparams.lr, method.learning_rate(), method.eval_batch) == (0.5, 0.5, 7)
    for wrong in ({"batch_size": 0}, {"lr": -0.1}, {"eval_batch": 0}, {"min_batch": 4}):
        with pytest.raises(ConfigError, match="out of range"):
            make_method(Bold, **wrong)


def test_a_list_is_no_number_of_rounds() -> None:
    """Its name says "rounds", and it has several."""

    class Steps(Plain):
        def __init__(self, model: nn.Module, decay_rounds: tuple[int, ...] = (30, 60), **base: Any) -> None:
            super().__init__(model, **base)

    assert make_method(Steps).hparams.decay_rounds == (30, 60)


def test_what_is_logged_lies_where_the_method_computes() -> None:
    """Numbers of Python, and tensors of another device, join the sums on the method's own."""
    method = make_method(Plain).to("meta")
    tally = sums_of(method)
    method.log("number", 0.5)
    method.log("tensor", torch.ones(()), batch_size=3)
    method.tally("vector", torch.ones(4))
    sums = tally.taken()
    assert sorted(sums) == ["number", "tensor", "vector"]
    assert {part.device.type for parts in sums.values() for part in parts} == {"meta"}


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_in_half_precision_is_refused() -> None:
    """As by a federation: scaled gradients would be clipped as if they were not."""
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", precision="16-true", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"16-true.*use bf16-mixed"):
        trainer.fit(make_method(Plain), datamodule=few_data(1))


@in_a_checkout
def test_committed_configurations_still_name_the_same_runs() -> None:
    """Also those with arguments that a class has lost since, at the values that all of them have."""
    found = {file.parent.name.split("-")[0]: file for file in committed("results/runs/*/config.yaml")}
    assert len(found) > 15
    for file in found.values():
        assert file.parent.name.endswith(Run.of(from_dict(read_yaml(file))).id)


def test_a_lost_argument_has_one_value() -> None:
    for value, fits in ((0.01, True), (0.1, False)):
        spec = {"class_path": "fedmatch", "init_args": {"lambda_i": value}}
        with nullcontext() if fits else pytest.raises(ConfigError, match="lambda_i"):
            Run.of(from_dict({"method": spec, "data": "digits"}))
