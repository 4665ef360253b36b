"""FedDure: the bi-level step against reference numbers, its arguments, and its variants in closed form."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation.loop import Federation
from feddure_steps import (
    BATCHNORM,
    CASES,
    PLAIN,
    Toy,
    batch_of,
    equal,
    federation,
    name_of,
    step,
    take_steps,
    toy_method,
)
from federations import contract_federation, rounds_until
from methods.ablations.feddure import (
    AsWritten,
    DifferentiableWeights,
    FRegOnLogits,
    NormalisedWeights,
    Released,
    WithoutCReg,
    WithoutFReg,
)
from methods.feddure import FedDure, WeightNet

FLAGS = {
    ("softmax", True, "none"): FedDure,
    ("logits", True, "none"): FRegOnLogits,
    ("softmax", False, "none"): DifferentiableWeights,
    ("logits", False, "none"): AsWritten,
    ("softmax", True, "sum"): NormalisedWeights,
}


SETTINGS: list[dict[str, Any]] = [
    {"feedback_weight": -1.0},
    {"feedback_weight": 0.5},
    {"creg_lr": 0.05},
    {"freg_lr": 0.05},
    {"threshold": 0.6},
    {"unsup_targets": "soft"},
    {"unsup_targets": "soft", "temperature": 0.4},
    {"unsup_weight": 2.0},
    {"unsup_ramp": 20},
    {"optimizer": "adam"},
    {"weight_decay": 0.1},
    {"clip_norm": 0.01},
    {"prox_mu": 0.5},
    {"cls": WithoutCReg},
    {"cls": WithoutFReg},
    {"cls": Released},
    {"cls": Released, "warmup_steps": 3},
    {"cls": Released, "creg_wait": 0},
    *({"cls": cls} for cls in FLAGS.values() if cls is not FedDure),
]

READINGS = [(case, FLAGS[flags]) for case in CASES if (flags := tuple(case["flags"].values())) in FLAGS]


@pytest.mark.parametrize(("case", "cls"), READINGS, ids=lambda v: name_of(v) if isinstance(v, dict) else v.__name__)
def test_joint_step(case: dict[str, Any], cls: type[FedDure]) -> None:
    """F-reg, C-reg, d, m and the local model after one step, in double precision."""
    method, out = toy_method(case, cls), case["outputs"]
    take_steps(method, [batch_of(case)])
    for layer, number in (("linear1", "0"), ("linear2", "2")):
        for part in ("weight", "bias"):
            ours = method.freg.get_parameter(f"{number}.{part}").detach()
            torch.testing.assert_close(ours, out["freg_after"][f"{layer}.{part}"], rtol=1e-12, atol=1e-12)
    equal(method.creg, out["phi_after"])
    equal(method.model, out["theta_after"])
    assert float(method.tallied("creg/d")) == pytest.approx(out["d_old_minus_new"], rel=1e-9)
    assert float(method.tallied("freg/m")) == pytest.approx(float(out["instance_weights_m"].mean()), rel=1e-12)


def test_constant_regulators_leave_fixmatch_without_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """d = 0, all m_i = 1/4: the FixMatch of LocalSSL, threshold 0, weight 1/4; with a drawn F-reg another model."""

    def run(method: str, **args: Any) -> Federation:
        made = contract_federation(method, precision="64-true", steps_per_visit=2, unlabelled_bs=20, **args)
        rounds_until(made, 1)
        return made

    drawn = run("feddure", feedback_weight=0.0)

    def constant(freg: WeightNet, generator: Any = None) -> None:
        with torch.no_grad():
            for parameter in freg.parameters():
                parameter.zero_()
            freg[2].bias.fill_(-math.log(3.0))

    monkeypatch.setattr(WeightNet, "reset_parameters", constant)
    regulated = run("feddure", feedback_weight=0.0, freg_lr=0.0)
    base = run("local_ssl", threshold=0.0, unsup_weight=0.25)
    for name in base.method.names("shared"):
        torch.testing.assert_close(regulated.server[name], base.server[name], rtol=1e-7, atol=1e-10)
        assert not torch.allclose(drawn.server[name], base.server[name], rtol=1e-7, atol=1e-10)


def test_forcing_d_to_zero_leaves_the_local_model_alone() -> None:
    """The local model moves as without feedback, C-reg as always."""
    without, free = step(PLAIN, feedback_weight=0.0), step(PLAIN)
    equal(without.creg, dict(free.creg.named_parameters()))
    out = PLAIN["outputs"]
    rate = PLAIN["inputs"]["eta"]
    expected = {n: PLAIN["inputs"]["theta"][n] - rate * (out["g_s"][n] + out["g_u"][n]) for n in out["g_s"]}
    equal(without.model, expected)


def test_the_reward_is_of_the_stepped_network_under_autocast_too() -> None:
    """Autocast keeps casts of parameters for as long as it lasts, and C-reg moves while it does."""
    method = toy_method(PLAIN, creg_lr=0.5).float()
    method._engine.autocast = lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    given = {
        stream: {k: v.float() if v.is_floating_point() else v for k, v in fields.items()}
        for stream, fields in batch_of(PLAIN).items()
    }
    before = copy.deepcopy(method.creg)
    take_steps(method, [given])
    losses = []
    for creg in (before, method.creg):
        with torch.no_grad(), method.autocast():
            losses.append(F.cross_entropy(creg(given["labelled"]["x"]), given["labelled"]["y"]))
    assert losses[0] != losses[1]
    assert torch.equal(method.tallied("creg/d"), losses[0] - losses[1])


@pytest.mark.parametrize("kind", ["labelled", "unlabelled"])
def test_one_kind_of_images_moves_the_local_model_only(kind: str) -> None:
    """The regulators rest where a client has no labels, or nothing but labels."""
    method = toy_method(PLAIN)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    take_steps(method, [{kind: batch_of(PLAIN)[kind]}] * 2)
    moved = {name.split(".")[0] for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"model"}


def test_freg_is_drawn_from_the_stream_of_the_visit() -> None:
    """Torch's global generator is neither read nor moved; the same visit draws the same numbers."""
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        method = FedDure(Toy(False), 3)
        method.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(len(drawn))
        state = torch.get_rng_state()
        method.on_train_start()
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append(torch.cat([p.detach().flatten() for p in method.freg.parameters()]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_every_argument_and_variant_does_something() -> None:
    """Three steps end elsewhere with each of these settings, in the local model or in a regulator."""
    ends = []
    for args in [{}, *SETTINGS]:
        method = step(BATCHNORM, 3, **args)
        state = [p.detach() for part in (method.model, method.creg, method.freg) for p in part.parameters()]
        ends.append(torch.cat([p.flatten() for p in state]))
        assert bool(torch.isfinite(ends[-1]).all())
    for i, end in enumerate(ends):
        same = [j for j in range(i) if torch.allclose(end, ends[j], rtol=1e-10, atol=1e-12)]
        assert not same, f"{([{}, *SETTINGS])[i]} ends where {([{}, *SETTINGS])[same[0]]} does"


def test_where_the_state_lives() -> None:
    """The local model and its batch-norm statistics travel, C-reg and F-reg do not; F-reg is the client's own."""
    run = federation()
    run.run_round(0)
    assert all(name.startswith("model.") for name in run.server)
    assert set(run.clients[0].tensors) == {f"freg.{n}" for n in run.method.freg.state_dict()}
    weights = [run.clients[k].tensors["freg.0.weight"] for k in (0, 1)]
    assert not torch.allclose(*weights, atol=1e-2)
    assert all(not any(states) for states in run.clients[0].optimizers)
