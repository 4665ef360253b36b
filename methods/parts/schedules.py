"""Numbers that follow rounds, steps and sizes: ramps, rates, batches."""

from math import cos, exp, pi


def exponential_ramp(step: float, length: float) -> float:
    """``exp(-5 (1 - min(step, length) / length)^2)``, the usual consistency ramp-up; 1 for a ramp of length 0."""
    if length <= 0:
        return 1.0
    return exp(-5.0 * (1.0 - min(max(step, 0.0), length) / length) ** 2)


def release_rate(step: int, warmup: int, steps: int, wait: int = 0) -> float:
    """Factor on the learning rate after ``step`` scheduler steps (FedDure, released code).

    0 for ``wait`` steps, then linear up to ``warmup + wait``, then a cosine over ``max(1, steps - warmup - wait)``.
    """
    if step < wait:
        return 0.0
    if step < warmup + wait:
        return step / (warmup + wait)
    return 0.5 * (1.0 + cos(pi * (step - warmup - wait) / max(1, steps - warmup - wait)))


def unlabelled_batch(labelled: int, unlabelled: int, batch_size: int, few: tuple[int, int], cap: int | None) -> int:
    """Unlabelled images per step, from the client's numbers of images (released code).

    Args:
        labelled: labelled images n_s.
        unlabelled: unlabelled images n_u, at least 1.
        batch_size: labelled images per step.
        few: ``(a, b)``: where round(n_s / batch_size), halves to even, is at most a, it counts as b.
        cap: a batch of this size or more is divided by 4.
    """
    steps = round(labelled / batch_size)
    size = unlabelled // (few[1] if steps <= few[0] else steps) or unlabelled
    return size // 4 if cap and size >= cap else size
