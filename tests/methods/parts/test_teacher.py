"""Teachers against the released updates and closed forms."""

import pytest
import torch

from golden_files import close, load, noise
from methods.parts.teacher import ema_decay, ema_update

EMA = load("rscfed/ema_update")
PARAMETERS = ("fc1.weight", "fc1.bias", "bn.weight", "bn.bias", "fc2.weight", "fc2.bias")


def test_released_teacher_updates() -> None:
    """Every stored step, from the same teacher; the decay is that of the released rule."""
    assert len(EMA["outputs"]) == 9
    student = [EMA["inputs"]["student"][name] for name in PARAMETERS]
    for out in EMA["outputs"]:
        teacher = [EMA["inputs"]["teacher_before"][name].clone() for name in PARAMETERS]
        decay = ema_decay(torch.tensor(float(out["step"])), 0.999)
        assert float(decay) == pytest.approx(out["alpha"], abs=1e-6)
        ema_update(teacher, student, decay)
        for name, value in zip(PARAMETERS, teacher, strict=True):
            close(value, out["teacher_after"][name], EMA)


def test_teacher_is_the_running_mean_of_the_students() -> None:
    """While 1 - 1/(t + 1) is below the decay; the first update is an exact copy."""
    students = [noise(3, 4, seed=s).float() for s in range(50)]
    teacher = [torch.full((3, 4), 1e6)]
    for step, student in enumerate(students):
        ema_update(teacher, [student], ema_decay(torch.tensor(float(step)), 0.999))
        assert step or torch.equal(teacher[0], student)
    torch.testing.assert_close(teacher[0], torch.stack(students).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_decay() -> None:
    decays = [float(ema_decay(torch.tensor(float(t)), 0.999)) for t in (0, 1, 9, 998, 999, 5000)]
    assert decays == pytest.approx([0, 0.5, 0.9, 1 - 1 / 999, 0.999, 0.999], rel=1e-15)
    assert float(ema_decay(9, 0.999)) == pytest.approx(0.9, rel=1e-15)
    assert float(ema_decay(torch.tensor(0.0), 0.99, ramp=False)) == pytest.approx(0.99)
