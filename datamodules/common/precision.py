"""Allowed precisions, and why others are refused."""

from datamodules.common.errors import ConfigError

PRECISIONS = ("32-true", "64-true", "bf16-mixed")


def check_precision(precision: str) -> None:
    """Refuse a precision (Lightning's name) in which methods would not train as defined.

    Raises:
        ConfigError: it is not one of ``PRECISIONS``; gives the reason.
    """
    if precision not in PRECISIONS:
        why = f"it is not one of {', '.join(PRECISIONS)}"
        if precision in ("bf16-true", "16-true"):
            why = "weights, momentum and aggregates would lose small updates; use bf16-mixed"
        raise ConfigError(f"precision '{precision}' cannot be used: {why}")
