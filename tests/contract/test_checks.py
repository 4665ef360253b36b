"""What the checks start from."""

import torch

from benchmark.contract.federations import half_trained


def test_the_start_does_not_depend_on_how_a_processor_rounds() -> None:
    """Convolutions of another library round otherwise, and training comes to the same weights."""
    with torch.backends.mkldnn.flags(enabled=False):
        other = half_trained.__wrapped__()
    for name, value in half_trained().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-6)
