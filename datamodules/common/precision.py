"""Allowed precisions, and why others are refused."""

from datamodules.common.errors import ConfigError

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")


def check_precision(precision: str, alone: bool = False) -> None:
    """Refuse a precision in which methods would not train as defined.

    Args:
        precision: Lightning's name.
        alone: whether a plain ``Trainer`` trains, instead of a federation.

    Raises:
        ConfigError: it is not one of ``PRECISIONS``; gives the reason.
    """
    if alone and precision == "16-mixed":
        raise ConfigError(
            "precision '16-mixed' cannot be used in a Trainer: it would clip gradients that are still scaled, since "
            "fused optimisers unscale them in their steps; use bf16-mixed, or 16-mixed in a federation"
        )
    if precision not in PRECISIONS:
        why = f"it is not one of {', '.join(PRECISIONS)}"
        if precision in ("bf16-true", "16-true"):
            why = "weights, momentum and aggregates would lose small updates; use bf16-mixed"
        raise ConfigError(f"precision '{precision}' cannot be used: {why}")
