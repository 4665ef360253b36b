"""What somebody who runs the contract is told, and what the checks start from."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmark.contract.federations import half_trained
from benchmark.contract.test_contract import pytest_generate_tests as generate
from datamodules.common.errors import ConfigError


def test_a_misspelt_method_is_one_error() -> None:
    config = SimpleNamespace(getoption=lambda name: ["fedvag"])
    with pytest.raises(ConfigError, match="unknown method 'fedvag'; did you mean 'fedavg'"):
        generate(cast(Any, SimpleNamespace(fixturenames=["method", "check"], config=config)))


def test_every_check_is_named_while_it_goes_on() -> None:
    """In another process, as somebody with a package of their own runs it."""
    line = "-m pytest -q -p no:cacheprovider -p benchmark.contract.plugin -k default_arguments_are_plain"
    command = [sys.executable, *line.split(), "--pyargs", "benchmark.contract", "--fssl-method", "fedavg"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "fedavg-default_arguments_are_plain] PASSED" in done.stdout


def test_the_start_does_not_depend_on_how_a_processor_rounds() -> None:
    """Convolutions of another library round otherwise, and training comes to the same weights."""
    with torch.backends.mkldnn.flags(enabled=False):
        other = half_trained.__wrapped__()
    for name, value in half_trained().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-6)
