"""Losses, label rules and weights against the released functions and closed forms."""

from math import exp, log

import pytest
import torch

from datamodules.common.errors import ConfigError
from golden_files import load
from methods.parts import ops

RELATION = load("rscfed/fedirm_relation")
EMA = load("rscfed/ema_update")
SHARPEN = load("rscfed/sharpen")
PARAMETERS = ("fc1.weight", "fc1.bias", "bn.weight", "bn.bias", "fc2.weight", "fc2.bias")


def close(ours: torch.Tensor, golden: torch.Tensor, source: dict) -> None:
    """Within the tolerance that the reference file states."""
    torch.testing.assert_close(ours.to(golden.dtype), golden, **source["tolerance"])


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- sharpening and squared error


def test_released_sharpening() -> None:
    p = SHARPEN["inputs"]["p"]
    close(ops.sharpen(p), SHARPEN["outputs"]["sharpened"], SHARPEN)
    close(ops.sharpen(p, SHARPEN["extra"]["t"]), SHARPEN["extra"]["sharpened"], SHARPEN)


def test_sharpening_laws() -> None:
    """Temperature 1 changes nothing; lower ones keep the order and the uniform distribution; rows sum to 1."""
    p = noise(20, 7).softmax(dim=1)
    torch.testing.assert_close(ops.sharpen(p, 1.0), p)
    sharp = ops.sharpen(p, 0.3)
    assert torch.equal(sharp.argsort(dim=1), p.argsort(dim=1))
    assert bool((sharp.amax(dim=1) > p.amax(dim=1)).all())
    torch.testing.assert_close(sharp.sum(dim=1), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(ops.sharpen(torch.full((1, 5), 0.2)), torch.full((1, 5), 0.2))
    torch.testing.assert_close(ops.sharpen(torch.tensor([[0.8, 0.2]]))[0, 0], torch.tensor(0.64 / 0.68))


def test_squared_error() -> None:
    student, target = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert float(ops.squared_error(student, target, 4)) == 0.5
    assert float(ops.squared_error(student[:0], target[:0], 4)) == 0


# --- teachers and ramps


def test_released_teacher_updates() -> None:
    """Every stored step, from the same teacher; the decay is that of the released rule."""
    assert len(EMA["outputs"]) == 9
    student = [EMA["inputs"]["student"][name] for name in PARAMETERS]
    for out in EMA["outputs"]:
        teacher = [EMA["inputs"]["teacher_before"][name].clone() for name in PARAMETERS]
        decay = ops.ema_decay(torch.tensor(float(out["step"])), 0.999)
        assert float(decay) == pytest.approx(out["alpha"], abs=1e-6)
        ops.ema_update(teacher, student, decay)
        for name, value in zip(PARAMETERS, teacher, strict=True):
            close(value, out["teacher_after"][name], EMA)


def test_teacher_is_the_running_mean_of_the_students() -> None:
    """While 1 - 1/(t + 1) is below the decay; the first update is an exact copy."""
    students = [noise(3, 4, seed=s).float() for s in range(50)]
    teacher = [torch.full((3, 4), 1e6)]
    for step, student in enumerate(students):
        ops.ema_update(teacher, [student], ops.ema_decay(torch.tensor(float(step)), 0.999))
        assert step or torch.equal(teacher[0], student)
    torch.testing.assert_close(teacher[0], torch.stack(students).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_decay() -> None:
    decays = [float(ops.ema_decay(torch.tensor(float(t)), 0.999)) for t in (0, 1, 9, 998, 999, 5000)]
    assert decays == pytest.approx([0, 0.5, 0.9, 1 - 1 / 999, 0.999, 0.999], rel=1e-15)
    assert float(ops.ema_decay(9, 0.999)) == pytest.approx(0.9, rel=1e-15)
    assert float(ops.ema_decay(torch.tensor(0.0), 0.99, ramp=False)) == pytest.approx(0.99)


def test_ramp() -> None:
    """FedIRM's λ: 0.0067 at round 0, 0.6376 at 21, 1 from 30."""
    assert round(ops.exponential_ramp(0, 30), 4) == 0.0067
    assert round(ops.exponential_ramp(21, 30), 4) == 0.6376
    assert ops.exponential_ramp(-3, 30) == ops.exponential_ramp(0, 30) == exp(-5)
    assert ops.exponential_ramp(0, 0) == 1
    assert ops.exponential_ramp(30, 30) == ops.exponential_ramp(99, 30) == 1
    ramp = [ops.exponential_ramp(r, 30) for r in range(31)]
    assert ramp == sorted(ramp) and len(set(ramp)) == 31


# --- class relations


def test_released_relation_matrices() -> None:
    given, out = RELATION["inputs"], RELATION["outputs"]
    logits = given["source_logits"].clone().requires_grad_()
    target = ops.relation_matrix(given["target_logits"], given["target_labels"], temperature=given["temperature"])
    source = ops.relation_matrix(logits, given["source_pseudo_labels"])
    close(target, out["target_matrix"], RELATION)
    close(source, out["source_matrix"], RELATION)
    loss = ops.relation_loss(target, source)
    assert float(loss.detach()) == pytest.approx(out["kd_loss"], rel=1e-5)
    loss.backward()
    close(logits.grad, out["grad_source_logits"], RELATION)
    ten = RELATION["ten_class"]
    close(ops.relation_matrix(ten["logits"], ten["labels"]), ten["matrix"], RELATION)


@pytest.mark.parametrize("gap", [40.0, 60.0, 120.0])
def test_relation_loss_of_saturated_rows(gap: float) -> None:
    """A row that is nearly one class keeps its divergence, and its gradient, in closed form."""
    logits = torch.tensor([[gap, 0.0, 0.0], [0.0, gap / 2, 0.0]], requires_grad=True)
    relation = ops.relation_matrix(logits, torch.tensor([0, 1]))
    loss = ops.relation_loss(torch.full((3, 3), 1 / 3), relation)
    # symmetric KL of a uniform row and softmax(a, 0, 0): (a / 2) (softmax's first entry - 1 / 3)
    rows = [a / 2 * (torch.softmax(torch.tensor([a, 0.0, 0.0]), 0)[0] - 1 / 3) for a in (gap / 2, gap / 4, 0.0)]
    assert float(loss) == pytest.approx(float(sum(rows)) / 3, rel=1e-4)
    assert float(torch.autograd.grad(loss, logits)[0][0].abs().sum()) > 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_absent_classes_in_half_precision(dtype: torch.dtype) -> None:
    logits, labels = noise(6, 5).to(dtype), torch.tensor([0, 0, 1, 1, 2, 4])
    found = ops.relation_matrix(logits, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ops.relation_matrix(logits.float(), labels))
    torch.testing.assert_close(found[3], torch.full((5,), 0.2))


def test_relation_matrix_laws() -> None:
    """Rows are distributions, an absent class is uniform, the order of samples does not matter, gates take out."""
    logits, labels = noise(12, 4), torch.tensor([0, 1, 3] * 4)
    matrix = ops.relation_matrix(logits, labels)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(matrix[2], torch.full((4,), 0.25, dtype=torch.float64))
    order = torch.randperm(12)
    torch.testing.assert_close(ops.relation_matrix(logits[order], labels[order]), matrix)
    keep = torch.tensor([True] * 7 + [False] * 5)
    torch.testing.assert_close(ops.relation_matrix(logits, labels, keep), ops.relation_matrix(logits[:7], labels[:7]))
    one = ops.relation_matrix(logits[:1], labels[:1], temperature=3.0)
    torch.testing.assert_close(one[0], (logits[0] / 3).softmax(dim=0), rtol=1e-6, atol=0)


def test_relation_loss_laws() -> None:
    """Zero for equal matrices, symmetric, positive, finite at 0; skipped rows neither count nor pull."""
    p, q = (noise(5, 5, seed=s).softmax(dim=1) for s in (1, 2))
    assert float(ops.relation_loss(p, p)) == 0
    assert float(ops.relation_loss(p, q)) == pytest.approx(float(ops.relation_loss(q, p)))
    by_hand = 0.5 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 5
    torch.testing.assert_close(ops.relation_loss(p, q), by_hand)
    rows = torch.tensor([True, False, True, False, False])
    torch.testing.assert_close(ops.relation_loss(p, q, rows), ops.relation_loss(p[rows], q[rows]) * 2 / 5)
    assert bool(torch.isfinite(ops.relation_loss(torch.eye(3), torch.eye(3).roll(1, 0))))


def test_no_sample_passes_the_gates() -> None:
    """The gradient is finite and zero, not 0 / 0."""
    logits = noise(6, 3).requires_grad_()
    matrix = ops.relation_matrix(logits, torch.zeros(6, dtype=torch.long), torch.zeros(6, dtype=torch.bool))
    ops.relation_loss(torch.eye(3, dtype=torch.float64), matrix).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros(6, 3, dtype=torch.float64))


def test_entropy_and_its_gate() -> None:
    uniform = torch.full((2, 10), 0.1)
    assert ops.entropy(uniform).tolist() == pytest.approx([log(10)] * 2, abs=2e-5)
    assert float(ops.entropy(torch.eye(3))[0]) == pytest.approx(0, abs=2e-6)
    assert ops.entropy_gate(2.0, 100) == 2.0
    assert ops.entropy_gate("ln_scaled", 5) == pytest.approx(2.0)
    assert ops.entropy_gate("ln_scaled", 100) / log(100) == pytest.approx(2.0 / log(5))


# --- weights of clients

SIZES, HELD = [10.0, 30.0, 20.0, 60.0], [True, True, False, False]


@pytest.mark.parametrize(
    ("mode", "split", "weights"),
    [
        ("plain", "size", [10, 30, 20, 60]),
        ("plain", "equal", [10, 30, 20, 60]),
        ("multiplier:6", "size", [60, 180, 20, 60]),
        ("multiplier:0", "size", [0, 0, 20, 60]),
        ("share:0.5", "size", [0.125, 0.375, 0.125, 0.375]),
        ("share:0.5", "equal", [0.125, 0.375, 0.25, 0.25]),
        ("share:0.2", "size", [0.05, 0.15, 0.2, 0.6]),
        ("share:0", "size", [0, 0, 0.25, 0.75]),
        ("share:1", "equal", [0.25, 0.75, 0, 0]),
    ],
)
def test_shares(mode: str, split: str, weights: list[float]) -> None:
    assert ops.share_weights(SIZES, HELD, mode, split) == pytest.approx(weights)


@pytest.mark.parametrize("held", [[True] * 4, [False] * 4])
@pytest.mark.parametrize("mode", ["share:0.5", "share:0", "share:1", "plain"])
def test_one_kind_of_clients_weighs_by_size(held: list[bool], mode: str) -> None:
    """Nothing to share out; also where a share of 0 or 1 would leave no weight at all."""
    assert ops.share_weights(SIZES, held, mode) == SIZES


def test_clients_without_images() -> None:
    """A labelled client without images has no share to give away."""
    assert ops.share_weights([0.0, 5.0, 15.0], [True, False, False]) == [0, 5, 15]
    assert ops.share_weights([0.0, 5.0, 15.0], [True, True, False]) == [0, 0.5, 0.5]


@pytest.mark.parametrize(
    "mode",
    [
        *("", "equal", "Share:0.5", "plain:3"),
        *("share", "share:", "share:half", "share:1.1", "share:-0.1", "share:nan"),
        *("multiplier", "multiplier:-1", "multiplier:inf"),
    ],
)
def test_modes_that_cannot_be_read(mode: str) -> None:
    with pytest.raises(ConfigError, match=r"write share:<0\.\.1>, multiplier:<factor> or plain"):
        ops.share_weights(SIZES, HELD, mode)


def test_lists_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="zip"):
        ops.share_weights([1.0, 2.0], [True])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_wide_never_narrows(given: torch.dtype, expected: torch.dtype) -> None:
    """Half precision becomes float32; a run in double precision stays double."""
    assert ops.wide(torch.ones(2, dtype=given)).dtype == expected
