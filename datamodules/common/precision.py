"""Precisions that a run may have, and why some cannot be used."""

from datamodules.common.errors import ConfigError

PRECISIONS = ("32-true", "64-true", "bf16-mixed")
_REFUSED = {
    "16-mixed": "its loss scaling needs the optimiser and does not fit functional gradients; use bf16-mixed",
    "bf16-true": "weights, momentum and aggregates would lose small updates; use bf16-mixed",
    "16-true": "weights, momentum and aggregates would lose small updates; use bf16-mixed",
}


def check_precision(precision: str) -> None:
    """Refuse a precision in which methods would train something else.

    Raises:
        ConfigError: it is none of ``PRECISIONS``; with the reason.
    """
    if precision not in PRECISIONS:
        why = _REFUSED.get(precision, f"it is not one of {', '.join(PRECISIONS)}")
        raise ConfigError(f"precision '{precision}' cannot be used: {why}")
