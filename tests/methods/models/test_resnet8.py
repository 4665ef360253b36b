"""ResNet-8 against the released network."""

import math

import pytest
import torch
import torch.nn.functional as F

from golden_files import load
from methods.models import build


def test_resnet8_matches_the_released_network():
    """Equal layers in equal order, under names of our own where they differ; the sine has a phase per entry."""
    case = load("allclients/resnet8")["cases"][0]
    out = case["outputs"]
    model = build("resnet8", 10).double()
    state = model.state_dict()
    assert [list(v.shape) for v in state.values()] == [shape for _, shape in case["inputs"]["state_dict_order"]]
    floating = {k: v for k, v in state.items() if v.is_floating_point()}
    with torch.no_grad():
        for k, (name, v) in enumerate(floating.items()):
            s = torch.sin(0.1 * torch.arange(1, v.numel() + 1, dtype=torch.float64) + k)
            if name.endswith("running_mean"):
                value = 0.05 * s
            elif name.endswith("running_var"):
                value = 1 + 0.5 * s**2
            elif v.ndim > 1:
                value = s * math.sqrt(2 / v[0].numel())
            else:
                value = 0.1 * s if name.endswith("bias") else 1 + 0.1 * s
            v.copy_(value.view(v.shape))
    x = torch.sin(0.01 * torch.arange(2 * 3 * 32 * 32, dtype=torch.float64)).view(2, 3, 32, 32)

    def check(tensor, name):
        torch.testing.assert_close(tensor, torch.tensor(out[name], dtype=torch.float64), rtol=1e-6, atol=1e-8)

    model.eval()
    check(model.features(x)[:, :8], "feature_eval_first_8")
    check(model(x), "logits_eval")
    model.train()
    logits = model(x)
    check(logits, "logits_train")
    check(model.bn1.running_mean[:4], "bn1_running_mean_after_first_4")
    check(model.bn1.running_var[:4], "bn1_running_var_after_first_4")
    loss = F.cross_entropy(logits, torch.tensor(case["inputs"]["labels"]))
    assert loss.item() == pytest.approx(out["loss_train"], rel=1e-6)
    loss.backward()
    norms = [p.grad.norm().item() for p in model.parameters()]
    assert norms == pytest.approx(list(out["grad_norms"].values()), rel=1e-6)
