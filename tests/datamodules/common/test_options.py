"""Options of a data module, one by one and together: values out of range, and what has no effect."""

from typing import Any

import pytest

from datamodules.common.errors import ConfigError
from datamodules.digits import Digits


@pytest.mark.parametrize(
    ("option", "fits"),
    [
        ({"flip": 1.5}, 1.0),
        ({"beta": 0.0}, 1e-300),
        ({"beta": float("inf")}, 1e100),
        ({"partition_seed": 2**32}, 2**32 - 1),
        ({"test_std": [0.0]}, [1.0]),
        ({"mean": [float("nan")]}, [0.0]),
        ({"test_mean": [0.1, 0.2]}, [0.1, 0.2, 0.3]),
        ({"scenario": "servers"}, "partial_clients"),
    ],
)
def test_values_out_of_range(option: dict[str, Any], fits: Any) -> None:
    (name,) = option
    Digits(**{name: fits})
    with pytest.raises(ConfigError, match=name):
        Digits(**option)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labelled_holdout": 0.5, "balanced_holdout": 10}, "both replace the test set"),
        ({"validation": 9, "partition_file": "x"}, "only one"),
        ({"hidden_labels": "pooled", "union_mode": "labelled"}, "some of them twice: choose data.union_mode=none"),
        ({"scenario": "partial_clients", "num_labels": 40}, "server or all_clients"),
        ({"scenario": "server", "labelled_histogram": [1]}, "partial_clients"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], words: str) -> None:
    """Both are named. With an option of another scenario the run would have another identity, and nothing else."""
    with pytest.raises(ConfigError, match=words) as caught:
        Digits(**options)
    assert all(f"data.{name}" in str(caught.value) for name in options)
