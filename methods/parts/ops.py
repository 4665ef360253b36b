"""Pure losses, label rules and weights that several methods share. Shapes: ``B`` samples, ``C`` classes."""

from collections.abc import Iterable, Sequence
from math import cos, exp, inf, log, pi
from typing import Literal

import torch
from torch import Tensor, nn

from datamodules.common.errors import ConfigError


def wide(values: Tensor) -> Tensor:
    """The values in float32 where mixed precision made them half as wide; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def sharpen(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """``p^(1/T)`` renormalised over classes, ``[B, C]`` (MixMatch; RSCFed Eq. 3 with T = 0.5)."""
    powered = probabilities.pow(1.0 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)


def squared_error(student: Tensor, target: Tensor, divisor: float) -> Tensor:
    """Squared differences of probabilities ``[B, C]``, summed over samples and classes, over ``divisor``."""
    return (student - target).square().sum() / divisor


def ema_decay(step: Tensor | float, decay: float, ramp: bool = True) -> Tensor:
    """``min(1 - 1/(step + 1), decay)`` for the 0-based ``step``, in float64: the first update copies the student."""
    ramped = 1.0 - 1.0 / (torch.as_tensor(step, dtype=torch.float64) + 1.0)
    return torch.clamp(ramped, max=decay) if ramp else torch.full_like(ramped, decay)


@torch.no_grad()
def ema_update(teacher: Iterable[Tensor], student: Iterable[Tensor], decay: Tensor | float) -> None:
    """``teacher <- decay * teacher + (1 - decay) * student`` in place, parameter by parameter."""
    share = torch.as_tensor(1.0 - decay)
    for target, source in zip(teacher, student, strict=True):
        target.copy_(target.lerp(source.detach(), share.to(target.dtype)))


def exponential_ramp(step: float, length: float) -> float:
    """``exp(-5 (1 - min(step, length) / length)^2)``, the usual consistency ramp-up; 1 for a ramp of length 0."""
    if length <= 0:
        return 1.0
    return exp(-5.0 * (1.0 - min(max(step, 0.0), length) / length) ** 2)


def relation_matrix(logits: Tensor, labels: Tensor, keep: Tensor | None = None, temperature: float = 2.0) -> Tensor:
    """Class relations ``[C, C]``: row c is the softmax of the mean logits of the samples labelled c (FedIRM Eq. 2).

    Args:
        logits: ``[B, C]``; gradients flow through them.
        labels: int64 ``[B]``.
        keep: bool ``[B]``, samples that count; all of them by default.
        temperature: softmax temperature.

    A class without a sample gives a uniform row (released code).
    """
    logits = wide(logits)
    members = torch.nn.functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
    if keep is not None:
        members = members * keep.to(logits.dtype)[:, None]
    means = members.T @ logits / (members.sum(dim=0)[:, None] + 1e-8)
    return torch.softmax(means / temperature, dim=1)


def relation_loss(target: Tensor, relation: Tensor, rows: Tensor | None = None) -> Tensor:
    """Symmetric KL divergence of two relation matrices ``[C, C]``, over the number of classes (FedIRM Eq. 6).

    Args:
        target: reference matrix P.
        relation: matrix Q that carries the gradient.
        rows: bool ``[C]``, rows that count; all of them by default.
    """
    tiny = torch.finfo(relation.dtype).tiny
    p, q = target.clamp_min(tiny), relation.clamp_min(tiny)
    terms = 0.5 * (p - q) * (p.log() - q.log())
    return (terms if rows is None else terms * rows[:, None]).sum() / len(target)


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum_c p ln(p + 1e-6)`` per sample, ``[B]``, in nats (FedIRM's released code)."""
    return -(probabilities * (probabilities + 1e-6).log()).sum(dim=1)


def share_weights(
    sizes: Sequence[float],
    labelled: Sequence[bool],
    mode: str = "share:0.5",
    unlabelled_split: Literal["size", "equal"] = "size",
) -> list[float]:
    """Aggregation weights of labelled and unlabelled clients.

    Args:
        sizes: images per client.
        labelled: which clients hold labels.
        mode: ``"share:x"``: the labelled clients together weigh x, split by size, the others 1 - x;
            ``"multiplier:k"``: sizes of labelled clients count k-fold; ``"plain"``: sizes.
        unlabelled_split: how unlabelled clients divide their part of ``"share:x"``.

    Where only one kind of client is present, the sizes are the weights.

    Raises:
        ConfigError: a mode that cannot be read.
    """
    kind, _, number = mode.partition(":")
    try:
        value = 1.0 if mode == "plain" else float(number)
    except ValueError:
        value = -1.0
    known = mode == "plain" or kind in ("share", "multiplier")
    if not known or not 0.0 <= value < inf or (kind == "share" and value > 1.0):
        raise ConfigError(f"weights {mode!r}: write share:<0..1>, multiplier:<factor> or plain")
    n_lab = sum(n for n, has in zip(sizes, labelled, strict=True) if has)
    raw = [n if has or unlabelled_split == "size" else 1.0 for n, has in zip(sizes, labelled, strict=True)]
    n_unl = sum(w for w, has in zip(raw, labelled, strict=True) if not has)
    if kind != "share" or not n_lab or not n_unl:
        return [
            float(n) * (value if has and kind == "multiplier" else 1.0) for n, has in zip(sizes, labelled, strict=True)
        ]
    return [w / n_lab * value if has else w / n_unl * (1.0 - value) for w, has in zip(raw, labelled, strict=True)]


def entropy_gate(rule: float | str, num_classes: int) -> float:
    """Entropy below which a sample counts as certain: a number, or ``"ln_scaled"`` = 2 ln(C) / ln(5)."""
    return 2.0 * log(num_classes) / log(5.0) if rule == "ln_scaled" else float(rule)


@torch.no_grad()
def set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Let the next optimiser step follow ``gradient``, in the memory format of the parameter as fused steps need it."""
    same = gradient.stride() == parameter.stride()
    parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)


@torch.no_grad()
def residual_connection(
    reference: nn.Module, model: nn.Module, index: int, alpha: float, every: int, first: bool = True
) -> None:
    """Residual weight connection after unit ``index`` (a round or an epoch; CBAFed Eqs. 1, 3, 21; released code).

    After every ``every``-th unit, ``model <- alpha * reference + (1 - alpha) * model``, and the result becomes the new
    reference. All tensors are mixed, batch-norm statistics included; mixed counters are truncated.

    Args:
        reference: a module of the same kind; changed in place.
        model: changed in place.
        index: 0-based number of the unit that just ended; unit 0 never mixes.
        alpha: weight of the reference; 0 switches the connection off.
        every: units between two mixes.
        first: the first reference is the model after unit 0, instead of what the reference holds.
    """
    if not alpha or (index % every if index else not first):
        return
    for old, new in zip(reference.state_dict().values(), model.state_dict().values(), strict=True):
        if index:
            new.copy_(alpha * old + (1.0 - alpha) * new)
        old.copy_(new)


def pseudo_labels(
    logits: Tensor, threshold: float = 0.0, temperature: float = 1.0, soft: bool = False
) -> tuple[Tensor, Tensor]:
    """Targets from the logits ``[B, C]`` of another view, without gradient.

    Returns:
        the most probable classes, int64 ``[B]`` (``soft``: probabilities at ``temperature``, ``[B, C]``), and which
        samples have a largest probability, at temperature 1, of ``threshold`` or more, bool ``[B]``.
    """
    logits = wide(logits.detach())
    confidence, hard = logits.softmax(dim=1).max(dim=1)
    return (logits / temperature).softmax(dim=1) if soft else hard, confidence >= threshold


def weighted_loss(losses: Tensor, weights: Tensor, norm: Literal["none", "sum"] = "none") -> Tensor:
    """Mean over the samples of weight times loss, ``[B]`` each; ``norm="sum"``: over the sum of the weights, if any."""
    total, parts = (weights * losses).sum(), weights.sum()
    return total / (len(losses) if norm == "none" else torch.where(parts > 0, parts, 1.0))


def proximal_term(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """``||theta - theta_0||^2 / 2`` over all parameters (FedProx, Li et al., MLSys 2020, without its mu)."""
    return 0.5 * torch.stack([(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]).sum()


@torch.no_grad()
def cross_entropy_slope(logits: Tensor, labels: Tensor) -> Tensor:
    """Norm of the gradient of the mean cross-entropy at the logits ``[N, C]``: how hard the labels ``[N]`` pull."""
    slope = logits.softmax(dim=1) - torch.nn.functional.one_hot(labels, logits.shape[1])
    norm: Tensor = torch.linalg.vector_norm(slope)
    return norm / len(logits)


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


def release_rate(step: int, warmup: int, steps: int, wait: int = 0) -> float:
    """Factor on the learning rate after ``step`` scheduler steps (FedDure, released code).

    0 for ``wait`` steps, then linear up to ``warmup + wait``, then a cosine over ``max(1, steps - warmup - wait)``.
    """
    if step < wait:
        return 0.0
    if step < warmup + wait:
        return step / (warmup + wait)
    return 0.5 * (1.0 + cos(pi * (step - warmup - wait) / max(1, steps - warmup - wait)))
