"""Options of a data module, one by one and together: values out of range, and what has no effect."""

from typing import Any

import pytest

from datamodules.common.errors import ConfigError
from datamodules.common.options import LEAST, check_options
from datamodules.digits import Digits

DEFAULTS = dict(Digits().hparams)


def refusal(**options: Any) -> str:
    """The error for these options among the defaults."""
    with pytest.raises(ConfigError) as caught:
        check_options({**DEFAULTS, **options})
    return str(caught.value)


@pytest.mark.parametrize("name", LEAST)
def test_integers_have_a_smallest_value(name: str) -> None:
    scenario = "all_clients" if name == "labels_per_class" else "partial_clients"
    check_options({**DEFAULTS, "scenario": scenario, name: LEAST[name]})
    assert refusal(**{name: LEAST[name] - 1}) == f"data.{name} is {LEAST[name] - 1}; it must be at least {LEAST[name]}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"flip": 1.5}, "data.flip is 1.5; it is a probability"),
        ({"labelled_holdout": 1.0}, "data.labelled_holdout is 1.0; it is a share"),
        ({"label_fraction": 0.0}, "data.label_fraction is 0.0; it is a share"),
        ({"beta": 0.0}, "data.beta is 0.0; it is a concentration"),
        ({"partition_seed": 2**32}, "partition_seed is 4294967296; NumPy takes 0 to 2^32 - 1"),
        ({"split_seed": -1}, "split_seed is -1; NumPy takes 0 to 2^32 - 1"),
        ({"test_std": [0.0]}, "data.test_std is [0.0]; give finite numbers above 0"),
        ({"mean": [float("nan")]}, "data.mean is [nan]; give finite numbers"),
        ({"test_mean": [0.1, 0.2]}, "give one number, or one for each of 3 channels"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], words: str) -> None:
    assert words in refusal(**options)


def test_the_seed_of_the_run_takes_the_place_of_none() -> None:
    with pytest.raises(ConfigError, match="partition_seed is -1"):
        Digits(partition_seed=None, run_seed=-1)
    Digits(partition_seed=0, run_seed=-1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labelled_holdout": 0.5, "balanced_holdout": 10}, "both replace the test set"),
        ({"validation": 9, "partition_file": "x"}, "leave one out"),
        ({"hidden_labels": "pooled", "union_mode": "labelled"}, "some of them twice: choose data.union_mode=none"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], words: str) -> None:
    """Both are named, with their values."""
    message = refusal(**options)
    assert words in message and all(f"data.{name}={value}" in message for name, value in options.items())


@pytest.mark.parametrize(
    ("scenario", "option", "remedy"),
    [
        ("partial_clients", {"num_labels": 40}, "server or all_clients"),
        ("partial_clients", {"label_fraction": 0.1}, "all_clients"),
        ("server", {"labelled_min_per_class": 3}, "partial_clients"),
    ],
)
def test_label_options_of_another_scenario_are_refused(scenario: str, option: dict[str, Any], remedy: str) -> None:
    """They would change the run's identity and nothing else."""
    (name,) = option
    words = f"data.{name} has no effect with data.scenario={scenario}: choose {remedy}, or"
    assert words in refusal(scenario=scenario, **option)
