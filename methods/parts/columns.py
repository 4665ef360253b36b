"""Which columns of a round's record are the framework's own, and where a method's values of these names go."""

APART = "logged/"
"""What stands before a name that a method has given to a value of its own, where the name is the framework's."""

SHARES = ("selected", "correct", "right", "wrong", "accuracy", "correct_per_wrong", "balance")
"""Columns ``pseudo/...`` of ``Site.report_pseudo_labels`` and what follows from them."""

FRAMEWORK = frozenset(
    {
        "round",
        "warmup",
        "acc",
        "acc_by_class",
        "acc_clients",
        "acc_worst_clients",
        "auc",
        "precision",
        "recall",
        "participants",
        "visits",
        "steps",
        "skipped",
        "overflow",
        "bytes_up",
        "bytes_down",
        "timing",
        *(f"pseudo/{share}{suffix}" for share in SHARES for suffix in ("", "_by_class")),
    }
)
"""Columns that only the framework fills; with automatic optimisation ``loss`` is its own, too."""


def own_column(name: str, automatic: bool) -> str:
    """The column of a value that a method logs: its name, or ``logged/<name>`` where that name is the framework's.

    Two names never share a column.

    Args:
        name: as the method gives it.
        automatic: whether the framework takes the steps, and so logs their ``loss``.
    """
    taken = name in FRAMEWORK or name.startswith(("server/", APART)) or (automatic and name == "loss")
    return f"{APART}{name}" if taken else name
