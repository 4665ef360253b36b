"""What is said of the machine: what its processor can do, and the hardware of a run."""

import pytest

from benchmark.runs.environment import hardware, slow_precision


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        ("model name\t: A\nflags\t\t: fpu avx512f\nmodel name\t: B\n", True),
        ("model name\t: A\nflags\t\t: fpu avx512_bf16 amx_tile\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", True),
        ("nothing is known\n", False),
    ],
)
def test_bfloat16_is_slow_on_a_processor_that_is_known_not_to_have_it(machine, text, slow):
    machine.write(proc__cpuinfo=text)
    assert bool(slow_precision("bf16-mixed")) == slow
    assert ("with float16 itself (it has neither avx512_fp16" in slow_precision("16-mixed")) == ("is known" not in text)
    assert slow_precision("32-true") == ""


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"threads": 2}, "Some CPU, 2 of 8 cores per run"),
        ({"threads": 1, "devices": 1}, "Some CPU, 1 of 8 cores per run"),
        ({"threads": 2, "devices": 3}, "Some CPU, 6 of 8 cores per run"),
        ({"threads": 1, "devices": 2, "gpu": "Some GPU", "accelerator": "cuda"}, "2 x Some GPU"),
    ],
)
def test_the_hardware_of_a_run_counts_all_of_its_processes(run, told):
    assert hardware({"cpu": "Some CPU", "cores": 8, "gpu": None, "accelerator": "cpu"} | run) == told
